package sink

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
)

// The recordings of the matrix, made by twenty workers on one GPU, go into the store as one host's, with what the judge says of them: each
// planted class is one row of incidents with its pid, the line that holds the memory stands in it, and every snapshot can be asked for.
func TestMatrixInTheStore(t *testing.T) {
	folder := filepath.Join("..", "collector", "gputest", "testdata", "matrix")
	text, err := os.ReadFile(filepath.Join(folder, "labels.json"))
	if err != nil {
		t.Fatal(err)
	}
	var labels map[string]struct {
		Class string `json:"class"`
		Pid   int64  `json:"pid"`
	}
	if err := json.Unmarshal(text, &labels); err != nil {
		t.Fatal(err)
	}
	f := startStore(t)
	var events []*event.Event
	snapshots, planted := 0, 0
	for name, label := range labels {
		if label.Class != "" {
			planted++
		}
		for _, e := range recorded(t, filepath.Join(folder, name+".ndjson.gz")) {
			if e.Snapshot != nil {
				snapshots++
			}
			events = append(events, e)
		}
	}
	slices.SortStableFunc(events, func(a, b *event.Event) int { return a.At().Compare(b.At()) })
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	judge := processor.NewJudge(pack, func(one *event.Finding) { f.findings = append(f.findings, one) })
	block := Block{Token: "matrix"}
	add := func(m Message) {
		m.Sequence = uint64(len(block.Messages) + 1)
		block.Messages = append(block.Messages, m)
	}
	for chunk := range slices.Chunk(events, 2000) {
		for _, one := range chunk {
			judge.Apply(one)
		}
		add(Message{Time: chunk[0].At(), Batch: &event.Batch{Host: chunk[0].Host, Events: chunk}})
	}
	judge.Flush()
	for _, one := range f.findings {
		add(Message{Time: one.Time, Finding: one})
	}
	if err := f.store.Insert(t.Context(), block); err != nil {
		t.Fatal(err)
	}
	if rows := f.rows(t, "SELECT count() AS n FROM events WHERE event = 'snapshot'", nil); snapshots < 5 || rows[0]["n"] != float64(snapshots) {
		t.Errorf("%v snapshots stored of %d", rows[0]["n"], snapshots)
	}
	incidents := f.rows(t, "SELECT class, pid, holders FROM incidents FINAL", nil)
	if planted < 15 || len(incidents) != planted {
		t.Errorf("%d incidents of %d planted failures", len(incidents), planted)
	}
	for name, label := range labels {
		at := slices.IndexFunc(incidents, func(row map[string]any) bool { return row["pid"] == float64(label.Pid) })
		switch {
		case label.Class == "" && at >= 0:
			t.Errorf("%s: %v", name, incidents[at])
		case label.Class != "" && (at < 0 || incidents[at]["class"] != label.Class):
			t.Errorf("%s: no incident of %s with pid %d", name, label.Class, label.Pid)
		case name == "retention" && !strings.Contains(incidents[at]["holders"].(string), "model.py"):
			t.Errorf("%s is held by %v", name, incidents[at]["holders"])
		}
	}
}

// recorded are the events of a recording.
func recorded(t *testing.T, path string) (all []*event.Event) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	reader, err := event.NewReader(file, path)
	if err != nil {
		t.Fatal(err)
	}
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
}
