package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/collector/allocator"
	"lowtide/collector/snapshot"
	"lowtide/event"
	"lowtide/processor/broker"
)

const (
	maxAsk       = 4 << 10 // bytes of a request
	waitingAsks  = 16      // beyond them a request is lost, and whoever asked hears nothing
	minutesLimit = 24 * 60 // of a history, far beyond what is accepted
)

// Evidence says where raw snapshots go.
type Evidence struct {
	Folder string
	Host   string // name of this host, a part of every file's name
}

// open makes what the allocator source needs.
func (e *Evidence) open(log *slog.Logger) (*allocator.Evidence, error) {
	store, err := snapshot.OpenStore(e.Folder)
	if err != nil {
		return nil, &broker.Failure{What: err.Error(), Remedy: "run as a user that may write there, or give another --snapshot-dir", Err: err, Code: 2}
	}
	return &allocator.Evidence{Store: store, Reader: snapshot.Child{}, Host: e.Host, Log: log}, nil
}

// probes is the allocator source, once it is open: what is in its way may go only later.
type probes struct {
	source atomic.Pointer[allocator.Source]
}

func (p *probes) Ask(a allocator.Ask) (string, error) {
	if s := p.source.Load(); s != nil {
		return s.Ask(a)
	}
	return "", fmt.Errorf("%w: the probes' socket is not open; hint: `lowtide doctor` says why", allocator.ErrRefused)
}

// asked answers what is asked over NATS, one request after the other.
type asked struct {
	ask func(allocator.Ask) (string, error)
	log *slog.Logger

	mu     sync.Mutex
	counts map[string]uint64 // by status
}

func newAsked(ask func(allocator.Ask) (string, error), log *slog.Logger) *asked {
	return &asked{ask: ask, log: log, counts: make(map[string]uint64)}
}

// run answers until the context ends.
func (a *asked) run(ctx context.Context, conn *nats.Conn, host *event.Host) error {
	requests := make(chan *nats.Msg, waitingAsks)
	subscription, err := conn.ChanSubscribe(event.AskSubject(host.Cluster, host.Name), requests)
	if err != nil {
		return fmt.Errorf("listen for asks: %w", err)
	}
	defer subscription.Unsubscribe() // the connection may be closed already, which ends it as well
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-requests:
			reply := a.answer(m.Data)
			text, err := json.Marshal(reply)
			if err != nil {
				return fmt.Errorf("answer ask: %w", err)
			}
			if err := m.Respond(text); err != nil {
				a.log.Warn("an ask is not answered", "error", err)
			}
		}
	}
}

func (a *asked) answer(text []byte) event.AskReply {
	reply, r := a.decide(text)
	a.mu.Lock()
	a.counts[reply.Status]++
	a.mu.Unlock()
	a.log.Info("asked for evidence", "pid", r.PID, "incident", event.Shorten(r.Incident, 128), "reason", event.Shorten(r.Reason, 128), "status", reply.Status, "ask", reply.ID, "error", reply.Error)
	return reply
}

func (a *asked) decide(text []byte) (event.AskReply, event.AskRequest) {
	r, err := parseAsk(text)
	if err != nil {
		return event.AskReply{Status: event.AskRefused, Error: err.Error()}, r
	}
	id, err := a.ask(allocator.Ask{PID: int(r.PID), StartTicks: r.StartTicks, Reason: r.Reason, Census: r.Census,
		History: time.Duration(r.HistorySeconds * float64(time.Second))})
	switch {
	case errors.Is(err, allocator.ErrUnknown):
		return event.AskReply{Status: event.AskUnknown, Error: err.Error()}, r
	case err != nil:
		return event.AskReply{Status: event.AskRefused, Error: err.Error()}, r
	}
	return event.AskReply{Status: event.AskAccepted, ID: id}, r
}

// parseAsk reads a request. The error names the field.
func parseAsk(text []byte) (event.AskRequest, error) {
	var r event.AskRequest
	if len(text) > maxAsk {
		return r, fmt.Errorf("read ask: %d bytes, at most %d", len(text), maxAsk)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return event.AskRequest{}, fmt.Errorf("read ask: %w", err)
	}
	switch {
	case r.Ask != event.AskSnapshot:
		return r, fmt.Errorf("field ask: %q; this collector knows %s", event.Shorten(r.Ask, 32), event.AskSnapshot)
	case r.PID <= 0 || r.PID > 1<<31-1:
		return r, fmt.Errorf("field pid: %d is no process", r.PID)
	case !(r.HistorySeconds >= 0 && r.HistorySeconds <= minutesLimit*60):
		return r, fmt.Errorf("field history_seconds: %v; from 0 to %v", r.HistorySeconds, allocator.MaxHistory.Seconds())
	}
	return r, nil
}

var (
	askedDesc    = prometheus.NewDesc("lowtide_evidence_requests_total", "Requests for evidence over NATS, by the answer that they were given.", []string{"status"}, nil)
	evidenceDesc = prometheus.NewDesc("lowtide_evidence_total", "Snapshots (kind asked) and post-mortems (kind oom) that probes were asked for, and what became of them.", []string{"kind", "result"}, nil)
)

// Describe implements prometheus.Collector.
func (a *asked) Describe(out chan<- *prometheus.Desc) { out <- askedDesc }

// Collect implements prometheus.Collector.
func (a *asked) Collect(out chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for status, n := range a.counts {
		out <- prometheus.MustNewConstMetric(askedDesc, prometheus.CounterValue, float64(n), status)
	}
}

// Describe implements prometheus.Collector.
func (p *probes) Describe(out chan<- *prometheus.Desc) { out <- evidenceDesc }

// Collect implements prometheus.Collector.
func (p *probes) Collect(out chan<- prometheus.Metric) {
	s := p.source.Load()
	if s == nil {
		return
	}
	for o, n := range s.Outcomes() {
		out <- prometheus.MustNewConstMetric(evidenceDesc, prometheus.CounterValue, float64(n), o.Kind, o.Result)
	}
}
