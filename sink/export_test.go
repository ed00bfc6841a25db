package sink

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
)

// verdicts are what was said of a host: by whom and what it was about, the transitions and the last word.
type verdicts map[string][]string

func (v verdicts) add(f *event.Finding) {
	about := cmp.Or(f.Slot, f.Subject.Key) + " " + f.Class
	v[about] = append(v[about], f.Time.UTC().Format(time.RFC3339Nano)+" "+f.State+" "+f.Severity+" "+f.Release)
}

// last leaves out when, and what was said before. Which of a tick's sources came first is not stored, and may move a transition by a tick.
func (v verdicts) last() verdicts {
	out := verdicts{}
	for about, said := range v {
		_, word, _ := strings.Cut(said[len(said)-1], " ")
		out[about] = []string{word}
	}
	return out
}

// exportedRecordings are all recordings of the repository, each on a host of its own, with what the judge says of them.
func exportedRecordings(t *testing.T) (hosts map[string][]*event.Event) {
	t.Helper()
	hosts = map[string][]*event.Event{}
	for _, folder := range []string{"../processor/testdata", "../collector/gputest/testdata/matrix"} {
		paths, err := filepath.Glob(filepath.Join(folder, "*.ndjson.gz"))
		if err != nil || len(paths) < 10 {
			t.Fatalf("%d recordings in %s, %v", len(paths), folder, err)
		}
		for _, path := range paths {
			name := "m-" + processor.RecordingName(path)
			if strings.HasSuffix(folder, "matrix") {
				name = "x-" + processor.RecordingName(path)
			}
			for _, e := range recorded(t, path) {
				e.Host = &event.Host{Cluster: "lab", Name: name, BootId: e.Host.BootId}
				hosts[name] = append(hosts[name], e)
			}
		}
	}
	return hosts
}

// Every recording that there is goes into the store, in blocks that end in the middle of a tick, and comes back as one that is judged the same.
func TestWhatIsStoredIsJudgedTheSame(t *testing.T) {
	f := startStore(t)
	pack, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	hosts := exportedRecordings(t)
	said := map[string]verdicts{}
	sequence := uint64(0)
	for name, events := range hosts {
		said[name] = verdicts{}
		judge := processor.NewJudge(pack, func(one *event.Finding) {
			said[name].add(one)
			f.findings = append(f.findings, one)
		})
		block := Block{Token: name}
		for chunk := range slices.Chunk(events, 997) {
			for _, one := range chunk {
				judge.Apply(one)
			}
			sequence++
			block.Token, block.Messages = fmt.Sprint(name, sequence), []Message{{Sequence: sequence, Time: chunk[0].At(), Batch: &event.Batch{Host: chunk[0].Host, Events: chunk}}}
			if err := f.store.Insert(t.Context(), block); err != nil {
				t.Fatal(err)
			}
		}
		judge.Flush()
	}
	var messages []Message
	for _, one := range f.findings {
		sequence++
		messages = append(messages, Message{Sequence: sequence, Time: one.Time, Finding: one})
	}
	if err := f.store.Insert(t.Context(), Block{Token: "findings", Messages: messages}); err != nil {
		t.Fatal(err)
	}
	for name, events := range hosts {
		first, last := events[0].At(), events[0].At()
		for _, e := range events {
			first, last = earlier(first, e.At()), later(last, e.At())
		}
		var out bytes.Buffer
		n, err := f.access.record(t.Context(), scope{[]string{"lab/" + name}, first, last.Add(time.Second)}, event.NewWriter(&out))
		if err != nil || n != len(events) {
			t.Errorf("%s: %d events came back of %d, %v", name, n, len(events), err)
			continue
		}
		again := verdicts{}
		if _, warnings, err := processor.Replay(t.Context(), pack, &out, name, again.add); err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v %v", name, err, warnings)
		}
		want := said[name]
		if strings.HasPrefix(name, "x-") { // of a collector, whose sources come as they come
			again, want = again.last(), want.last()
		}
		if !reflect.DeepEqual(again, want) {
			t.Errorf("%s is judged\n%v\nwant\n%v", name, again, want)
		}
	}
	t.Run("incidents", func(t *testing.T) { f.exportsIncidents(t, pack) })
	t.Run("refusals", f.exportRefusals)
}

// exportsIncidents asks for each incident by the command: the recording ends with what was last said of it.
func (f fleet) exportsIncidents(t *testing.T, pack *rules.Pack) {
	last, classes := map[string]*event.Finding{}, map[string]bool{}
	for _, one := range f.findings {
		last[one.Incident] = one
	}
	for id, want := range last {
		if classes[want.Class] {
			continue // one of each class
		}
		classes[want.Class] = true
		path := filepath.Join(t.TempDir(), id+".ndjson.gz")
		var messages bytes.Buffer
		c := ExportCommand{Access: f.access, Out: path, Before: 24 * time.Hour, Incident: id[:12], Stderr: &messages}
		if err := c.Run(t.Context()); err != nil {
			t.Errorf("%s %s: %v", want.Slot, want.Class, err)
			continue
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var got *event.Finding
		_, _, err = processor.Replay(t.Context(), pack, file, id, func(one *event.Finding) {
			if one.Slot == want.Slot && one.Subject == want.Subject && one.Class == want.Class {
				got = one
			}
		})
		file.Close()
		if err != nil || got == nil || got.State != want.State || got.Severity != want.Severity {
			t.Errorf("%s %s %s %s comes back as %+v, %v\n%s", want.Slot, want.Class, want.State, want.Severity, got, err, messages.String())
		}
		if !strings.Contains(messages.String(), want.Class+" "+want.State) || !strings.Contains(messages.String(), "lowtide replay "+path) {
			t.Errorf("it says %q", messages.String())
		}
	}
	if len(classes) < 12 {
		t.Errorf("incidents of %d classes, there are more: %v", len(classes), classes)
	}
}

func (f fleet) exportRefusals(t *testing.T) {
	leak := f.findings[slices.IndexFunc(f.findings, func(one *event.Finding) bool {
		return strings.HasPrefix(one.Slot, "lab/m-leak/") && one.State == event.Confirmed
	})]
	id := leak.Incident
	there := filepath.Join(t.TempDir(), "there.ndjson")
	if err := os.WriteFile(there, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := []byte(id)
	wrong[3] = 'z'
	for _, test := range []struct {
		c          ExportCommand
		want, hint string
	}{
		{ExportCommand{Incident: id, Out: there}, "is there already", "--force"},
		{ExportCommand{Incident: string(wrong), Out: "x.ndjson"}, "the nearest are " + id, "lists them"},
		{ExportCommand{Incident: "", Out: "x.ndjson"}, "begins more than one incident", "lists them"},
		{ExportCommand{Incident: id, Out: "no/such/folder/x.ndjson"}, "no such file", "--out names a file"},
		{ExportCommand{Incident: id, Out: "x.ndjson", Peers: -1}, "not below zero", "for example"},
	} {
		test.c.Access, test.c.Stderr = f.access, new(bytes.Buffer)
		err := test.c.Run(t.Context())
		var hinted interface{ Hint() string }
		if err == nil || !strings.Contains(err.Error(), test.want) || !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), test.hint) {
			t.Errorf("%+v: %v, want %q and the hint %q", test.c, err, test.want, test.hint)
		}
	}
	if text, _ := os.ReadFile(there); string(text) != "mine" {
		t.Errorf("the file that was there now is %q", text)
	}
	force := ExportCommand{Access: f.access, Incident: id, Out: there, Force: true, Before: time.Hour, Stderr: new(bytes.Buffer)}
	if err := force.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(there); !bytes.HasPrefix(text, []byte(`{"time":`)) {
		t.Errorf("--force left %.20q", text)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(there), ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files stay beside it: %v, %v", left, err)
	}
	// The first half of its samples is forgotten, as after 30 days.
	if err := f.store.exec(t.Context(), "DELETE FROM lowtide.worker_samples WHERE host = 'm-leak' AND time < toDateTime64('"+
		stamp(leak.Time)+"', 3, 'UTC')"); err != nil {
		t.Fatal(err)
	}
	old := ExportCommand{Access: f.access, Incident: id, Out: filepath.Join(t.TempDir(), "old.ndjson"), Before: 24 * time.Hour, Stderr: new(bytes.Buffer)}
	if err := old.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "its samples are there from ") {
		t.Errorf("a forgotten half: %v", err)
	}
	old.Partial = true
	if err := old.Run(t.Context()); err != nil {
		t.Errorf("--partial: %v", err)
	}
}

// An incident without workers, as of a card, needs none; a worker whose samples the rollup outlived is missed.
func TestForgottenSamplesAreMissed(t *testing.T) {
	at := func(hour int) *time.Time { return event.Ptr(tick.Add(time.Duration(hour) * time.Hour)) }
	in, s := exported{id: "i1", onset: *at(0), last: *at(2)}, scope{from: *at(-24), until: *at(3)}
	for _, test := range []struct {
		oldest, workers, known *time.Time
		want                   string
	}{
		{nil, nil, nil, "its samples are gone"},
		{at(-3), nil, at(-3), "the samples of its workers are gone"},
		{at(-24), at(-2), at(-20), "are there from 2026-03-01 10:00:00 on only; it needs those from 2026-02-28 12:00:00"},
		{at(2), at(2), nil, "are there from 2026-03-01 14:00:00 on only"},
		{at(-24), nil, nil, ""},
		{at(-5), at(-5), at(-5), ""}, // the process began then
	} {
		err := forgotten(in, s, test.oldest, test.workers, test.known)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}
