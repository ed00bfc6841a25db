package ownership

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lowtide/processor/broker"
)

// At the pace of production, from the death of one to the first moment of the last take-over.
func TestSeatsOfTheDeadAreTakenOverWithinTenSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: -short, and the real pace takes eight seconds")
	}
	t.Parallel()
	f := newFleet(t, paceOfProduction)
	survivor := f.join("p0")
	f.join("p1")
	dying := f.join("p2")
	f.shared("p0", "p1", "p2")
	var orphans float64
	for seat, name := range f.owners() {
		var number int
		role, rest, _ := strings.Cut(seat, ".")
		if _, err := fmt.Sscan(rest, &number); err != nil {
			t.Fatal(err)
		}
		if name == "p2" && owner([]string{"p0", "p1"}, role, number) == "p0" {
			orphans++
		}
	}
	start := time.Now()
	dying.kill()
	f.shared("p0", "p1")
	took := time.Since(start)
	t.Logf("all seats were taken over %v after the death", took)
	if took > 8*time.Second || took < 4*time.Second {
		t.Errorf("took %v, want five to seven seconds: two or more are for the state", took)
	}
	got := 0.0
	for _, role := range []string{"judge", "store", "notifier"} {
		got += number(t, survivor.metrics, "lowtide_seats_taken_over_total", role)
	}
	if got != orphans {
		t.Errorf("%v take-overs were counted, want %v", got, orphans)
	}
}

// One whose line goes dead, with no word to anybody, stops before the others begin (the book says so); when it is back it gets what is
// its own again.
func TestUnreachableProcessorStopsBeforeOthersBegin(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	f.join("p0")
	lonely := f.join("p1")
	f.shared("p0", "p1")
	lonely.cut()
	f.until("p1 stops", func() bool { return count(f.owners(), "p1") == 0 })
	if n := count(f.owners(), "p0"); n == allSeats {
		t.Error("the other had all seats by the time that p1 stopped")
	}
	f.shared("p0")
	lonely.mend()
	f.shared("p0", "p1")
}

// Nobody hears anybody while the broker is away: all stop, nobody is called dead, and each goes on with its own.
func TestBrokerThatRestartsMovesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	one := f.join("p0")
	two := f.join("p1")
	f.shared("p0", "p1")
	f.server.Close()
	f.until("all stop", func() bool { return len(f.owners()) == 0 })
	f.up()
	f.shared("p0", "p1")
	for _, p := range []*processor{one, two} {
		for _, role := range []string{"judge", "store", "notifier"} {
			if n := number(t, p.metrics, "lowtide_seats_taken_over_total", role); n != 0 {
				t.Errorf("%s took %v seats of %s over from one that lives", p.name, n, role)
			}
		}
	}
	if n := f.begun(); n > 3*allSeats { // shared at the start, and gone on with once
		t.Errorf("%d works began for %d seats", n, allSeats)
	}
}

// A short stall of the broker, shorter than works have patience, is not noticed by anybody.
func TestShortStallChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, paceOfProduction)
	f.join("p0")
	f.join("p1")
	f.shared("p0", "p1")
	begun := f.begun()
	f.server.Close()
	f.up()
	f.join("p2") // something to wait for
	f.shared("p0", "p1", "p2")
	if n, want := f.begun()-begun, count(f.owners(), "p2"); n != want {
		t.Errorf("%d works began, want %d: those of p2", n, want)
	}
}

// The clocks of the machines do not matter, nor that one runs through centuries.
func TestWallClocksDoNotMatter(t *testing.T) {
	t.Parallel()
	f := newFleet(t, paceOfProduction)
	var calls atomic.Int64
	f.join("p0", func(o *Options) {
		o.wall = func() time.Time { return time.Unix(0, 0).AddDate(int(calls.Add(1)%400), 0, 0) }
	})
	f.join("p1", func(o *Options) { o.wall = func() time.Time { return time.Now().Add(-time.Hour) } })
	f.shared("p0", "p1")
	begun := f.begun()
	f.join("p2")
	f.shared("p0", "p1", "p2")
	if n, want := f.begun()-begun, count(f.owners(), "p2"); n != want {
		t.Errorf("%d works began, want %d: those of p2", n, want)
	}
}

// register is what a work writes to: it takes a write only with a fence that is not below those before, as the state of a partition does.
type register struct{ fence atomic.Uint64 }

var errFenced = fmt.Errorf("register has a newer owner: %w", ErrLost)

func (r *register) write(fence uint64) error {
	for {
		was := r.fence.Load()
		if was > fence {
			return errFenced
		}
		if r.fence.CompareAndSwap(was, fence) {
			return nil
		}
	}
}

// A former owner that neither ends nor notices, like a process that was stopped and goes on, is refused by its fence.
func TestSlowFormerOwnerIsFenced(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	var register register
	type turn struct {
		name  string
		fence uint64
	}
	turns := make(chan turn, 10)
	wake := make(chan struct{})
	late := make(chan error, 1)
	stubborn := func(ctx context.Context, _ int, fence uint64) error {
		if err := register.write(fence); err != nil {
			return err
		}
		turns <- turn{"stubborn", fence}
		<-wake // whatever ctx says
		if cause := context.Cause(ctx); !errors.Is(cause, ErrSilent) {
			late <- fmt.Errorf("told to end because of %w", cause)
			return nil
		}
		late <- register.write(fence)
		return ctx.Err()
	}
	good := func(ctx context.Context, _ int, fence uint64) error {
		if err := register.write(fence); err != nil {
			return err
		}
		turns <- turn{"good", fence}
		<-ctx.Done()
		return ctx.Err()
	}
	first := f.joinWith("p0", []Role{{"notifier", 1, stubborn}})
	was := <-turns
	f.joinWith("p1", []Role{{"notifier", 1, good}})
	first.cut()
	is := <-turns
	if was.name != "stubborn" || is.name != "good" || is.fence <= was.fence {
		t.Errorf("first %+v, then %+v", was, is)
	}
	first.mend()
	close(wake)
	if err := <-late; !errors.Is(err, ErrLost) {
		t.Errorf("the late write of the former owner: %v", err)
	}
}

// The same where the former owner can be spoken with: it is given seven seconds to end (two here), then its seat goes on without it.
func TestWorkThatDoesNotEndLosesItsSeat(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	began, wake := make(chan uint64, 1), make(chan struct{})
	names := []string{"p0", "p1"}
	seat := 0
	for owner(names, "judge", seat) != "p1" {
		seat++
	}
	work := func(ctx context.Context, n int, fence uint64) error {
		if n == seat {
			began <- fence
			<-wake
		}
		<-ctx.Done()
		return ctx.Err()
	}
	first := f.joinWith("p0", []Role{{"judge", seat + 1, work}})
	before := <-began
	f.joinWith("p1", []Role{{"judge", seat + 1, work}})
	if after := <-began; after <= before {
		t.Errorf("fence %d after %d", after, before)
	}
	close(wake)
	if err := first.leave(t); err != nil {
		t.Error(err)
	}
}

// Watchers that fall silent for good, as some do after a restart, are made anew: here the broker forgets them.
func TestSilentWatchersAreNoticed(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	f.join("p0")
	f.shared("p0")
	_, js := f.dial("forget")
	for _, name := range []string{broker.BucketMembers, broker.BucketSeats} {
		stream, err := js.Stream(t.Context(), "KV_"+name)
		if err != nil {
			t.Fatal(err)
		}
		forgotten := 0
		for consumer := range stream.ConsumerNames(t.Context()).Name() {
			if err := stream.DeleteConsumer(t.Context(), consumer); err != nil {
				t.Fatal(err)
			}
			forgotten++
		}
		if forgotten == 0 {
			t.Fatalf("nobody watches %s", name)
		}
	}
	f.join("p1")
	start := time.Now()
	f.shared("p0", "p1")
	t.Logf("noticed after %v", time.Since(start))
}

// A lease that says that we have what we have not (an answer that was lost, a request that came late) keeps nobody waiting; and what is
// no lease at all is nobody's.
func TestStrayLeasesAreGivenBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	_, js := f.dial("stray")
	kv, err := js.KeyValue(t.Context(), broker.BucketSeats)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "judge.7", []byte("what is this?")); err != nil {
		t.Fatal(err)
	}
	f.join("p0")
	f.join("p1")
	f.shared("p0", "p1")
	seat := 0
	for owner([]string{"p0", "p1"}, "judge", seat) != "p1" {
		seat++
	}
	key := seatKey("judge", seat)
	sample, err := kv.Get(t.Context(), "judge."+fmt.Sprint(other(seat))) // a lease of p0
	if err != nil {
		t.Fatal(err)
	}
	begun := f.begun()
	if _, err := kv.Put(t.Context(), key, sample.Value()); err != nil {
		t.Fatal(err)
	}
	f.until("p1 lost its seat and has it again", func() bool { return f.begun() > begun && f.owners()[key] == "p1" })
}

// other returns a seat of p0.
func other(seat int) int {
	for owner([]string{"p0", "p1"}, "judge", seat) != "p0" {
		seat++
	}
	return seat
}
