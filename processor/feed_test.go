package processor

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// Partitions come and go while others are read: those are disturbed by it in nothing, and those that come have everything, once and in order.
func TestPartitionsComeAndGo(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s := newScript(t, 5, "leak", "kv_leak")
	all := judges(t, js)
	stays := begin(t, all, testPartition, 1)
	other := hostOn(testPartition+1, "other")
	sequence := uint64(0)
	var last uint64
	for round := uint64(1); s.sent < len(s.batches); round++ {
		last = s.send(js, 100)
		comes := begin(t, all, testPartition+1, round)
		var newest uint64
		for range 20 {
			sequence++
			newest = quiet(t, js, other, sequence)
			last = max(last, s.send(js, 3))
		}
		comes.applied(testPartition+1, newest)
		if m := all.partitions()[1].gauge.read(); m.missing != 0 || m.redelivered != 0 {
			t.Errorf("round %d: %d missing, %d came twice", round, m.missing, m.redelivered)
		}
		comes.close()
	}
	stays.applied(testPartition, last)
	m := all.partitions()[0].gauge.read()
	stays.close()
	if m.gaps != 0 || m.redelivered != 0 || m.stalls != 0 || m.missing != 0 {
		t.Errorf("the one that stayed had %d gaps, %d that came twice, %d stalls, %d missing", m.gaps, m.redelivered, m.stalls, m.missing)
	}
	same(t, announced(t, js), s.undisturbed())
}

// fed runs a feed until the test ends.
func fed(t *testing.T, f *feed) {
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
}

// A partition that takes nothing does not hold up another for long, and is told from where on it has everything: what it took and that leave out
// nothing but a gap before it.
func TestSlowPartitionHoldsUpNobody(t *testing.T) {
	_, _, js := brokertest.Start(t)
	f := newFeed(js, slog.New(slog.NewTextHandler(t.Output(), nil)))
	f.most = 4 << 10
	fed(t, f)
	slow, quick := f.join(testPartition), f.join(testPartition+1)
	<-slow.ready
	<-quick.ready
	if _, from := f.take(slow); from != 1 {
		t.Fatalf("everything from %d on, want 1", from)
	}
	const each = 200
	a, b := hostOn(testPartition, "a"), hostOn(testPartition+1, "b")
	for n := range uint64(each) {
		quiet(t, js, a, n+1)
		quiet(t, js, b, n+1)
	}
	var had []uint64
	for len(had) < each {
		<-quick.ready
		some, from := f.take(quick)
		for _, m := range some {
			had = append(had, m.sequence)
		}
		if len(some) > 0 && from > some[0].sequence {
			t.Fatalf("given %d, and everything from %d on", some[0].sequence, from)
		}
		f.mu.Lock()
		gap := quick.from > 1
		f.mu.Unlock()
		if gap {
			t.Skip("SKIPPED: this machine is too busy for the quick one to be quick")
		}
	}
	for n, sequence := range had {
		if sequence != uint64(2*n+2) {
			t.Fatalf("the quick one was given %d in place %d", sequence, n)
		}
	}
	some, from := f.take(slow)
	if len(some) == 0 || len(some) >= each || from != 1 {
		t.Fatalf("the slow one was given %d from %d on", len(some), from)
	}
	for n, m := range some {
		if m.sequence != uint64(2*n+1) {
			t.Fatalf("the slow one was given %d in place %d", m.sequence, n)
		}
	}
	<-slow.ready
	if rest, from := f.take(slow); len(rest) != 0 || from != 2*each+1 {
		t.Fatalf("behind the gap %d from %d on, want from %d", len(rest), from, 2*each+1)
	}
	next := quiet(t, js, a, each+1)
	<-slow.ready
	if rest, from := f.take(slow); len(rest) != 1 || rest[0].sequence != next || from != 2*each+1 {
		t.Errorf("after the gap %v from %d on", rest, from)
	}
}

func TestPartitionOfASubject(t *testing.T) {
	for subject, want := range map[string]int{"lowtide.p.0.lab.h.x": 0, "lowtide.p.63.lab.h.x": 63, "lowtide.p.64.lab.h.x": -1, "lowtide.p.-1.a.b.c": -1, "lowtide.p..a": -1, "lowtide.event.a.b.c": -1, "lowtide.p.7": 7} {
		got, ok := event.PartitionOf(subject)
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%s is of partition %d, want %d", subject, got, want)
		}
	}
}
