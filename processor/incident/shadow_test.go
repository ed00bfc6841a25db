package incident

import (
	"testing"

	"lowtide/event"
)

// Rules that are tried out have lives of their own, two of one class at one key too; nothing explains them, and they explain nothing.
func TestShadows(t *testing.T) {
	tracker := NewShadowTracker()
	strict, loose := *retention, *retention
	strict.ID, loose.ID = "strict", "loose"
	var ids []string
	tell := func(o Observation) *event.Finding {
		t.Helper()
		told := tracker.Observe(o)
		if len(told) != 1 || !told[0].Shadow {
			t.Fatalf("told %v", told)
		}
		return told[0]
	}
	for _, r := range []*event.Finding{tell(see(&strict, 3, when, since(0))), tell(see(&loose, 3, when, since(0))), tell(see(stalled, 4, when))} {
		ids = append(ids, r.Incident)
	}
	if real := NewTracker().Observe(see(retention, 3, when, since(0)))[0]; real.Shadow || real.Incident == ids[0] || ids[0] == ids[1] {
		t.Errorf("incidents %v, and %s of a rule that counts", ids, real.Incident)
	}
	if open := tracker.Open("s"); len(open) != 3 {
		t.Errorf("%d are open, want each by itself", len(open))
	}
	back := NewShadowTracker()
	back.Restore(around(t, tracker.State()))
	tracker = back
	if end := tell(see(&loose, 5, proven)); end.Incident != ids[1] || end.State != event.Resolved {
		t.Errorf("ended is %s, want %s", end.Incident, ids[1])
	}
	if open := tracker.Open("s"); len(open) != 2 || open[0].Rule != "strict" {
		t.Errorf("%d are open", len(open))
	}
}
