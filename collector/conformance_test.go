package collector_test

import (
	"context"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/collector"
	"lowtide/collector/process"
	"lowtide/collector/recording"
	"lowtide/collector/sim"
	"lowtide/event"
)

// Every source of this module: a new one is added here and nowhere else.
func sources(t *testing.T, tick time.Time) map[string]func(t *testing.T) collector.Source {
	return map[string]func(t *testing.T) collector.Source{
		"process": func(t *testing.T) collector.Source {
			if _, err := os.Stat("/proc/self/status"); err != nil {
				t.Skip("SKIPPED: this machine has no /proc")
			}
			s, err := process.New(process.Options{PIDs: []int{os.Getpid()}})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"recording": func(t *testing.T) collector.Source {
			s, err := recording.Open("recording/testdata/leak_first_100_minutes.ndjson.gz", recording.Options{Start: tick.Add(-time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
		"sim": func(t *testing.T) collector.Source {
			s, err := sim.New(sim.Options{Start: tick.Add(-time.Minute)})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	}
}

// What the contract of Source promises, asked of each.
func TestEverySourceKeepsTheContract(t *testing.T) {
	tick := time.Now().UTC().Truncate(time.Second)
	agent := &event.Host{Cluster: "lab", Name: "agent"}
	for name, open := range sources(t, tick) {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			if s.Name() == "" || s.Name() != event.Token(s.Name()) {
				t.Errorf("name %q is no token", s.Name())
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if events, err := s.Collect(ended, tick); len(events) > collectorBound {
				t.Errorf("an ended context is not heeded: %d events, %v", len(events), err)
			}
			events, err := s.Collect(t.Context(), tick)
			if err != nil || len(events) == 0 {
				t.Fatalf("%d events, %v", len(events), err)
			}
			for _, e := range events {
				if e.Host == nil {
					e.Host = agent
				}
				if err := event.Validate(e); err != nil {
					t.Fatalf("event %v: %v", e, err)
				}
				if e.At().After(tick) {
					t.Errorf("an event of %v at the tick %v", e.At(), tick)
				}
				if e.Source != nil {
					t.Error("the `source` event is the loop's to make")
				}
			}
			// The caller owns the events: what it does to them must not come back.
			kept := proto.CloneOf(events[0])
			later, err := s.Collect(t.Context(), tick.Add(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range later {
				if e.At().Before(tick) && name != "recording" {
					t.Errorf("the second call goes back to %v", e.At())
				}
				e.Time = nil
			}
			if !proto.Equal(events[0], kept) {
				t.Error("an event of the first call changed with the second")
			}
		})
	}
}

// collectorBound is what a call may still hand over when its context has ended: one host's tick.
const collectorBound = 100
