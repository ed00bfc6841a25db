package processor

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"lowtide/rules/variable"
)

// MaxLabels is how many labels a configuration may hold. Rules are checked for what a loop over so many costs.
const MaxLabels = 64

const (
	maxLabelText  = 1024 // bytes of one, with its selector
	maxLabelKey   = 64   // bytes
	maxLabelValue = 256  // bytes
)

var labelsID = variable.Must("labels")

// Label is one that the configuration adds to what its selector fits.
type Label struct {
	host, model string // patterns; empty fits everything
	key, value  string
}

var labelKey = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// ownLabels are names that a finding or an alert has already, sorted.
var ownLabels = []string{"alertname", "class", "cluster", "host", "id", "incident", "model", "release", "rule", "severity", "slot", "state", "subject", "time", "worker"}

// ParseLabel reads SELECTOR:KEY=VALUE. The selector is host=CLUSTER/HOST, model=NAME, or both with a comma between; each is a pattern of the whole
// with * and ?, and in a model's name these stand for slashes too. A model's name may contain colons, so that the last one counts. The error quotes
// the text and says how it is written.
func ParseLabel(text string) (Label, error) {
	l, err := parseLabel(text)
	if err != nil {
		return Label{}, fmt.Errorf("%.200q: %w", text, err)
	}
	return l, nil
}

func parseLabel(text string) (l Label, err error) {
	if len(text) > maxLabelText {
		return l, fmt.Errorf("longer than %d bytes", maxLabelText)
	}
	cut := strings.LastIndexByte(text, ':')
	if cut < 0 {
		return l, fmt.Errorf("no colon between selector and label; write host=prod/gpu-7*,model=llama*:team=ml, with one of the two or both")
	}
	for part := range strings.SplitSeq(text[:cut], ",") {
		name, pattern, _ := strings.Cut(part, "=")
		var into *string
		switch name {
		case "host":
			if strings.Count(pattern, "/") != 1 {
				return l, fmt.Errorf("%q is no pattern of cluster/host; write host=prod/gpu-7*, or host=*/gpu-7*", pattern)
			}
			into = &l.host
		case "model":
			into = &l.model
		default:
			return l, fmt.Errorf("%q selects neither by host nor by model; write host=CLUSTER/HOST, model=NAME, or both with a comma between", part)
		}
		if pattern == "" || *into != "" {
			return l, fmt.Errorf("%s needs one pattern; write one label for each, since the first that fits counts", name)
		}
		if _, err := path.Match(flat(pattern), ""); err != nil {
			return l, fmt.Errorf("%q is no pattern (%w); write * for any text and ? for one letter", pattern, err)
		}
		*into = pattern
	}
	l.model = flat(l.model)
	var found bool
	l.key, l.value, found = strings.Cut(text[cut+1:], "=")
	switch {
	case !found:
		return l, fmt.Errorf("%q behind the last colon is no label; write KEY=VALUE, and no colon in the value", text[cut+1:])
	case !labelKey.MatchString(l.key) || len(l.key) > maxLabelKey:
		return l, fmt.Errorf("%.80q is no key; write small letters, digits and _, a letter first, at most %d", l.key, maxLabelKey)
	case slices.Contains(ownLabels, l.key):
		return l, fmt.Errorf("every finding has its own %s; take another key", l.key)
	case l.value == "" || len(l.value) > maxLabelValue || strings.TrimSpace(l.value) != l.value || !utf8.ValidString(l.value) || strings.ContainsFunc(l.value, unprintable):
		return l, fmt.Errorf("%s needs a value of printable text without spaces around it, at most %d bytes", l.key, maxLabelValue)
	}
	return l, nil
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// flat makes a slash an ordinary letter: the name of a model may have any number of them.
func flat(model string) string { return strings.ReplaceAll(model, "/", "\x00") }

// fits says whether the label is for a process of a model on a host. A model that nobody told is fitted by nothing, not even by *.
func (l *Label) fits(h hostName, model string) bool {
	fits := func(pattern, name string) bool {
		is, err := path.Match(pattern, name)
		return is && err == nil
	}
	return (l.host == "" || fits(l.host, h.cluster+"/"+h.name)) && (l.model == "" || model != "" && fits(l.model, flat(model)))
}

// Labels are those of a configuration, in its order. None at all leaves what rules read of them unknown.
type Labels []Label

// of returns what is added to a process of a model on a host, the first that fits of each key; nil where nothing is configured. Cards and sensors have no model.
func (all Labels) of(h hostName, model string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	added := make(map[string]string)
	for i := range all {
		l := &all[i]
		if _, already := added[l.key]; !already && l.fits(h, model) {
			added[l.key] = l.value
		}
	}
	return added
}

// Label makes the judge add these labels to all that it watches from now on, and to what it finds there. A judge that was restored has the labels
// of who saved it until then. Call it between two events.
func (j *Judge) Label(by Labels) {
	j.labels = by
	for _, h := range j.hosts {
		j.labelHost(h)
		for _, c := range h.cards {
			h.label(c.sample)
		}
		for _, s := range h.sensors {
			if s.sample != nil {
				h.label(s.sample)
			}
		}
	}
	for _, w := range j.everyone() {
		j.label(w)
	}
}

func (j *Judge) labelHost(h *host) { h.labels = j.labels.of(h.name, "") }

// label gives a worker the labels of who it is by now.
func (j *Judge) label(w *watched) {
	added := j.labels.of(w.home.name, w.Who.GetModel())
	if maps.Equal(added, w.home.labels) {
		added = w.home.labels // most have those: one map is enough
	}
	setLabels(w.Sheet(), added)
}

// label gives a card or a sensor the labels of its host.
func (h *host) label(s *variable.Sample) { setLabels(s, h.labels) }

func setLabels(s *variable.Sample, added map[string]string) {
	if added == nil {
		s.Unset(labelsID)
		return
	}
	s.SetLabels(labelsID, added)
}
