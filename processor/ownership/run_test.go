package ownership

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lowtide/processor/broker"
)

// moved counts the seats whose owner differs.
func moved(before, after map[string]string) int {
	n := 0
	for seat, name := range before {
		if after[seat] != name {
			n++
		}
	}
	return n
}

func count(owners map[string]string, name string) int {
	n := 0
	for _, owner := range owners {
		if owner == name {
			n++
		}
	}
	return n
}

// Three share all seats; one dies, one joins, one leaves: each time only the seats that must move do, and the book, which knows every
// beginning and end, never has two at one seat nor a fence that does not grow.
func TestProcessorsShareTheSeats(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	for _, name := range []string{"p0", "p1", "p2"} {
		f.join(name)
	}
	f.shared("p0", "p1", "p2")
	three := f.owners()
	if len(three) != allSeats {
		t.Fatalf("%d seats are worked at, want %d", len(three), allSeats)
	}

	begun := f.begun()
	dying := f.join("p3")
	f.shared("p0", "p1", "p2", "p3")
	four := f.owners()
	if n := moved(three, four); n != count(four, "p3") || n != f.begun()-begun {
		t.Errorf("%d seats moved and %d works began for a joiner with %d", n, f.begun()-begun, count(four, "p3"))
	}

	begun = f.begun()
	dying.kill()
	f.shared("p0", "p1", "p2")
	if n := f.begun() - begun; n != count(four, "p3") {
		t.Errorf("%d works began after the death of one with %d seats", n, count(four, "p3"))
	}

	begun = f.begun()
	leaver := f.join("p4")
	f.shared("p0", "p1", "p2", "p4")
	with := f.owners()
	start := time.Now()
	if err := leaver.leave(t); err != nil {
		t.Errorf("leaving ended with %v", err)
	}
	f.shared("p0", "p1", "p2")
	if took := time.Since(start); took > brisk.expiry {
		t.Errorf("a goodbye was waited for like a death: %v", took)
	}
	if n := f.begun() - begun; n != 2*count(with, "p4") {
		t.Errorf("%d works began for one that came and went with %d seats", n, count(with, "p4"))
	}
}

// number reads one value of the metrics.
func number(t *testing.T, m *Metrics, name, role string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name && (role == "" || metric.GetLabel()[0].GetValue() == role) {
				return metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no %s{role=%q}", name, role)
	return 0
}

// A work that finds a newer owner is tried again with a higher fence until it is believed; another error ends Run, after all has been
// given back.
func TestErrorsOfWorks(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	var fences []uint64
	broken := fmt.Errorf("disk on fire: %w", context.DeadlineExceeded) // a request of its own took too long; that is no end of Run
	ready := make(chan struct{})
	p := f.joinWith("p0", []Role{
		{"store", 1, func(ctx context.Context, _ int, fence uint64) error {
			if fences = append(fences, fence); len(fences) < 3 {
				return errFenced
			}
			close(ready)
			<-ctx.Done()
			return ctx.Err()
		}},
		{"judge", 2, func(ctx context.Context, seat int, _ uint64) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ready:
			}
			if seat == 1 {
				return broken
			}
			<-ctx.Done()
			return errors.New("not well ended") // no reason for anything, by then
		}},
	})
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		t.Fatal("Run goes on")
	}
	if !errors.Is(p.err, broken) || p.err.Error() != "judge 1: disk on fire: context deadline exceeded" {
		t.Errorf("Run ended with %v", p.err)
	}
	if len(fences) != 3 || fences[0] >= fences[1] || fences[1] >= fences[2] {
		t.Errorf("fences %v", fences)
	}
	if n := number(t, p.metrics, "lowtide_seats_lost_total", "store"); n != 2 {
		t.Errorf("%v losses were counted, want 2", n)
	}
	for _, name := range []string{broker.BucketMembers, broker.BucketSeats} {
		_, js := f.dial("look")
		kv, err := js.KeyValue(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if keys, err := kv.Keys(t.Context()); !errors.Is(err, jetstream.ErrNoKeysFound) {
			t.Errorf("left in %s: %v, %v", name, keys, err)
		}
	}
}

// With a broker of one's own there is nobody to wait for, whatever the dead left behind.
func TestAloneStartsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t, paceOfProduction)
	alone := func(o *Options) { o.Alone = true }
	first := f.join("up", alone)
	f.shared("up")
	first.kill()
	if len(f.owners()) != allSeats {
		t.Fatal("one that is alone stopped because of its line")
	}
	first.stop()
	f.until("the works of the first end", func() bool { return len(f.owners()) == 0 })
	start := time.Now()
	f.join("up", alone)
	f.shared("up")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("started after %v", took)
	}
}

// Two with one name: the second is refused. One that died under it is followed, after the silence that says so.
func TestOneNameForOne(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	first := f.join("p0")
	f.shared("p0")
	second := f.join("p0")
	select {
	case <-second.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the second goes on")
	}
	if !errors.Is(second.err, ErrTaken) {
		t.Errorf("the second ended with %v", second.err)
	}
	first.kill()
	third := f.join("p0")
	f.until("the first stops", func() bool { return len(f.owners()) == 0 })
	f.shared("p0")
	if err := third.leave(t); err != nil {
		t.Error(err)
	}
}

func TestMetricsTellWhatIsHeld(t *testing.T) {
	t.Parallel()
	f := newFleet(t, brisk)
	p := f.join("p0")
	f.join("p1")
	f.shared("p0", "p1")
	want := count(f.owners(), "p0")
	got := 0.0
	for role := range wards {
		got += number(t, p.metrics, "lowtide_seats_held", role)
	}
	if int(got) != want || number(t, p.metrics, "lowtide_processors", "") != 2 {
		t.Errorf("%v seats are held, want %d", got, want)
	}
	if age := number(t, p.metrics, "lowtide_heartbeat_age_seconds", ""); age < 0 || age > 1 {
		t.Errorf("the last heartbeat is %v s old", age)
	}
	if problems, err := testutil.GatherAndLint(registryOf(t, p.metrics)); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func registryOf(t *testing.T, m *Metrics) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(m); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOptionsAreChecked(t *testing.T) {
	work := func(context.Context, int, uint64) error { return nil }
	for _, c := range []struct {
		member string
		roles  []Role
		want   string
	}{
		{"a b", []Role{{"judge", 1, work}}, `name of processor "a b"`},
		{"", nil, "0 roles"},
		{"", []Role{{"judge", 0, work}}, `role "judge" with 0 seats`},
		{"", []Role{{"judge", 1, nil}}, `role "judge" with 1 seats`},
		{"", []Role{{"judge", 1, work}, {"judge", 2, work}}, `role "judge" with 2 seats`},
		{"", []Role{{"the.judge", 1, work}}, `role "the.judge"`},
	} {
		if err := Run(t.Context(), Options{Member: c.member}, c.roles...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
