package processor

import (
	"math"
	"slices"
	"testing"
	"time"

	"lowtide/event"
)

const mib = 1 << 20

// tick reads the card and the two processes on it, in MiB.
func (s *stage) tick(used float64, complete bool, processes map[*event.Worker]float64) {
	g := &event.Gpu{Uuid: "GPU-a", TotalBytes: event.Ptr(uint64(80_000 * mib)), UsedBytes: event.Ptr(uint64(used * mib)), ProcessesComplete: &complete}
	s.apply(nil, &event.Event{Gpu: g})
	for w, held := range processes {
		p := &event.GpuProcess{GpuUuid: "GPU-a"}
		if !math.IsNaN(held) {
			p.UsedBytes = event.Ptr(uint64(held * mib))
		}
		s.apply(w, &event.Event{GpuProcess: p})
	}
}

func TestMemoryOfNobody(t *testing.T) {
	a, b := rank(10, "r1"), rank(11, "r1")
	b.Unit = "v"
	for name, test := range map[string]struct {
		used     float64
		complete bool
		held     float64 // by the second process; the first holds 30000
		want     float64 // MiB; NaN is unknown
	}{
		"all is accounted for":          {50_000, true, 20_000, 0},
		"a dead process left something": {66_000, true, 20_000, 16_000},
		"the list is not complete":      {66_000, false, 20_000, math.NaN()},
		"one process does not tell":     {66_000, true, math.NaN(), math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			s := newProbeStage(t)
			for range 6 {
				s.tick(test.used, test.complete, map[*event.Worker]float64{a: 30_000, b: test.held})
				s.pass(time.Minute)
			}
			s.judge.Flush()
			for _, w := range []*event.Worker{a, b} {
				got := s.number(w, "orphan.now") / mib
				if math.IsNaN(test.want) && got >= 0 || !math.IsNaN(test.want) && got != test.want {
					t.Errorf("pid %d sees %v MiB of nobody, want %v", w.Pid, got, test.want)
				}
			}
			if told := len(s.findings) > 0; told != (test.want > 8_000) {
				t.Errorf("findings %v", s.findings)
			}
		})
	}
}

// A process is listed a moment after it took its memory: that is nobody's for one reading, and no finding.
func TestAProcessThatIsListedLate(t *testing.T) {
	s := newProbeStage(t)
	a := rank(10, "r1")
	for minute := range 30 {
		used := 30_000.0
		if minute%10 == 5 {
			used += 40_000
		}
		s.tick(used, true, map[*event.Worker]float64{a: 30_000})
		s.pass(time.Minute)
	}
	s.judge.Flush()
	if len(s.findings) > 0 {
		t.Errorf("findings %v", s.findings)
	}
}

// Memory of nobody rises by 40 MiB every quarter of an hour: 160 MiB an hour, called after three hours.
func TestMemoryOfNobodyThatGrows(t *testing.T) {
	s := newProbeStage(t)
	a := rank(10, "r1")
	for minute := range 4*60 + 1 {
		s.tick(31_000+40*float64(minute/15), true, map[*event.Worker]float64{a: 30_000})
		s.pass(time.Minute)
	}
	s.judge.Flush()
	if got := s.number(a, "orphan.growth") / mib; math.Abs(got-160) > 1 {
		t.Errorf("grows by %v MiB an hour, want 160", got)
	}
	if got := s.flag(a, "orphan.early"); got != "yes" {
		t.Errorf("called: %s", got)
	}
}

func xidOf(n uint64) *event.Event {
	return &event.Event{Xid: &event.Xid{Code: &n, GpuUuid: "GPU-a", Source: "kmsg"}}
}

// NVIDIA/open-gpu-kernel-modules#446: Xid 62, then 45 for each process. The first one counts; 63 alone is no fault; and what the
// program did first is not the device's.
func TestTheFirstErrorOfACardCounts(t *testing.T) {
	for name, test := range map[string]struct {
		codes []uint64
		want  bool
	}{
		"62, then the clean-up":           {[]uint64{62, 45, 45, 45}, true},
		"an illegal access, then 45":      {[]uint64{31, 45}, false},
		"a row was remapped":              {[]uint64{63}, false},
		"a row was remapped, then lost":   {[]uint64{63, 79}, true},
		"an illegal access, and then 109": {[]uint64{13, 43, 109}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newProbeStage(t)
			w := rank(10, "r1")
			s.tick(30_000, true, map[*event.Worker]float64{w: 30_000})
			s.pass(time.Minute)
			for _, n := range test.codes {
				s.pass(time.Second)
				s.apply(nil, xidOf(n))
			}
			var faults []*event.Finding
			for _, f := range s.findings {
				if f.Class == "device_fault" {
					faults = append(faults, f)
				}
			}
			if (len(faults) > 0) != test.want {
				t.Fatalf("findings %v", s.findings)
			}
			if !test.want {
				return
			}
			f := faults[0]
			if f.Subject != (event.Subject{Kind: "gpu", Key: "c/h/GPU-a"}) || f.Worker.GetPid() != 10 || f.Slot != "c/h/u/0/0" || len(faults) != 1 {
				t.Errorf("%d findings, subject %v, pid %d, slot %s", len(faults), f.Subject, f.Worker.GetPid(), f.Slot)
			}
		})
	}
}

// An illegal access is followed by a fault of the device half an hour later: that is a trouble of its own, and the clean-up that comes
// a while after it does not hide it.
func TestAFaultLongAfterAnErrorOfTheProgram(t *testing.T) {
	s := newProbeStage(t)
	w := rank(10, "r1")
	for _, step := range []struct {
		after time.Duration
		code  uint64
		want  float64 // findings
	}{{0, 31, 0}, {time.Minute, 45, 0}, {30 * time.Minute, 79, 1}, {20 * time.Minute, 45, 1}} {
		s.pass(step.after)
		s.tick(30_000, true, map[*event.Worker]float64{w: 30_000})
		s.apply(nil, xidOf(step.code))
		if got := float64(len(s.findings)); got != step.want {
			t.Errorf("Xid %d: %v findings, want %v", step.code, got, step.want)
		}
	}
	c := s.judge.hosts[hostName{"c", "h"}].cards["GPU-a"]
	if first, _ := c.sample.Number(cardIDs.first); first != 79 {
		t.Errorf("the first Xid of the trouble is %v, want 79", first)
	}
}

// Two workers use the card: the fault is nobody's in particular, and it is told once.
func TestAFaultOfASharedCardNamesNoProcess(t *testing.T) {
	s := newProbeStage(t)
	a, b := rank(10, "r1"), rank(11, "r1")
	b.Unit = "v"
	s.tick(50_000, true, map[*event.Worker]float64{a: 30_000, b: 20_000})
	s.pass(time.Minute)
	s.apply(nil, xidOf(79))
	if len(s.findings) != 1 || s.findings[0].Worker != nil || s.findings[0].Slot != "" || s.findings[0].Subject.Kind != "gpu" {
		t.Errorf("findings %v", s.findings)
	}
}

// The totals of a card are those of its life. What was there when it was first read is no news; a total that falls was reset.
func TestErrorsOfTheMemoryAreCountedFromTheFirstReading(t *testing.T) {
	s := newProbeStage(t)
	w := rank(10, "r1")
	totals := []uint64{7, 7, 9, 3, 4}
	want := []float64{0, 0, 2, 2, 3}
	for i, total := range totals {
		s.apply(w, handles())
		s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", EccUncorrectedTotal: event.Ptr(total)}})
		s.pass(time.Minute)
		s.judge.Flush()
		c := s.judge.hosts[hostName{"c", "h"}].cards["GPU-a"]
		if got, _ := c.sample.Number(cardIDs.uncorrected); got != want[i] {
			t.Errorf("total %d: %v new errors, want %v", total, got, want[i])
		}
	}
	s.apply(nil, xidOf(48))
	c := s.judge.hosts[hostName{"c", "h"}].cards["GPU-a"]
	if first, _ := c.sample.Bool(cardIDs.eccFirst); !first {
		t.Error("the errors were counted before the Xid")
	}
}

// A card is replaced after a fault. Nobody hears of the old one again: its trouble ends after a day without it, and it is forgotten.
func TestACardThatWasTakenOutKeepsNoTrouble(t *testing.T) {
	s := newProbeStage(t)
	w, next := rank(10, "r1"), rank(11, "r1")
	next.GpuUuids = []string{"GPU-b"}
	s.tick(30_000, true, map[*event.Worker]float64{w: 30_000})
	s.pass(time.Minute)
	s.apply(nil, xidOf(79))
	s.apply(w, code(1))
	broken := s.at
	for range 40 * 6 {
		s.pass(10 * time.Minute)
		s.apply(next, handles())
	}
	if n := len(s.findings); n != 2 || s.findings[1].State != event.Resolved || s.findings[1].Class != "device_fault" {
		t.Fatalf("findings %v", s.findings)
	}
	if d := s.findings[1].Time.Sub(broken); d < 24*time.Hour || d > 28*time.Hour {
		t.Errorf("resolved after %v", d)
	}
	if cards := s.judge.hosts[hostName{"c", "h"}].sortedCards(); len(cards) != 1 || cards[0].uuid != "GPU-b" {
		t.Errorf("%d cards", len(cards))
	}
}

// The kernel tells an Xid by the address on the bus. On a host with one card it is that card's; on one with two, the card's of the
// process that it names; else nobody knows whose.
func TestAnErrorThatNamesNoCard(t *testing.T) {
	for name, test := range map[string]struct {
		cards []string
		named bool
		want  string
	}{
		"one card":             {cards: []string{"GPU-a"}, want: "c/h/GPU-a"},
		"one card, divided":    {cards: []string{"GPU-a", "MIG-1", "MIG-2"}, want: "c/h/GPU-a"},
		"two cards":            {cards: []string{"GPU-a", "GPU-b"}},
		"two cards, a process": {cards: []string{"GPU-a", "GPU-b"}, named: true, want: "c/h/GPU-a"},
	} {
		s := newProbeStage(t)
		w := rank(10, "r1")
		for range 3 {
			s.pass(time.Minute)
			for _, uuid := range test.cards {
				s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: uuid, Utilization: event.Ptr(0.5)}})
			}
			s.apply(w, handles())
		}
		x := &event.Event{Xid: &event.Xid{Pci: "0000:01:00", Code: event.Ptr(uint64(79)), Source: "kmsg"}}
		if test.named {
			s.apply(w, x)
		} else {
			s.apply(nil, x)
		}
		got := ""
		for _, f := range s.findings {
			got += f.Subject.Key
		}
		if got != test.want {
			t.Errorf("%s: found at %q, want %q", name, got, test.want)
		}
	}
}

// A card that is divided breaks as a whole: that explains why what runs on its instances dies, and on those of no other card.
func TestADividedCardBreaksAsAWhole(t *testing.T) {
	for name, test := range map[string]struct {
		instance string
		index    *int64
		want     []string
	}{
		"an instance of its index":      {"MIG-1", event.Ptr(int64(0)), []string{"device_fault"}},
		"an instance of another":        {"MIG-1", event.Ptr(int64(1)), []string{"crash_loop", "device_fault"}},
		"an instance that names it":     {"MIG-GPU-a/3/0", nil, []string{"device_fault"}},
		"an instance that says nothing": {"MIG-1", nil, []string{"crash_loop", "device_fault"}},
	} {
		s := newStage(t)
		minute := func(w *event.Worker) {
			s.pass(time.Minute)
			s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", Index: event.Ptr(int64(0)), Utilization: event.Ptr(0.5)}})
			s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-b", Index: event.Ptr(int64(1)), Utilization: event.Ptr(0.5)}})
			if test.index != nil {
				s.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: test.instance, Index: test.index, Mig: "3/0"}})
			}
			s.apply(w, handles())
		}
		pid := int64(10)
		next := func() *event.Worker {
			pid++
			w := rank(pid, "r1")
			w.GpuUuids = []string{test.instance}
			return w
		}
		w := next()
		for range 5 {
			minute(w)
		}
		s.apply(nil, xidOf(79))
		for range 4 {
			s.apply(w, code(1))
			w = next()
			for range 3 {
				minute(w)
			}
		}
		var got []string
		for _, f := range s.findings {
			got = append(got, f.Class)
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, test.want) {
			t.Errorf("%s: found %v, want %v", name, got, test.want)
		}
	}
}

// A card falls off the bus, and the driver's library fails with it. Nobody can see the card: that its trouble is over is not concluded.
func TestACardThatNobodyCanSeeKeepsItsTrouble(t *testing.T) {
	s := newProbeStage(t)
	w := rank(10, "r1")
	s.tick(30_000, true, map[*event.Worker]float64{w: 30_000})
	s.apply(nil, &event.Event{Source: &event.SourceStatus{Name: "nvml", Status: "ok"}})
	s.pass(time.Minute)
	s.apply(nil, xidOf(79))
	s.apply(nil, &event.Event{Source: &event.SourceStatus{Name: "nvml", Status: "lost"}})
	for range 40 * 6 {
		s.pass(10 * time.Minute)
		s.apply(w, handles())
	}
	if n := len(s.judge.incidents.Open("c/h/GPU-a")); n != 1 {
		t.Errorf("%d incidents are open", n)
	}
}
