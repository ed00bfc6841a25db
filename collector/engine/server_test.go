package engine

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lowtide/event"
)

// pipes is a network in memory, so that a test's clock can be synctest's: no packet is under way that it would not know of.
type pipes struct {
	accept chan net.Conn
	done   chan struct{}
	dialed atomic.Int64 // connections that were opened
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.done:
	default:
		close(p.done)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8000} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.dialed.Add(1)
	near, far := net.Pipe()
	select {
	case p.accept <- far:
		return near, nil
	case <-p.done:
		return nil, errors.New("connection reset")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve runs a real HTTP server on a network in memory; every address leads to it.
func serve(t *testing.T, h http.Handler) (*http.Client, *pipes) {
	p := &pipes{accept: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(p) }()
	transport := &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: 1}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		<-ended
	})
	return &http.Client{Transport: transport}, p
}

// shelf serves texts by path; what a test puts there is what the next reading gets.
type shelf map[string]string

func (s shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, ok := s[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(text))
}

func fixture(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func newSource(t testing.TB, o Options) *Source {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// at is the tick n seconds into a test.
func at(n int) time.Time { return time.Unix(1_790_000_000+int64(n), 0).UTC() }

// collect wants a reading without an error, whose events keep the vocabulary's rules.
func collect(t testing.TB, s *Source, tick time.Time) []*event.Event {
	t.Helper()
	events, err := s.Collect(t.Context(), tick)
	if err != nil {
		t.Fatalf("collect: %v", err)
	}
	for _, e := range events {
		if err := event.Validate(e); err != nil {
			t.Fatalf("event %v: %v", e, err)
		}
		if !e.At().Equal(tick) {
			t.Fatalf("event of %v at the tick %v", e.At(), tick)
		}
	}
	return events
}

// bodies returns the events that have a body, in order.
func bodies(events []*event.Event, body string) []*event.Event {
	var out []*event.Event
	for _, e := range events {
		if e.Body() == body {
			out = append(out, e)
		}
	}
	return out
}

func worker() *event.Worker { return &event.Worker{Pid: 4711, Unit: "serve.service"} }

// counted lets a handler be asked how often each path was fetched.
type counted struct {
	http.Handler
	mu    sync.Mutex
	paths map[string]int
}

func (c *counted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	if c.paths == nil {
		c.paths = make(map[string]int)
	}
	c.paths[r.URL.Path]++
	c.mu.Unlock()
	c.Handler.ServeHTTP(w, r)
}

func (c *counted) of(path string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paths[path]
}
