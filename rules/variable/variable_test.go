package variable

import (
	"math"
	"strings"
	"testing"
)

func TestNoVariableIsTheParentOfAnother(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range All() {
		if seen[v.Name] {
			t.Errorf("%s is declared twice", v.Name)
		}
		seen[v.Name] = true
		if v.Doc == "" || v.Sensor == "" || v.Example == "" {
			t.Errorf("%s lacks its doc, sensor or example", v.Name)
		}
		if (v.Kind == Number) != (v.Unit != "") {
			t.Errorf("%s: kind %s with unit %q", v.Name, v.Kind, v.Unit)
		}
	}
	for name := range seen {
		for i := range name {
			if name[i] == '.' && seen[name[:i]] {
				t.Errorf("%s is the parent of %s", name[:i], name)
			}
		}
	}
}

// The names are those of the first table of rule variables, written down here a second time on purpose.
func TestTableHoldsTheVocabulary(t *testing.T) {
	for _, name := range strings.Fields(`live.now live.level_bytes fds.level_count kv.level_ratio anon.growth outside.growth_low
		live.growth_high live.z live.early live.steady live.level live.filling live.step live.per_request live.per_abort
		live.per_error live.per_token live.per_adapter live.hours_to_limit live.hours_to_limit_low live.hours_to_limit_high
		quiet.count quiet.hours quiet.matched quiet.inferred kv.quiet awaiting.quiet headroom.ratio headroom.bytes
		prefill.peak_bytes decode.peak_bytes demand.ratio demand.waiting_growth kv.busy waiting.now running.now kv.full
		queue.held preemptions.hour grew.before_oom symptom.oom symptom.stalled oom.kind oom.requested_bytes oom.count
		snapshot.fragmentation snapshot.largest_free_bytes proof.work proof.restart graphs.moved pools.moved xid.first
		xid.application ecc.uncorrected_delta restarts.hour progress.seconds age.hours engine model release role rank
		cluster host labels`) {
		if _, ok := Lookup(name); !ok {
			t.Errorf("no variable %s", name)
		}
	}
	if _, ok := Lookup("fds.level_bytes"); ok {
		t.Error("a count has a level in bytes")
	}
}

func TestSampleAbsentIsNotZero(t *testing.T) {
	s, live, oom := NewSample(), Must("live.growth"), Must("symptom.oom")
	if _, known := s.Number(live); known {
		t.Fatal("a new sample knows a number")
	}
	s.SetNumber(live, 0)
	if v, known := s.Number(live); v != 0 || !known {
		t.Fatalf("zero: got %v, %v", v, known)
	}
	for _, none := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		s.SetNumber(live, 0)
		s.SetNumber(live, none)
		if s.Known(live) {
			t.Fatalf("%v is a value", none)
		}
	}
	s.SetBool(oom, false)
	if v, known := s.Bool(oom); v || !known {
		t.Fatalf("false: got %v, %v", v, known)
	}
	s.Unset(oom)
	if _, known := s.Bool(oom); known {
		t.Fatal("unset is known")
	}
}

func TestBoxedIsMadeOncePerChange(t *testing.T) {
	s, id, made := NewSample(), Must("kv.now"), 0
	box := func(v any) any { made++; return v }
	for range 3 {
		s.SetNumber(id, 0.5)
		if v, known := s.Boxed(id, box); v != 0.5 || !known {
			t.Fatalf("got %v, %v", v, known)
		}
	}
	s.SetNumber(id, 0.6)
	if v, _ := s.Boxed(id, box); v != 0.6 || made != 2 {
		t.Fatalf("got %v after %d boxes, want 0.6 after 2", v, made)
	}
	s.Unset(id)
	if _, known := s.Boxed(id, box); known {
		t.Fatal("a stale box was returned")
	}
}

func TestSetterOfAnotherKindPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Fatal("a bool was set as a number")
		}
	}()
	NewSample().SetNumber(Must("live.early"), 1)
}
