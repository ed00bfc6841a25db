package collector_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/collector"
	"lowtide/collector/allocator"
	"lowtide/collector/engine"
	"lowtide/collector/kernel"
	"lowtide/collector/logs"
	"lowtide/collector/nvml"
	"lowtide/collector/process"
	"lowtide/collector/recording"
	"lowtide/collector/sim"
	"lowtide/collector/spool"
	"lowtide/collector/status"
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
			t.Cleanup(func() { s.Close() })
			return s
		},
		"nvml": func(t *testing.T) collector.Source {
			s := nvml.New(nvml.Options{})
			t.Cleanup(func() { s.Close() })
			return s
		},
		"engine": func(t *testing.T) collector.Source {
			answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 7.0\n"+
					"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0.0\n")
			}))
			t.Cleanup(answers.Close)
			tables, err := engine.LoadTables()
			if err != nil {
				t.Fatal(err)
			}
			s, err := engine.New(engine.Options{Tables: tables, Targets: []engine.Target{{URL: answers.URL + "/metrics", Configured: true, Worker: &event.Worker{Pid: 1}}}})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"allocator": func(t *testing.T) collector.Source {
			folder, err := os.MkdirTemp("", "lt") // a socket's path has 107 characters at most
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(folder) })
			s, err := allocator.Listen(allocator.Options{Socket: folder + "/p.sock"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
		"kernel": func(t *testing.T) collector.Source {
			s, err := kernel.Open(kernel.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
		"logs": func(t *testing.T) collector.Source {
			path := filepath.Join(t.TempDir(), "engine.log")
			if err := os.WriteFile(path, []byte("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free.\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := logs.New(logs.Options{Files: []logs.File{{Path: path, Worker: &event.Worker{Pid: 1}}}, FromBeginning: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
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
		"spool": func(t *testing.T) collector.Source {
			kept, err := spool.Open(spool.Options{Folder: t.TempDir(), MaxBytes: spool.MinBytes})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { kept.Close() })
			return spool.NewSensor(kept, nil)
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
			if hard := map[string]bool{"nvml": true, "kernel": true}; hard[name] && (errors.Is(err, status.ErrAbsent) || errors.Is(err, status.ErrDenied)) {
				t.Skipf("SKIPPED: this host lacks what %s reads: %v", name, err)
			}
			// A host on which nothing went wrong and no probe has connected has nothing to say there, and the spool never sees anything.
			if silent := map[string]bool{"kernel": true, "allocator": true, "spool": true}; err != nil || len(events) == 0 && !silent[name] {
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
			if len(events) == 0 {
				return
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
