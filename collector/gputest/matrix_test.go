package gputest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/worker"
	"lowtide/rules"
)

// label is what a recording of the matrix must be judged as. matrix.py writes it beside the recordings that came out right.
type label struct {
	Class    string   `json:"class"` // empty: a healthy process
	Pid      int64    `json:"pid"`
	Planted  string   `json:"planted"`
	State    string   `json:"state"`    // the least that it must reach
	Severity string   `json:"severity"` // empty: a ticket, or a page where the shared card was slow, too
	Holder   []string `json:"holder"`   // module and function that hold the memory
}

// TestMatrixRecordings replays what the matrix recorded on a GPU. testdata/matrix is the folder matrix of a run's --out.
func TestMatrixRecordings(t *testing.T) {
	const folder = "testdata/matrix"
	text, err := os.ReadFile(filepath.Join(folder, "labels.json"))
	if os.IsNotExist(err) {
		t.Skip("SKIPPED: testdata/matrix has no recordings: run make gpu-test on a machine with a GPU and copy OUT/matrix here")
	}
	if err != nil {
		t.Fatal(err)
	}
	var labels map[string]label
	if err := json.Unmarshal(text, &labels); err != nil {
		t.Fatalf("read labels: %v", err)
	}
	recordings, err := filepath.Glob(filepath.Join(folder, "*.ndjson.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if len(recordings) == 0 || len(recordings) != len(labels) {
		t.Errorf("%d recordings and %d labels", len(recordings), len(labels))
	}
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range recordings {
		name := processor.RecordingName(path)
		t.Run(name, func(t *testing.T) {
			want, ok := labels[name]
			if !ok {
				t.Fatal("it has no label")
			}
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			var found []*event.Finding
			reports, warnings, err := processor.Replay(t.Context(), pack, file, path, func(f *event.Finding) { found = append(found, f) })
			if err != nil || len(warnings) > 0 {
				t.Fatalf("replay: %v %v", err, warnings)
			}
			// Of a worker that ended hours before its recording does, only the findings are left.
			if want.Class == "" && !slices.ContainsFunc(reports, func(r worker.Report) bool { return r.Who.GetPid() == want.Pid }) {
				t.Errorf("no worker has pid %d", want.Pid)
			}
			for _, wrong := range check(want, found) {
				t.Error(wrong)
			}
		})
	}
}

// check says what of the findings is not as the label wants it.
func check(want label, found []*event.Finding) (wrong []string) {
	severities := []string{event.Info, event.Ticket, event.Page}
	rank, state, incidents := 0, "", map[string]bool{}
	var holder string
	for _, f := range found {
		if f.Class != want.Class || f.Worker.GetPid() != want.Pid {
			wrong = append(wrong, "found "+f.Class+" "+f.State+": "+f.Summary)
			continue
		}
		incidents[f.Incident] = true
		rank = max(rank, slices.Index(severities, f.Severity))
		if f.State == "confirmed" || state == "" {
			state = f.State
		}
		// What was there before stacks were recorded has none.
		if i := slices.IndexFunc(f.Holders, func(h event.Holder) bool { return len(h.Frames) > 0 }); i >= 0 {
			holder = f.Holders[i].Frames[0]
		}
	}
	if want.Class == "" {
		return wrong
	}
	if len(incidents) != 1 {
		return append(wrong, fmt.Sprintf("%d incidents of %s, want one", len(incidents), want.Class))
	}
	if want.State == "confirmed" && state != "confirmed" {
		wrong = append(wrong, want.Class+" is "+state+", want confirmed")
	}
	if want.Severity != "" && severities[rank] != want.Severity || rank == 0 {
		wrong = append(wrong, want.Class+" is "+severities[rank]+", want "+cmp.Or(want.Severity, "ticket or page"))
	}
	if len(want.Holder) == 2 && !regexp.MustCompile(`(^|/)`+regexp.QuoteMeta(want.Holder[0])+`:\d+ (\w+\.)*`+regexp.QuoteMeta(want.Holder[1])+`$`).MatchString(holder) {
		wrong = append(wrong, "the first holder is "+holder)
	}
	return wrong
}

// The check itself, on findings that are made up: it must not pass what is wrong.
func TestMatrixCheck(t *testing.T) {
	want := label{Class: "retention", Pid: 9, State: "confirmed", Severity: event.Ticket, Holder: []string{"model.py", "keep"}}
	finding := func(change func(*event.Finding)) []*event.Finding {
		f := &event.Finding{Class: "retention", Incident: "i", State: "confirmed", Severity: event.Ticket, Worker: &event.Worker{Pid: 9},
			Holders: []event.Holder{{Frames: []string{"gputest/model.py:221 keep", "faults.py:1 aborted"}}}}
		change(f)
		return []*event.Finding{f}
	}
	if wrong := check(want, finding(func(*event.Finding) {})); len(wrong) > 0 {
		t.Errorf("as it must be: %q", wrong)
	}
	want.Severity = ""
	for severity, right := range map[string]bool{event.Info: false, event.Ticket: true, event.Page: true} {
		if wrong := check(want, finding(func(f *event.Finding) { f.Severity = severity })); len(wrong) == 0 != right {
			t.Errorf("%s: %q", severity, wrong)
		}
	}
	want.Severity = event.Ticket
	for name, found := range map[string][]*event.Finding{
		"nothing":  nil,
		"class":    finding(func(f *event.Finding) { f.Class = "native_growth" }),
		"pid":      finding(func(f *event.Finding) { f.Worker = &event.Worker{Pid: 8} }),
		"state":    finding(func(f *event.Finding) { f.State = "suspected" }),
		"severity": finding(func(f *event.Finding) { f.Severity = event.Page }),
		"holder":   finding(func(f *event.Finding) { f.Holders[0].Frames[0] = "engine.py:5 keep" }),
		"none":     finding(func(f *event.Finding) { f.Holders = nil }),
		"two":      append(finding(func(*event.Finding) {}), finding(func(f *event.Finding) { f.Incident = "j" })...),
	} {
		if len(check(want, found)) == 0 {
			t.Errorf("%s: passed", name)
		}
	}
	if wrong := check(label{Pid: 9}, nil); len(wrong) > 0 {
		t.Errorf("healthy: %q", wrong)
	}
	if len(check(label{Pid: 9}, finding(func(*event.Finding) {}))) == 0 {
		t.Error("a healthy worker with a finding passed")
	}
}
