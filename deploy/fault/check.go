package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// state is what was found at one look at everything.
type state struct {
	Problems   []string
	Messages   int            // of the event stream
	Repeats    int            // messages that stand in the stream twice
	Events     map[string]int // by body
	Readings   int            // that were compared with the store
	Incidents  int
	Findings   int
	Posts      int
	Digests    int
	Undelivery []string // what consumers still have before them
}

func (s *state) blame(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

func (s *state) list(what string, all []string) {
	if len(all) == 0 {
		return
	}
	shown := all[:min(len(all), examples)]
	s.blame("%s: %d\n  %s", what, len(all), strings.Join(shown, "\n  "))
}

// look compares everything with the broker, whose streams it reads from where the ledger has come to. With quick it leaves out the rows
// while anything else is not as it should be.
func (w *world) look(ctx context.Context, l *ledger, quick bool) (*state, error) {
	conn, js, err := w.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	s := new(state)
	if err := l.read(ctx, js); err != nil {
		return nil, err
	}
	s.Messages, s.Repeats, s.Events, s.Findings = len(l.events), l.repeats(), l.counts(), len(l.findings)
	w.checkArrival(s, l)
	want, got := story(l.judged), story(l.findings)
	s.Incidents = len(want)
	s.list("incidents differ from an undisturbed run", compareStories(want, got))
	s.list("findings stand in the stream twice", l.twice())
	if err := w.checkSlack(ctx, s, l, js); err != nil {
		return nil, err
	}
	waiting, _, err := pendings(ctx, js)
	if err != nil {
		return nil, err
	}
	if len(waiting) > 0 {
		s.Undelivery = slices.Sorted(maps.Keys(waiting))
		s.list("consumers have messages before them", s.Undelivery)
	}
	if quick && len(s.Problems) > 0 {
		return s, nil
	}
	d, err := compareRows(l.expected, func(visit func(reading)) error { return w.stored(ctx, visit) })
	if err != nil {
		return nil, err
	}
	s.Readings = d.Rows
	if !d.ok() {
		s.blame("the store differs from the stream: of %d readings %d are missing, %d are stored too often, %d were never sent\n  %s", d.Rows, d.Missing, d.Twice, d.Strange, strings.Join(d.Examples, "\n  "))
	}
	return s, nil
}

// checkArrival compares the stream with what the broker acknowledged to the collectors, and with what their spools held.
func (w *world) checkArrival(s *state, l *ledger) {
	marks, ids := l.marks(), l.ids()
	byHost, excused := map[string]int{}, l.excused()
	for _, one := range l.events {
		if !one.repeat {
			byHost[one.batch.Host.Name] += len(one.batch.Events)
		}
	}
	for _, c := range w.collectors {
		if !marks[c.part.mark(c.life)] {
			s.blame("collector %s has not played its recording to the end", c.part.name)
		}
		var lost []string
		for id := range c.tap.acknowledged() {
			if ids[id] == 0 {
				lost = append(lost, id)
			}
		}
		slices.Sort(lost)
		s.list("messages that the broker acknowledged to "+c.part.name+" are not in the stream", lost)
		for _, copied := range c.copies {
			left, err := left(copied)
			if err != nil {
				s.blame("%v", err)
			}
			s.list("messages of the spool that "+c.part.name+" left when it was killed did not arrive", slices.DeleteFunc(left, func(id string) bool { return ids[id] > 0 }))
		}
		lives, _ := c.counts()
		if lives > 1 {
			continue // what was being played when it was killed is lost with it
		}
		hosts := map[string]bool{}
		arrived, gaveUp := 0, false
		for _, e := range c.part.events {
			if name := e.Host.Name; !hosts[name] {
				hosts[name] = true
				arrived += byHost[name]
				gaveUp = gaveUp || excused[name]
			}
		}
		if played := len(c.part.events); arrived > played || arrived < played && !gaveUp {
			s.blame("collector %s played %d events, and %d arrived", c.part.name, len(c.part.events), arrived)
		}
	}
	s.list("messages are missing or out of order in a lane", l.gaps())
}

// checkSlack compares the channel with the findings: one message for each incident that is to be told, saying its last state.
func (w *world) checkSlack(ctx context.Context, s *state, l *ledger, js jetstream.JetStream) error {
	last, announced := map[string]*event.Finding{}, map[string]bool{}
	for _, f := range l.findings {
		last[f.Incident] = f
		if f.State != event.Resolved && f.Severity != event.Info {
			announced[f.Incident] = true
		}
	}
	said := map[string][]posted{}
	for _, m := range w.slack.said() {
		said[m.Incident] = append(said[m.Incident], m)
		s.Posts++
	}
	for _, incident := range slices.Sorted(maps.Keys(said)) {
		if len(said[incident]) > 1 {
			s.blame("incident %s was announced %d times: %s", incident, len(said[incident]), times(said[incident]))
		}
		switch {
		case strings.HasPrefix(incident, "storm-"):
			s.Digests++
		case !announced[incident]:
			s.blame("a message is about incident %q, which is not to be announced", incident)
		}
	}
	for _, text := range w.slack.repeated() {
		s.blame("a reply stands twice in its thread: %q", text)
	}
	outbox, err := js.KeyValue(ctx, broker.BucketOutbox)
	if err != nil {
		return fmt.Errorf("read the outbox: %w", err)
	}
	told := map[string][]string{} // message → states of what it tells about
	for _, incident := range slices.Sorted(maps.Keys(announced)) {
		home := incident
		if len(said[incident]) == 0 {
			if home, err = digestOf(ctx, outbox, incident); err != nil {
				return err
			}
		}
		if home == "" || len(said[home]) == 0 {
			s.blame("incident %s (%s %s) was not announced", incident, last[incident].Class, last[incident].State)
			continue
		}
		told[home] = append(told[home], last[incident].State)
	}
	for _, home := range slices.Sorted(maps.Keys(told)) {
		if state := together(told[home]); !strings.HasPrefix(home, "storm-") && said[home][0].State != state {
			s.blame("the message of incident %s says %s, it is %s", home, said[home][0].State, state)
		}
	}
	return nil
}

// together is the state of a message that tells about several incidents: open while one of them is.
func together(states []string) string {
	for _, state := range []string{event.Confirmed, event.Suspected} {
		if slices.Contains(states, state) {
			return state
		}
	}
	return event.Resolved
}

func times(all []posted) string {
	var out []string
	for _, m := range all {
		out = append(out, m.At.UTC().Format("15:04:05.000"))
	}
	return strings.Join(out, ", ")
}

// digestOf returns the digest in which an incident was told; empty where it has none.
func digestOf(ctx context.Context, outbox jetstream.KeyValue, incident string) (string, error) {
	found, err := outbox.Get(ctx, incident)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the outbox: %w", err)
	}
	var record struct {
		Storm string `json:"storm"`
	}
	if err := json.Unmarshal(found.Value(), &record); err != nil {
		return "", fmt.Errorf("read the outbox record of %s: %w", incident, err)
	}
	return record.Storm, nil
}
