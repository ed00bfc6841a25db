package rulebook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// hearing is for how long heartbeats are listened to before it is known who lives: they come every second.
const hearing = 2500 * time.Millisecond

// await waits until every processor whose heart beats says what became of a generation, and prints that. Its error names those that do not
// run it.
func (c *Broker) await(ctx context.Context, book *Book, js jetstream.JetStream, generation uint64, most time.Duration) error {
	if most <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	enough := c.hearing
	if enough == 0 {
		enough = hearing
	}
	living, said, err := listen(ctx, book, js, generation, enough)
	if err != nil {
		return err
	}
	if len(living) == 0 {
		fmt.Fprintln(c.Stderr, "no processor runs: the rules are loaded when one starts")
		return nil
	}
	var wrongs []string
	well := 0
	for _, name := range living {
		o, answered := said[name]
		switch {
		case !answered || o.Generation < generation:
			wrongs = append(wrongs, fmt.Sprintf("%s has not said within %s what became of it", name, most))
		case o.Generation > generation:
			wrongs = append(wrongs, fmt.Sprintf("%s was given generation %d meanwhile", name, o.Generation))
		case o.OK:
			if well++; len(o.Problems) > 0 {
				fmt.Fprintf(c.Stderr, "%s runs it, but not the newest of its own files:\n%s\n", name, indent(o.Problems))
			}
		default:
			wrongs = append(wrongs, fmt.Sprintf("%s goes on with generation %d, version %s:\n%s", name, o.Running, plain(o.Version), indent(o.Problems)))
		}
	}
	run := "run"
	if len(living) == 1 {
		run = "runs"
	}
	if err := c.say(fmt.Sprintf("%d of %s %s generation %d", well, counted(len(living), "processor"), run, generation)); err != nil {
		return err
	}
	if len(wrongs) == 0 {
		return nil
	}
	for _, text := range wrongs {
		fmt.Fprintln(c.Stderr, text)
	}
	return &wrong{what: fmt.Sprintf("generation %d does not run everywhere: %d of %s", generation, len(living)-well, counted(len(living), "processor")), remedy: "`lowtide rules rollback` takes it back; where the old rules still run, nothing was lost"}
}

func indent(problems []string) string {
	var out []string
	for _, p := range problems {
		for line := range strings.SplitSeq(p, "\n") {
			out = append(out, "    "+printable(line))
		}
	}
	return strings.Join(out, "\n")
}

// listen hears for so long who lives, and what they say of a generation until all who live have said it, or ctx ends.
func listen(ctx context.Context, book *Book, js jetstream.JetStream, generation uint64, long time.Duration) (living []string, said map[string]Outcome, err error) {
	members, err := js.KeyValue(ctx, broker.BucketMembers)
	if err != nil {
		return nil, nil, broker.Explain("open bucket "+broker.BucketMembers, err)
	}
	beats, err := members.WatchAll(ctx)
	if err != nil {
		return nil, nil, broker.Explain("listen to processors", err)
	}
	defer func() { _ = beats.Stop() }() // nothing more is read
	words, err := book.kv.Watch(ctx, outcomes+"*", jetstream.IgnoreDeletes())
	if err != nil {
		return nil, nil, broker.Explain("listen to processors", err)
	}
	defer func() { _ = words.Stop() }()
	alive, now := map[string]bool{}, false
	said = map[string]Outcome{}
	heard := time.NewTimer(long)
	defer heard.Stop()
	enough := false
	complete := func() bool {
		return !slices.ContainsFunc(slices.Collect(maps.Keys(alive)), func(name string) bool { return said[name].Generation < generation })
	}
	for !enough || !complete() {
		select {
		case entry, open := <-beats.Updates():
			switch {
			case !open:
				return slices.Sorted(maps.Keys(alive)), said, nil
			case entry == nil:
				now = true // what comes from here on is said now
			case entry.Operation() != jetstream.KeyValuePut || !judges(entry.Value()):
				delete(alive, entry.Key())
			case now:
				alive[entry.Key()] = true
			}
		case entry, open := <-words.Updates():
			if !open {
				return slices.Sorted(maps.Keys(alive)), said, nil
			}
			if entry != nil {
				if o, err := decodeOutcome(entry.Value()); err == nil {
					said[strings.TrimPrefix(entry.Key(), outcomes)] = o
				}
			}
		case <-heard.C:
			enough = true
		case <-ctx.Done():
			return slices.Sorted(maps.Keys(alive)), said, nil
		}
	}
	return slices.Sorted(maps.Keys(alive)), said, nil
}

// judges says whether a heartbeat is of a processor that judges, and goes on to.
func judges(beat []byte) bool {
	var m struct {
		Roles   map[string]int `json:"roles"`
		Leaving bool           `json:"leaving"`
	}
	return len(beat) <= broker.MaxMember && json.Unmarshal(beat, &m) == nil && !m.Leaving && m.Roles["judge"] > 0
}
