package processor

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"lowtide/processor/broker/brokertest"
)

func gathered(t testing.TB, all *Judges) map[string]*dto.Metric {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(all); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]*dto.Metric)
	for _, f := range families {
		for _, m := range f.Metric {
			found[strings.TrimPrefix(f.GetName(), "lowtide_judge_")+"/"+m.Label[0].GetValue()] = m
		}
	}
	return found
}

func TestWhatIsCounted(t *testing.T) {
	_, _, js := brokertest.Start(t)
	all := judges(t, js)
	if err := all.Ready(); err != nil {
		t.Errorf("nothing runs, and it is not ready: %v", err)
	}
	if found := gathered(t, all); len(found) != 0 {
		t.Errorf("nothing runs, and %d values are told", len(found))
	}
	s := newScript(t, 5, "leak")
	w := begin(t, all, testPartition, 1)
	s.send(js, 1)
	s.sent += 4 // four never come
	last := s.rest(js)
	w.applied(testPartition, last)
	savedUpTo(t, js, testPartition, last)
	until(t, "nothing is pending", func() bool {
		m := gathered(t, all)["pending_messages/7"]
		return m != nil && m.Gauge.GetValue() == 0 && all.Ready() == nil
	})
	found := gathered(t, all)
	value := func(name string) float64 {
		t.Helper()
		m := found[name+"/7"]
		if m == nil {
			t.Errorf("%s is not told", name)
			return -1
		}
		return m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	for name, want := range map[string]float64{"applied_sequence": float64(last), "missing_messages_total": 4, "trimmed_messages_total": 0, "refused_messages_total": 0, "published_findings_total": 2,
		"dropped_findings_total": 0, "rule_errors": 0, "catching_up": 0, "workers": 1, "oldest_unacknowledged_seconds": 0} {
		if got := value(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if value("checkpoints_total") < 1 || value("checkpoint_bytes") < 100 || value("checkpoint_seconds") <= 0 || value("state_age_seconds") > 30 {
		t.Errorf("checkpoints: %v", found)
	}
	if _, told := found["retention_margin_messages/7"]; told {
		t.Error("nothing is pending, and a margin is told")
	}
	w.close()
	if found := gathered(t, all); len(found) != 0 {
		t.Error("values of a partition that is not judged here any more")
	}
}

// A partition is not ready while it catches up, nor when its state could not be saved for five minutes.
func TestReadyMeansCaughtUpAndSaved(t *testing.T) {
	_, _, js := brokertest.Start(t)
	all := judges(t, js)
	p := newPartition(testPartition, all.options, all.board, all.verdicts)
	all.running[testPartition] = p
	set := func(caught bool, age time.Duration) {
		p.reading.caught, p.saving.fresh = caught, time.Now().Add(-age)
		p.measure()
	}
	set(false, 0)
	if err := all.Ready(); err == nil || !strings.Contains(err.Error(), "partition 7 is catching up") {
		t.Errorf("while it catches up: %v", err)
	}
	set(true, 4*time.Minute)
	if err := all.Ready(); err != nil {
		t.Errorf("four minutes old: %v", err)
	}
	set(true, 6*time.Minute)
	if err := all.Ready(); err == nil || !strings.Contains(err.Error(), "saved 6m0s ago") {
		t.Errorf("six minutes old: %v", err)
	}
}

// What the workers of one process say is known to the judges of another, and by a former owner's board no longer taken for its own.
func TestBoardsAreShared(t *testing.T) {
	_, _, js := brokertest.Start(t)
	here, there := judges(t, js), judges(t, js)
	s := newScript(t, 5, "leak")
	w := begin(t, here, testPartition, 1)
	last := s.rest(js)
	w.applied(testPartition, last)
	w.close()
	if err := there.readShares(t.Context()); err != nil {
		t.Fatal(err)
	}
	lives := func(b *Board) (n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, group := range b.groups {
			for _, p := range group {
				if p.from == 0 && p.called != 0 {
					n++
				}
			}
		}
		return n
	}
	if n := lives(there.board); n != 1 {
		t.Errorf("%d growing workers of another process are known, want 1", n)
	}
	if n := lives(here.board); n != 1 {
		t.Errorf("%d of a partition that was given away count as another's, want 1", n)
	}
}
