package report

import (
	"bytes"
	"strings"
	"testing"

	"lowtide/event"
)

func TestReportNamesTheHolders(t *testing.T) {
	f := &event.Finding{ID: "f1", Incident: "i", Time: at(4), Class: "retention", State: event.Suspected, Severity: event.Ticket, Labels: map[string]string{"host": "gpu-07"},
		Subject: event.Subject{Kind: "worker", Key: "k"}, Summary: "Live memory rises", Snapshot: "f.pickle",
		Holders: []event.Holder{
			{Frames: []string{"worker.py:91 alloc", "worker.py:153 serve", "run.py:2 main", "runpy.py:1 run"}, LiveBytes: 5 << 30, Blocks: 347, GrowthBytes: event.Ptr(int64(340 << 20))},
			{Frames: []string{"load.py:7 weights"}, LiveBytes: 2 << 30, Blocks: 1, GrowthBytes: event.Ptr(int64(0))},
		}}
	for class, heading := range map[string]string{"retention": "What holds the memory, by the last snapshot", "stream_backlog": "What waits on other streams, by the last snapshot",
		"fragmentation": "What lives in most pieces, by the last snapshot"} {
		f.Class = class
		var out bytes.Buffer
		if err := WriteCase(&out, Case{Findings: []*event.Finding{f}}, Style{ASCII: true}); err != nil {
			t.Fatal(err)
		}
		want := heading + "\n" +
			"  5 GiB  worker.py:91 alloc < worker.py:153 serve < run.py:2 main, 347 blocks, 340 MiB more than in\n" +
			"         an earlier snapshot\n" +
			"  2 GiB  load.py:7 weights, 1 block, no more than in an earlier snapshot\n" +
			"  file   f.pickle, on gpu-07\n"
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant\n%s", out.String(), want)
		}
	}
	f.Holders, f.Snapshot = nil, ""
	var out bytes.Buffer
	if err := WriteCase(&out, Case{Findings: []*event.Finding{f}}, Style{}); err != nil || strings.Contains(out.String(), "snapshot") {
		t.Errorf("without a snapshot: %s (%v)", out.String(), err)
	}
}
