package report

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/processor/worker"
)

// Two lives of one slot: the first is suspected and dies, the second adds nothing yet, or resolves it.
func TestAnIncidentIsToldInEveryLifeOfItsSlot(t *testing.T) {
	first, second := lesson(), lesson()
	second.Who = proto.CloneOf(who)
	second.Who.Pid = 5000
	second.Key, second.First, second.Last = event.WorkerKey(host, second.Who), at(5), at(9)

	subjects, rest := Assign([]worker.Report{first, second}, []*event.Finding{suspected()})
	if len(rest) != 0 || len(subjects[0].Cases) != 1 || len(subjects[1].Cases) != 1 {
		t.Fatalf("cases %v and %v, rest %v", subjects[0].Cases, subjects[1].Cases, rest)
	}
	if c := subjects[1].Cases[0]; !c.Carried || !c.Open() {
		t.Errorf("the open incident of the slot is %+v in the second life", c)
	}

	done := suspected()
	done.ID, done.Time, done.State, done.Worker, done.Resolution = "f9", at(9), event.Resolved, second.Who, "level in release r42"
	done.Subject.Key = second.Key
	subjects, _ = Assign([]worker.Report{first, second}, []*event.Finding{done, suspected()})
	if c := subjects[0].Cases[0]; c.Ended != done || c.Open() || len(c.Findings) != 1 {
		t.Errorf("the first life does not know of the end: %+v", c)
	}
	if c := subjects[1].Cases[0]; c.Carried || c.latest() != done {
		t.Errorf("the second life has %+v", c)
	}
	var out bytes.Buffer
	if err := Write(&out, subjects[0], Style{}); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, "later, in another process of this slot: resolved") || !strings.Contains(text, "level in release r42") {
		t.Errorf("the end is not told:\n%s", out.String())
	}
}

func TestFindingsOfCardsAreNobodys(t *testing.T) {
	fault := &event.Finding{ID: "x", Incident: "i", Time: at(1), Subject: event.Subject{Kind: "gpu", Key: "prod/gpu-07/GPU-aa"}, Class: "device_fault", State: event.Suspected,
		Severity: event.Page, Confidence: 0.7, Summary: "Xid 79 on the card"}
	subjects, rest := Assign([]worker.Report{lesson()}, []*event.Finding{fault})
	if len(subjects[0].Cases) != 0 || len(rest) != 1 {
		t.Fatalf("cases %v, rest %v", subjects[0].Cases, rest)
	}
	var out bytes.Buffer
	if err := WriteCase(&out, rest[0], Style{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "card.txt", out.String())

	fault.Worker = who // the only process on the card
	if subjects, rest = Assign([]worker.Report{lesson()}, []*event.Finding{fault}); len(subjects[0].Cases) != 1 || len(rest) != 0 {
		t.Errorf("the card's only user has cases %v, rest %v", subjects[0].Cases, rest)
	}
	other := lesson()
	other.Host = &event.Host{Cluster: "prod", Name: "gpu-08", BootId: "b1"} // the same pid elsewhere
	other.Key, other.Slot = event.WorkerKey(other.Host, who), event.SlotKey(other.Host, who)
	if subjects, rest = Assign([]worker.Report{other}, []*event.Finding{fault}); len(subjects[0].Cases) != 0 || len(rest) != 1 {
		t.Errorf("a process of another host has cases %v", subjects[0].Cases)
	}
}

func TestTheWorstIncidentStandsFirst(t *testing.T) {
	ended, mild, bad := paged(), suspected(), paged()
	ended.Incident, ended.State = "a", event.Resolved
	mild.Incident, bad.Incident = "b", "c"
	subjects, _ := Assign([]worker.Report{lesson()}, []*event.Finding{ended, mild, bad})
	var order []string
	for _, c := range subjects[0].Cases {
		order = append(order, c.latest().Incident)
	}
	if got := strings.Join(order, ""); got != "cba" {
		t.Errorf("order %s, want cba", got)
	}
}
