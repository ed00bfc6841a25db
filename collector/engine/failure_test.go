package engine

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/collector/status"
)

// sick answers by host in every way that is no exposition.
func sick(sent *atomic.Int64) http.HandlerFunc {
	line := []byte(strings.Repeat("vllm:num_requests_running 1\n", 1000))
	return func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host)
		switch host {
		case "garbage":
			_, _ = w.Write([]byte("vllm:num_requests_running{engine=\"0\",model_name=\"\x00\xff 7.0\n\x01\x02}}{{\n"))
		case "html":
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<!doctype html><html><body>vllm:num_requests_running</body></html>")
		case "json":
			_, _ = io.WriteString(w, "[]")
		case "declared":
			w.Header().Set("Content-Length", fmt.Sprint(10<<20))
			_, err := w.Write(line)
			for n := 0; err == nil && n < 10<<20; n += len(line) {
				_, err = w.Write(line)
				sent.Add(int64(len(line)))
			}
		case "chunked", "bomb":
			to := io.Writer(w)
			if host == "bomb" {
				w.Header().Set("Content-Encoding", "gzip")
				packed := gzip.NewWriter(w)
				defer packed.Close()
				to = packed
			}
			for n := 0; n < 10<<20; n += len(line) {
				if _, err := to.Write(line); err != nil {
					return
				}
			}
		case "slow": // a line now and then, so that no timeout of a header or a single read would notice
			for {
				if _, err := io.WriteString(w, "vllm:num_requests_running 1\n"); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(500 * time.Millisecond):
				}
			}
		case "never":
			<-r.Context().Done()
		case "missing":
			http.NotFound(w, r)
		case "locked":
			w.WriteHeader(http.StatusUnauthorized)
		case "starting":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "elsewhere":
			http.Redirect(w, r, "http://well:8000/metrics", http.StatusFound)
		case "well":
			_, _ = io.WriteString(w, "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 7.0\n")
		}
	}
}

func TestABadTargetGivesAStatusAndNoMore(t *testing.T) {
	for host, want := range map[string]struct {
		status error
		text   string
	}{
		"garbage":   {status.ErrLost, "not an exposition"},
		"html":      {status.ErrUnsupported, "no metrics of a known engine"},
		"json":      {status.ErrUnsupported, "no metrics of a known engine"},
		"declared":  {status.ErrUnsupported, "answer of 10485760 bytes, more than 4194304"},
		"chunked":   {status.ErrUnsupported, "longer than 4194304 bytes"},
		"bomb":      {status.ErrUnsupported, "longer than 4194304 bytes"},
		"slow":      {context.DeadlineExceeded, "within 2s"},
		"never":     {context.DeadlineExceeded, "within 2s"},
		"missing":   {status.ErrUnsupported, "HTTP 404"},
		"locked":    {status.ErrDenied, "HTTP 401"},
		"starting":  {status.ErrLost, "HTTP 503"},
		"elsewhere": {status.ErrUnsupported, "redirects are not followed"},
	} {
		t.Run(host, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				client, _ := serve(t, sick(&sent))
				s := newSource(t, Options{Client: client, Targets: []Target{
					{URL: "http://user:sesame@" + host + ":8000/metrics?token=sesame", Worker: worker(), Configured: true},
					{URL: "http://well:8000/metrics", Worker: worker(), Configured: true},
				}})
				began := time.Now()
				events, err := s.Collect(t.Context(), at(0))
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("took %v", took)
				}
				if len(events) != 1 || events[0].Engine.GetRunning() != 7 {
					t.Errorf("the other target's events are %v", events)
				}
				if err == nil {
					t.Fatal("no error")
				}
				if !errors.Is(err, want.status) || status.Of(err) != status.Of(want.status) {
					t.Errorf("%v is %s, want %v", err, status.Of(err), want.status)
				}
				if text := err.Error(); !strings.Contains(text, "http://"+host+":8000/metrics: ") || !strings.Contains(text, want.text) {
					t.Errorf("error %q does not name target and reason %q", text, want.text)
				} else if strings.Contains(text, "sesame") || strings.Contains(text, "well") || len(text) > 400 {
					t.Errorf("error %q says too much", text)
				}
				if n := sent.Load(); n > 2<<20 {
					t.Errorf("%d bytes of an answer that is too long were read", n)
				}
			})
		})
	}
}

func TestHangingTargetsCostOthersNoReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		client, _ := serve(t, sick(&sent))
		o := Options{Client: client}
		for i := range maxTargets - 1 {
			o.Targets = append(o.Targets, Target{URL: fmt.Sprintf("http://never:%d/metrics", 9000+i), Worker: worker(), Configured: true})
		}
		o.Targets = append(o.Targets, Target{URL: "http://well:8000/metrics", Worker: worker(), Configured: true})
		s := newSource(t, o)
		_, _ = s.Collect(t.Context(), at(0)) // it learns who hangs
		tick, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		events, err := s.Collect(tick, at(5))
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("took %v, the call's deadline is 5 s", took)
		}
		if len(events) != 1 {
			t.Errorf("%d events", len(events))
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "and 55 more") || len(err.Error()) > 3000 {
			t.Errorf("error of %d bytes: %v", len(err.Error()), err)
		}
	})
}

func TestAnEndedContextIsHeeded(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s := newSource(t, Options{Targets: []Target{{URL: "http://127.0.0.1:9/metrics", Configured: true}}})
	if events, err := s.Collect(ended, at(0)); len(events) != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d events, %v", len(events), err)
	}
}

func TestNobodyListensIsAbsentAndThenLost(t *testing.T) {
	server := httptest.NewServer(shelf{"/metrics": "llamacpp:requests_processing 1\n"})
	s := newSource(t, Options{Targets: []Target{{URL: server.URL, Configured: true}}})
	if events, err := s.Collect(t.Context(), at(0)); err != nil || len(events) != 1 || events[0].Worker.Unit != server.URL[len("http://127.0.0.1:"):] {
		t.Fatalf("%v, %v", events, err)
	}
	server.Close()
	for range 2 {
		if _, err := s.Collect(t.Context(), at(5)); !errors.Is(err, status.ErrLost) || errors.Is(err, status.ErrAbsent) {
			t.Errorf("what answered before is %v", err)
		}
	}
	s = newSource(t, Options{Targets: []Target{{URL: server.URL, Configured: true}}})
	if _, err := s.Collect(t.Context(), at(0)); !errors.Is(err, status.ErrAbsent) {
		t.Errorf("what never answered is %v", err)
	}
}

// A server may pack its answer; the connection is kept for the next reading.
func TestGzipIsReadAndConnectionsAreKept(t *testing.T) {
	text := fixture(t, "vllm_0.24.0_1.txt")
	client, net := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") || !strings.Contains(r.Header.Get("Accept"), "version=0.0.4") {
			t.Errorf("request headers %v", r.Header)
		}
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		_, _ = io.WriteString(packed, text)
		_ = packed.Close()
	}))
	s := newSource(t, Options{Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker()}}, Client: client})
	for i := range 3 {
		if got := bodies(collect(t, s, at(5*i)), "engine"); len(got) != 1 || got[0].Engine.GetRunning() != 4 {
			t.Fatalf("engine events %v", got)
		}
	}
	if n := net.dialed.Load(); n != 1 {
		t.Errorf("%d connections for three readings", n)
	}
}

func TestAnEngineThatIsNotTheConfiguredOneIsUnsupported(t *testing.T) {
	client, _ := serve(t, shelf{"/metrics": "vllm:num_requests_running 1\n"})
	s := newSource(t, Options{Targets: []Target{{URL: "http://127.0.0.1:8000", Engine: "sglang", Worker: worker(), Configured: true}}, Client: client})
	if events, err := s.Collect(t.Context(), at(0)); len(events) > 0 || !errors.Is(err, status.ErrUnsupported) || !strings.Contains(err.Error(), "no metrics of sglang") {
		t.Errorf("%v, %v", events, err)
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	for want, o := range map[string]Options{
		"http://127.0.0.1:1/metrics: is named twice": {Targets: []Target{{URL: "http://127.0.0.1:1/metrics"}, {URL: "http://127.0.0.1:1/metrics"}}},
		"no http or https address":                   {Targets: []Target{{URL: "file:///etc/passwd"}}},
		`no table is named "vlm"`:                    {Targets: []Target{{URL: "http://127.0.0.1:1", Engine: "vlm", Configured: true}}},
		"not a glob":                                 {SLOs: []SLO{{Model: "[", TTFT: time.Second}}},
		"has no objective":                           {SLOs: []SLO{{Model: "*"}}},
		"65 targets, at most 64":                     {Targets: make([]Target, 65)},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := New(Options{Targets: []Target{{URL: "http://user:sesame@[::1/metrics"}}}); err == nil || strings.Contains(err.Error(), "sesame") {
		t.Errorf("error %v tells a password, or is none", err)
	}
}
