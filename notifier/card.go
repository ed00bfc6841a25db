// Package notifier owns telling people: it turns the findings of an incident into one card, keeps one message per incident up to
// date, and remembers in an outbox what was told where. It refuses to decide severity, to judge, and to claim a cause: a card
// says what was seen together, with its lag, and what speaks against the verdict.
package notifier

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"lowtide/event"
)

// Card is what a person is told about one incident. It holds plain text; a Sender adds the escaping and layout of its medium.
type Card struct {
	Incident string
	Class    string
	State    string // suspected, confirmed or resolved
	Severity string // info, ticket or page

	Title    string // verdict and confidence
	Summary  string
	People   []Line // what people did: who acknowledged it, until when it is silenced, what they think of it
	Where    []Line // worker, model, release, pod, host, pid, then why it ended, what hid it, where else it is: only what is known
	Workers  []Line // of a card that tells about several: slot → severity and state
	Chart    Chart  // of the levels that growth was judged by; empty when there are none
	Evidence []Line
	Held     []string // the stacks that hold most, by a snapshot, at most three, and its file
	Together []string // symptoms with their lag; seen beside the condition, not shown to follow from it
	Against  []Line   // name of the legitimate explanation → what became of it
	Forecast string   // empty when no limit is known
	Blind    []Line   // class that could not be assessed → the sensor that is missing
	Advice   []string
	Replicas string   // how many workers of the release do well
	Runbook  string   // where the class is explained: an address, or a place in the documentation
	Next     []string // commands to run next

	Release      string // of what is told; for "until the next release"
	Acknowledged bool   // and nothing worse was said since

	FirstSeen time.Time // event time of the first finding
	Changed   time.Time // event time of the latest finding

	Finding *event.Finding // the latest, for media that programs read; it is no part of the Digest
}

// Line is a name and its value, both for people.
type Line struct{ Name, Value string }

// History is what is known of an incident so far. Case is the latest finding that is not resolved: a resolution often comes
// without the evidence, and the card should still say what it was that ended.
type History struct {
	First, Case, Latest *event.Finding
}

// Add returns the history with one more finding. The same finding again, or one older than the latest, changes nothing, so that
// redelivery is harmless.
func (h History) Add(f *event.Finding) History {
	if h.Latest != nil && (h.Latest.ID == f.ID || f.Time.Before(h.Latest.Time)) {
		return h
	}
	if h.First == nil {
		h.First = f
	}
	if f.State != event.Resolved {
		h.Case = f
	}
	h.Latest = f
	return h
}

// Build returns the card of an incident. The history needs at least one finding. The same history gives the same card.
func Build(h History) Card {
	latest, evidence := h.Latest, h.Latest
	if h.Case != nil && latest.State == event.Resolved && len(latest.Evidence) == 0 {
		evidence = h.Case
	}
	c := Card{
		Incident: latest.Incident, Class: latest.Class, State: latest.State, Severity: latest.Severity,
		Title:     title(latest),
		Summary:   latest.Summary,
		Where:     append(where(latest), life(latest)...),
		Chart:     chartOf(evidence),
		Evidence:  measures(evidence),
		Held:      held(evidence),
		Together:  together(evidence.Symptoms),
		Against:   against(evidence.CounterEvidence),
		Advice:    latest.Advice,
		FirstSeen: h.First.Time, Changed: latest.Time,
		Finding: latest,
	}
	if latest.State != event.Resolved {
		c.Forecast = forecast(latest.HoursToLimit)
	}
	for _, class := range slices.Sorted(maps.Keys(latest.NotAssessable)) {
		c.Blind = append(c.Blind, Line{class, "needs " + latest.NotAssessable[class]})
	}
	if latest.State != event.Resolved {
		c.Replicas = replicas(latest)
	}
	c.Release = release(latest)
	c.Next = nextSteps(latest)
	c.Runbook = Runbook(onCall, latest.Class)
	return c
}

// onCall is the document that explains the classes where no other is named.
const onCall = "docs/oncall.md"

// Hints are what a card needs to know of where it is read.
type Hints struct {
	Runbooks string // address under which classes are explained, such as https://wiki.example/oncall; empty for the documentation of Lowtide
	Flags    string // that commands need to find the store, such as --data /srv/lowtide; empty where the defaults do
}

// ready returns the card as it reads with these hints.
func (c Card) ready(h Hints) Card {
	if h.Runbooks != "" {
		c.Runbook = Runbook(h.Runbooks, c.Class)
	}
	if h.Flags != "" {
		c.Next = slices.Clone(c.Next)
		for i := range c.Next {
			c.Next[i] += " " + h.Flags
		}
	}
	return c
}

// of returns the card as one of several workers.
func (c Card) of(workers []Line, n int) Card {
	if n < 2 {
		return c
	}
	c.Workers = workers
	if verdict, rest, found := strings.Cut(c.Title, " · "); found {
		c.Title = fmt.Sprintf("%s on %d workers · %s", verdict, n, rest)
	}
	c.Where = slices.DeleteFunc(slices.Clone(c.Where), func(l Line) bool { return l.Name == "alike" })
	return c
}

// standing returns the card with what people did.
func (c Card) standing(f *event.Finding, stance Stance, covering []Silence) Card {
	add := func(name, format string, values ...any) {
		c.People = append(c.People, Line{name, fmt.Sprintf(format, values...)})
	}
	if a := stance.AcknowledgedFor(f); a != nil {
		c.Acknowledged = true
		add("acknowledged", "by %s at %s", a.By, clock(a.At))
	} else if a := stance.Acknowledged; a != nil && f.State != event.Resolved {
		add("acknowledged", "by %s at %s, before it became worse", a.By, clock(a.At))
	}
	if a := stance.ResolvedFor(f); a != nil && f.State != event.Resolved {
		add("said to be over", "by %s at %s; it stays open until that is proven", a.By, clock(a.At))
	}
	for _, one := range covering[:min(len(covering), 1)] {
		add("silenced", "%s", until(one))
	}
	const most = 5
	for _, a := range stance.Feedback[max(0, len(stance.Feedback)-most):] {
		add("feedback", "%s, says %s", strings.ReplaceAll(string(a.Kind), "_", " "), a.By)
	}
	for _, a := range stance.Notes[max(0, len(stance.Notes)-most):] {
		add("note", "%s: %s", a.By, a.Note)
	}
	return c
}

// replicas says how many others do well, or that nobody knows.
func replicas(f *event.Finding) string {
	if r := f.Replicas; r != nil && r.Total > 0 {
		return fmt.Sprintf("%d of %d replicas of this release that can be compared are healthy", r.Healthy, r.Total)
	}
	if f.Worker == nil {
		return ""
	}
	return "healthy replicas of this release: not known"
}

// title is the verdict in one line: "retention confirmed · confidence 87 % · page". An incident that a restart hides says so there:
// the worker looks well, and is not.
func title(f *event.Finding) string {
	state := f.State
	if f.MaskedRestarts > 0 && f.State != event.Resolved {
		state += fmt.Sprintf(", masked by restart (%d)", f.MaskedRestarts)
	}
	return fmt.Sprintf("%s %s · confidence %.0f %% · %s", f.Class, state, f.Confidence*100, f.Severity)
}

// life tells what the incident went through beside its evidence.
func life(f *event.Finding) []Line {
	var lines []Line
	if f.Resolution != "" {
		lines = append(lines, Line{"resolved", f.Resolution})
	}
	switch n := f.MaskedRestarts; {
	case n == 1:
		lines = append(lines, Line{"restarts", "1 process life ended while it was open; a restart hides it and mends nothing"})
	case n > 1:
		lines = append(lines, Line{"restarts", fmt.Sprintf("%d process lives ended while it was open; a restart hides it and mends nothing", n)})
	}
	if f.Alike > 1 {
		text := fmt.Sprintf("%d slots of %s have an open incident of this class: %s", f.Alike, f.Group, strings.Join(f.AlikeSlots, ", "))
		if more := f.Alike - len(f.AlikeSlots); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, Line{"alike", text})
	}
	return lines
}

func where(f *event.Finding) (lines []Line) {
	add := func(name, value string) {
		if value != "" {
			lines = append(lines, Line{name, value})
		}
	}
	name, key := cmp.Or(f.Subject.Kind, "subject"), f.Subject.Key
	switch {
	case f.Slot != "" && (name == "worker" || name == "instance" || name == "subject"):
		key = f.Slot // of a worker that is started again tomorrow
	case f.Slot != "":
		defer func() { lines = slices.Insert(lines, 1, Line{"worker", f.Slot}) }()
	}
	add(name, key)
	if w := f.Worker; w != nil {
		add("model", w.Model)
		add("release", release(f))
		add("pod", w.Pod)
		add("host", hostOf(f))
		if w.Pid != 0 {
			add("pid", strconv.FormatInt(w.Pid, 10))
		}
		add("role", w.Role)
		if w.Rank != nil {
			add("rank", strconv.FormatInt(*w.Rank, 10))
		}
		add("engine", strings.TrimSpace(w.Engine+" "+f.EngineVersion))
		if name != "gpu" {
			add("gpu", strings.Join(w.GpuUuids, ", "))
		}
	} else {
		add("release", f.Release)
		add("host", hostOf(f))
		add("engine", f.EngineVersion)
	}
	add("torch", f.TorchVersion)
	add("alloc conf", f.AllocConf)
	return lines
}

// release is what runs there; empty when unknown.
func release(f *event.Finding) string { return cmp.Or(f.Release, f.Worker.GetRelease()) }

// hostOf reads the host from the labels, or from a key, all of which begin with cluster/host.
func hostOf(f *event.Finding) string {
	if host := f.Labels["host"]; host != "" {
		return host
	}
	for _, key := range []string{f.Slot, f.Subject.Key} {
		if parts := strings.Split(key, "/"); len(parts) >= 2 {
			return parts[1]
		}
	}
	return ""
}

func measures(f *event.Finding) []Line {
	var lines []Line
	if g := f.Growth; g != nil {
		unit := g.Unit + "/h"
		lines = append(lines, Line{"growth", fmt.Sprintf("%s (95 %%: %s to %s)",
			event.FormatQuantity(g.Value, unit), event.FormatQuantity(g.Low, unit), event.FormatQuantity(g.High, unit))})
	}
	for _, m := range f.Evidence {
		if f.Growth != nil && strings.HasSuffix(m.Name, ".growth") && m.Value == f.Growth.Value {
			continue // it stands above, with its bounds
		}
		lines = append(lines, Line{m.Name, event.FormatQuantity(m.Value, m.Unit)})
	}
	if m := f.PerRequest; m != nil && !evident(f, ".per_request") {
		lines = append(lines, Line{"per request", event.FormatQuantity(m.Value, m.Unit)})
	}
	if m := f.PerAbort; m != nil && !evident(f, ".per_abort") {
		lines = append(lines, Line{"per abort", event.FormatQuantity(m.Value, m.Unit)})
	}
	if !f.Onset.IsZero() {
		lines = append(lines, Line{"onset", clock(f.Onset)})
	}
	return lines
}

// evident says that a measure of that name is a part of the evidence.
func evident(f *event.Finding, suffix string) bool {
	return slices.ContainsFunc(f.Evidence, func(m event.Measure) bool { return strings.HasSuffix(m.Name, suffix) })
}

// held are the stacks that a snapshot names, short: size, line, growth.
func held(f *event.Finding) []string {
	const most, frames = 3, 2
	var lines []string
	for _, h := range f.Holders[:min(len(f.Holders), most)] {
		line := event.FormatQuantity(float64(h.LiveBytes), "bytes") + " at " + strings.Join(h.Frames[:min(len(h.Frames), frames)], ", from ")
		if g := h.GrowthBytes; g != nil && *g > 0 {
			line += ", " + event.FormatQuantity(float64(*g), "bytes") + " more than in an earlier snapshot"
		}
		lines = append(lines, line)
	}
	if f.Snapshot != "" {
		lines = append(lines, "snapshot on the host: "+f.Snapshot)
	}
	return lines
}

func together(symptoms []event.Symptom) []string {
	var lines []string
	for _, s := range symptoms {
		line := s.Name + " at " + clock(s.Time) + ", " + lag(s.LagSeconds)
		if s.Text != "" {
			line += ": " + s.Text
		}
		lines = append(lines, line)
	}
	return lines
}

// lag says when a symptom came, counted from the onset of the finding.
func lag(seconds float64) string {
	d := time.Duration(math.Abs(seconds) * float64(time.Second)).Round(time.Second)
	switch {
	case d == 0:
		return "at the onset"
	case seconds < 0:
		return duration(d) + " before the onset"
	}
	return duration(d) + " after the onset"
}

func duration(d time.Duration) string {
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}

func against(list []event.CounterEvidence) []Line {
	var lines []Line
	for _, one := range list {
		value := strings.ReplaceAll(one.State, "_", " ")
		if one.Text != "" {
			value += ": " + one.Text
		}
		lines = append(lines, Line{one.Name, value})
	}
	return lines
}

// forecast is an interval and says that it is one: a risk indicator never promises an hour.
func forecast(i *event.Interval) string {
	if i == nil || math.IsNaN(i.Low) || math.IsNaN(i.High) {
		return ""
	}
	if math.IsInf(i.High, 1) {
		return fmt.Sprintf("limit reached in %s or later, if growth goes on as it did", event.FormatQuantity(i.Low, "hours"))
	}
	return fmt.Sprintf("limit reached in %s to %s, if growth goes on as it did",
		event.FormatQuantity(i.Low, "hours"), event.FormatQuantity(i.High, "hours"))
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// quote makes text safe inside a SQL string that stands inside a double-quoted shell word. What neither needs is left out.
func quote(text string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("'\"\\`$!", r) || r < ' ' {
			return '_'
		}
		return r
	}, text)
}

// Digest is the same for two cards that read the same but for the time of their latest finding.
func (c Card) Digest() string {
	c.Changed, c.Finding = time.Time{}, nil
	sum := sha256.Sum256(fmt.Appendf(nil, "%#v", c))
	return hex.EncodeToString(sum[:12])
}
