package ruletest

import (
	"errors"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"lowtide/rules"
)

const (
	maxScenarios = 1000 // of one file
	maxMoments   = 10_000
	maxWorkers   = 100
	maxSamples   = 2_000_000 // events of one scenario
	minInterval  = 100 * time.Millisecond
	maxInterval  = time.Hour
)

var scenarioKeys = []string{"name", "start", "interval", "for", "seed", "worker", "quiet", "series", "events", "beside", "recording", "expect", "never", "nothing"}

// scenario is one course of things, and what has to be said about it.
type scenario struct {
	name     string
	at       rules.Entry // the name, for messages about all of it
	start    time.Time
	given    bool // the start is
	interval time.Duration
	length   time.Duration // 0: until its longest series ends
	seed     uint64
	players  []*player // of one recording there are none

	recording string // path
	expected  []expectation
	never     []never
	nothing   *rules.Entry
	unread    bool // a series of it is wrong, so that nobody knows how long it is
}

// report adds what is wrong with a word of the file; a mistake in a notation has its own place in it.
func report(w rules.Word, what string, err error) {
	var m *mistake
	if errors.As(err, &m) {
		w.Report(m.offset, m.hint, "%s: %s", what, m.what)
		return
	}
	w.Report(0, "", "%s: %v", what, err)
}

// readScenarios reads the `scenarios:` of one test file. The rules are those of which it may speak.
func readScenarios(name string, content []byte, pack *rules.Pack, problems *rules.Problems) (out []*scenario) {
	for _, top := range rules.ReadEntries(name, content, problems) {
		if top.Name() != "scenarios" {
			continue // `tests:`, and what is wrong with the keys, is of the rules
		}
		items := top.Items()
		if len(items) > maxScenarios {
			top.Report("write several files", "%d scenarios, more than %d", len(items), maxScenarios)
			return nil
		}
		for _, item := range items {
			before := len(*problems)
			if s := readScenario(item, filepath.Dir(name), pack); s != nil && len(*problems) == before {
				out = append(out, s)
			}
		}
	}
	return out
}

func byName(e rules.Entry, what string, keys []string) (out map[string]rules.Entry, all []rules.Entry) {
	out = map[string]rules.Entry{}
	all = e.Entries()
	for _, one := range all {
		if !slices.Contains(keys, one.Name()) {
			one.Unknown(what, keys)
			continue
		}
		out[one.Name()] = one
	}
	return out, all
}

func readScenario(e rules.Entry, folder string, pack *rules.Pack) *scenario {
	given, all := byName(e, "a scenario", scenarioKeys)
	if len(all) == 0 {
		return nil
	}
	s := &scenario{at: all[0], start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), interval: time.Minute, seed: 1}
	if one, ok := given["name"]; !ok {
		all[0].ReportKey("begin it with `- name: …`", "a scenario has no name")
	} else if word, ok := one.Word(); ok {
		s.name, s.at = word.Text(), one
	}
	s.header(given)
	if one, ok := given["recording"]; ok {
		s.readRecording(one, given, folder)
	} else {
		if p := s.readPlayer(given, 0); p != nil {
			s.players = append(s.players, p)
		}
		s.readBeside(given)
		s.measure()
	}
	s.readExpected(given, pack)
	if _, given := given["expect"]; !given && len(s.never) == 0 && s.nothing == nil {
		s.at.Report("add expect: [{at: 4h, rule: …}], never: […] or nothing: true", "scenario %q expects nothing", s.name)
	}
	return s
}

// header reads what holds for all of a scenario.
func (s *scenario) header(given map[string]rules.Entry) {
	if one, ok := given["start"]; ok {
		if word, ok := one.Word(); ok {
			at, err := time.Parse(time.RFC3339, word.Text())
			if err != nil {
				at, err = time.Parse("2006-01-02T15:04Z07:00", word.Text())
			}
			if err != nil || at.Year() < 1971 || at.Year() > 2200 {
				one.Report("write 2026-01-01T00:00:00Z", "start: %q is no time", word.Text())
			} else {
				s.start, s.given = at.UTC(), true
			}
		}
	}
	if one, ok := given["interval"]; ok {
		if d, ok := span(one, minInterval, maxInterval); ok {
			s.interval = d
		}
	}
	if one, ok := given["for"]; ok {
		if d, ok := span(one, s.interval, maxTicks*s.interval); ok {
			s.length = d
		}
	}
	if one, ok := given["seed"]; ok {
		if word, ok := one.Word(); ok {
			h := fnv.New64a()
			h.Write([]byte(word.Text()))
			s.seed = h.Sum64()
		}
	}
}

// span reads a duration between two bounds.
func span(e rules.Entry, least, most time.Duration) (time.Duration, bool) {
	word, ok := e.Word()
	if !ok {
		return 0, false
	}
	d, err := duration(word.Text())
	if word.Text() == "0" {
		d, err = 0, nil
	}
	if err != nil || d < least || d > most {
		e.Report("write it as 90s, 15m, 2h or 3d, from "+short(least)+" to "+short(most), "%s: %q is no duration that can be", e.Name(), word.Text())
		return 0, false
	}
	return d, true
}

// short writes a duration without its zeros: 4h, 1h30m.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func (s *scenario) readRecording(e rules.Entry, given map[string]rules.Entry, folder string) {
	for _, other := range []string{"worker", "quiet", "series", "events", "beside", "interval", "for", "seed"} {
		if one, ok := given[other]; ok {
			one.ReportKey("remove one of them", "a recording has %s of its own", other)
		}
	}
	word, ok := e.Word()
	if !ok {
		return
	}
	if s.recording = word.Text(); !filepath.IsAbs(s.recording) {
		s.recording = filepath.Join(folder, s.recording)
	}
}

func (s *scenario) readBeside(given map[string]rules.Entry) {
	one, ok := given["beside"]
	if !ok {
		return
	}
	items := one.Items()
	if len(items) > maxWorkers {
		one.Report("", "%d workers, more than %d", len(items), maxWorkers)
		return
	}
	for i, item := range items {
		keys, _ := byName(item, "beside", []string{"worker", "quiet", "series", "events"})
		if p := s.readPlayer(keys, i+1); p != nil {
			s.players = append(s.players, p)
		}
	}
}

// measure finds how long a scenario is, and refuses one that is too large.
func (s *scenario) measure() {
	if s.unread {
		return
	}
	longest, bodies := 0, 0
	for _, p := range s.players {
		seen := map[string]bool{}
		for _, t := range p.tracks {
			seen[t.body] = true
			if t.series == nil {
				continue
			}
			if n, endless := t.series.ticks(); !endless {
				longest = max(longest, n)
			}
		}
		bodies += len(seen)
	}
	if s.length == 0 {
		s.length = time.Duration(longest) * s.interval
		for _, p := range s.players {
			for _, m := range p.moments {
				s.length = max(s.length, m.at+time.Duration(m.count-1)*m.every+s.interval)
			}
		}
		if longest == 0 && len(s.players) > 0 && len(s.players[0].tracks) > 0 {
			s.at.Report("say how long with for: 6h, or with a series that has an end", "scenario %q has no end", s.name)
			return
		}
	}
	ticks := int(s.length / s.interval)
	if ticks > maxTicks || ticks*bodies > maxSamples {
		s.at.Report("make the interval longer, or the scenario shorter", "scenario %q has %d ticks of %d readings, more than %d in all", s.name, ticks, bodies, min(maxSamples, maxTicks*max(bodies, 1)))
	}
}
