package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// summary adds runs up.
type summary struct {
	First     uint64         `json:"first_seed"`
	Kinds     []Kind         `json:"kinds"`
	Runs      int            `json:"runs"`
	Passed    int            `json:"passed"`
	Failed    int            `json:"failed"`
	Seeds     []uint64       `json:"failed_seeds,omitempty"`
	Faults    map[string]int `json:"faults"` // by kind
	Hits      map[Kind]int   `json:"hits"`
	Messages  int            `json:"messages"`
	Repeats   int            `json:"repeats"`
	Events    int            `json:"events"`
	Readings  int            `json:"readings"`
	Incidents int            `json:"incidents"`
	Findings  int            `json:"findings"`
	Posts     int            `json:"posts"`
	Digests   int            `json:"digests"`
	Accidents map[string]int `json:"accidents"`     // lives that ended by themselves, by part
	Seconds   float64        `json:"seconds"`       // from the first start to the last end
	Drains    [3]float64     `json:"drain_seconds"` // median, 95th percentile, longest
	drains    []float64
	began     time.Time
}

func newSummary(first uint64, s Shape) *summary {
	return &summary{First: first, Kinds: s.Kinds(), Faults: map[string]int{}, Hits: map[Kind]int{}, Accidents: map[string]int{}, began: time.Now()}
}

func (t *summary) add(r *result) {
	t.Runs++
	if r.Passed {
		t.Passed++
		t.drains = append(t.drains, r.Drained)
	} else {
		t.Failed++
		t.Seeds = append(t.Seeds, r.Seed)
	}
	for _, line := range r.Schedule {
		if words := strings.Fields(line); len(words) > 1 {
			t.Faults[words[1]]++
		}
	}
	for kind, n := range r.Hits {
		t.Hits[kind] += n
	}
	for name, all := range r.Accidents {
		for _, said := range all {
			t.Accidents[strings.TrimRight(name, "0123456789")+": "+alike(said)]++
		}
	}
	for _, n := range r.Events {
		t.Events += n
	}
	t.Messages += r.Messages
	t.Repeats += r.Repeats
	t.Readings += r.Readings
	t.Incidents += r.Incidents
	t.Findings += r.Findings
	t.Posts += r.Posts
	t.Digests += r.Digests
}

func (t *summary) finish() {
	t.Seconds = time.Since(t.began).Seconds()
	slices.Sort(t.Seeds)
	slices.Sort(t.drains)
	if n := len(t.drains); n > 0 {
		t.Drains = [3]float64{t.drains[n/2], t.drains[n*95/100], t.drains[n-1]}
	}
}

// print writes the summary for people.
func (t *summary) print(out io.Writer) {
	fmt.Fprintf(out, "\nseeds %d to %d: %d runs, %d passed, %d failed, in %.0f s\n", t.First, t.First+uint64(max(t.Runs, 1))-1, t.Runs, t.Passed, t.Failed, t.Seconds)
	if len(t.Seeds) > 0 {
		fmt.Fprintf(out, "failed seeds: %v\n", t.Seeds)
	}
	fmt.Fprintf(out, "checked by id: %d messages (%d sent twice), %d events, %d readings in the store, %d incidents, %d findings, %d messages to people (%d digests)\n",
		t.Messages, t.Repeats, t.Events, t.Readings, t.Incidents, t.Findings, t.Posts, t.Digests)
	fmt.Fprintf(out, "at rest after the last fault: median %.0f s, 95th percentile %.0f s, longest %.0f s\n", t.Drains[0], t.Drains[1], t.Drains[2])
	fmt.Fprintf(out, "faults: %s\n", counted(t.Faults))
	if len(t.Accidents) > 0 {
		fmt.Fprintln(out, "ended by themselves and were started again:")
		for _, what := range slices.Sorted(maps.Keys(t.Accidents)) {
			fmt.Fprintf(out, "  %d %s\n", t.Accidents[what], what)
		}
	}
}

func counted(all map[string]int) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, fmt.Sprintf("%s %d", name, all[name]))
	}
	return strings.Join(out, ", ")
}

// print writes one run.
func (c *command) print(out io.Writer, r *result) {
	if c.JSON {
		_ = json.NewEncoder(out).Encode(r)
		return
	}
	word := "ok  "
	if !r.Passed {
		word = "FAIL"
	}
	fmt.Fprintf(out, "%s seed %d: %.0f s, at rest after %.0f s, %d processors, %d faults, %d messages, %d readings, %d incidents, %d posts\n",
		word, r.Seed, r.Seconds, r.Drained, r.Processors, len(r.Schedule), r.Messages, r.Readings, r.Incidents, r.Posts)
	if r.Passed {
		return
	}
	fmt.Fprintf(out, "  schedule:\n    %s\n", strings.Join(r.Schedule, "\n    "))
	for _, problem := range r.Problems {
		fmt.Fprintf(out, "  - %s\n", strings.ReplaceAll(problem, "\n", "\n    "))
	}
	fmt.Fprintf(out, "  again: go run ./deploy/fault --seed %d; what it left: %s\n", r.Seed, r.Folder)
}

// alike leaves out of an error what tells one run from another, so that the same ones are counted together.
func alike(said string) string {
	said = particular.ReplaceAllString(strings.TrimPrefix(said, "error: "), "N")
	return said[:min(len(said), 90)]
}

var particular = regexp.MustCompile(`[0-9]+(\.[0-9]+)*(:[0-9]+)?`)
