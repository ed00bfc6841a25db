package sink

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
)

// metric sums a metric over the seats.
func metric(t *testing.T, s *Storer, name string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
			return sum
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Ready tells of a store that is away for longer than a start takes, and of nothing when no seat is here.
func TestReadyTellsWhyNot(t *testing.T) {
	now := tick
	s := NewStorer(nil, nil, nil)
	s.now = func() time.Time { return now }
	r := newRun(s, 1, 0)
	if err := s.Ready(); err != nil {
		t.Errorf("no seat: %v", err)
	}
	r.gauge.enter()
	if !r.gauge.away(ErrAway, now) || r.gauge.away(ErrAway, now.Add(time.Second)) || !r.gauge.away(ErrAway, now.Add(sayAgain)) {
		t.Error("it is said at first, and again after a while")
	}
	now = tick.Add(29 * time.Second)
	if err := s.Ready(); err != nil {
		t.Errorf("after 29 s: %v", err)
	}
	now = tick.Add(30 * time.Second)
	if err := s.Ready(); !errors.Is(err, ErrAway) || !strings.Contains(err.Error(), "store seat findings") {
		t.Errorf("after 30 s: %v", err)
	}
	r.gauge.back(now)
	if err := s.Ready(); err != nil {
		t.Errorf("it is back: %v", err)
	}
	r.gauge.broken(errStalled)
	if err := s.Ready(); !errors.Is(err, errStalled) {
		t.Errorf("the broker is away: %v", err)
	}
}

// 24 h of age, of which 1 h is over; a room of 1000 bytes with 20 messages of 10 bytes waiting and 2 a second coming.
func TestSecondsLeft(t *testing.T) {
	info := func(age time.Duration, bytes int64) *jetstream.StreamInfo {
		return &jetstream.StreamInfo{Config: jetstream.StreamConfig{MaxAge: age, MaxBytes: bytes}, State: jetstream.StreamState{Msgs: 50, Bytes: 500, LastSeq: 100}}
	}
	for _, c := range []struct {
		info   *jetstream.StreamInfo
		oldest time.Time
		rate   float64
		want   float64
	}{
		{info(24*time.Hour, -1), time.Time{}, 2, 86400},
		{info(24*time.Hour, -1), tick.Add(-time.Hour), 2, 82800},
		{info(24*time.Hour, 1000), tick, 2, 40},
		{info(24*time.Hour, 1000), tick, 0, 86400},
		{info(time.Hour, -1), tick.Add(-2 * time.Hour), 2, 0},
	} {
		if got := secondsLeft(c.info, 80, c.oldest, c.rate, tick); got != c.want {
			t.Errorf("%+v: %v seconds, want %v", c, got, c.want)
		}
	}
}
