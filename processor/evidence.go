package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/event"
)

// snapshotTells are the classes that an allocator snapshot says something about beyond what is read all the time.
var snapshotTells = map[string]bool{"retention": true, "fragmentation": true, "stream_backlog": true, "graph_pools": true}

// needHistory are those whose allocations are recorded for a while before the snapshot is taken: only what is allocated meanwhile has a
// stack. Where free memory lies needs none.
var needHistory = map[string]bool{"retention": true, "stream_backlog": true, "graph_pools": true}

const (
	askWait     = 5 * time.Second // a host answers at once; the snapshot itself comes as an event
	maxAsks     = 64              // that wait for their turn
	maxAnswer   = 4 << 10         // bytes
	maxAsked    = 4096            // incidents that are remembered to have been asked for
	askSubjects = "lowtide.ask."
)

// The outcomes of an ask, beside the three that a host answers.
const (
	askAccepted   = "accepted"
	askRefused    = "refused"
	askUnknown    = "unknown_process"
	askSilent     = "no_answer"
	askUnreadable = "unreadable"
	askDropped    = "dropped"
	askForbidden  = "not_allowed"
)

// ErrEvidenceHosts says that a pattern of hosts cannot be matched.
var ErrEvidenceHosts = errors.New("evidence hosts")

// Asker asks hosts for allocator snapshots of processes that an incident suspects, over NATS request and reply: once an incident, only
// hosts that are allowed, one ask at a time in the goroutine of Run. What comes of it is an ordinary event, or nothing. A nil Asker asks
// nobody; so does replay, which has none.
type Asker struct {
	conn    *nats.Conn
	options EvidenceOptions
	log     *slog.Logger
	queue   chan ask

	mu     sync.Mutex
	asked  map[string]uint64 // by incident: which turn it was
	turn   uint64
	counts map[string]int // by outcome
}

// ask is one request and where it goes.
type ask struct {
	subject, host string
	request       askRequest
}

// askRequest and askReply are the JSON of lowtide.ask.<cluster>.<host>.
type askRequest struct {
	Ask            string  `json:"ask"`
	Pid            int64   `json:"pid"`
	StartTicks     *uint64 `json:"start_ticks,omitempty"`
	Incident       string  `json:"incident"`
	Reason         string  `json:"reason"`
	HistorySeconds float64 `json:"history_seconds"`
	Census         bool    `json:"census"`
}

type askReply struct {
	Status string `json:"status"`
	Error  string `json:"error"`
	ID     string `json:"id"`
}

// EvidenceOptions say whom to ask, and for what.
type EvidenceOptions struct {
	Hosts   []string      // patterns of cluster/host, such as prod/gpu-*; none: nobody is asked
	History time.Duration // for how long allocations are recorded first, where stacks tell something
	Census  bool          // also count live tensors that carry a grad_fn, which holds the worker up for up to 200 ms
}

// NewAsker returns an asker, nil where no host may be asked.
func NewAsker(conn *nats.Conn, o EvidenceOptions, log *slog.Logger) (*Asker, error) {
	if len(o.Hosts) == 0 {
		return nil, nil
	}
	for _, p := range o.Hosts {
		if _, err := path.Match(p, "cluster/host"); err != nil || strings.Count(p, "/") != 1 {
			return nil, fmt.Errorf("%w: %q is no pattern of cluster/host", ErrEvidenceHosts, p)
		}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Asker{conn: conn, options: o, log: log, queue: make(chan ask, maxAsks), asked: make(map[string]uint64), counts: make(map[string]int)}, nil
}

// Offer takes a transition that was announced, and never waits. The first of an open incident that a snapshot would tell more about is asked for.
func (a *Asker) Offer(f *event.Finding) {
	if a == nil || !snapshotTells[f.Class] || f.Worker.GetPid() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.State == event.Resolved {
		delete(a.asked, f.Incident)
		return
	}
	if _, done := a.asked[f.Incident]; done {
		return
	}
	a.remember(f.Incident)
	cluster, host := f.Labels["cluster"], f.Labels["host"]
	if !a.allows(cluster, host) {
		a.counts[askForbidden]++
		return
	}
	var history time.Duration
	if needHistory[f.Class] {
		history = a.options.History
	}
	one := ask{subject: askSubjects + cluster + "." + host, host: cluster + "/" + host, request: askRequest{Ask: "snapshot", Pid: f.Worker.Pid, StartTicks: f.Worker.StartTicks,
		Incident: f.Incident, Reason: f.Class + " " + f.State, HistorySeconds: history.Seconds(), Census: a.options.Census && f.Class == "retention"}}
	select {
	case a.queue <- one:
	default:
		a.counts[askDropped]++
		a.log.Warn("evidence not asked for: too many asks wait", "host", one.host, "pid", one.request.Pid, "incident", f.Incident)
	}
}

// remember keeps that an incident was seen to. The oldest is forgotten first: at worst it is asked for once more, and the host has limits
// of its own.
func (a *Asker) remember(incident string) {
	if len(a.asked) >= maxAsked {
		oldest := ""
		for id, turn := range a.asked {
			if oldest == "" || turn < a.asked[oldest] {
				oldest = id
			}
		}
		delete(a.asked, oldest)
	}
	a.turn++
	a.asked[incident] = a.turn
}

// allows says whether a host may be asked. A name that is no token of a subject is nobody's.
func (a *Asker) allows(cluster, host string) bool {
	for _, name := range []string{cluster, host} {
		if name == "" || strings.ContainsAny(name, " \t\r\n.*>/") {
			return false
		}
	}
	return slices.ContainsFunc(a.options.Hosts, func(pattern string) bool {
		fits, err := path.Match(pattern, cluster+"/"+host)
		return fits && err == nil
	})
}

// Run asks until ctx ends. It owns the goroutine that calls it.
func (a *Asker) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-a.queue:
			a.ask(ctx, &one)
		}
	}
}

func (a *Asker) ask(ctx context.Context, one *ask) {
	outcome, reply, err := a.request(ctx, one)
	if ctx.Err() != nil {
		return
	}
	a.count(outcome)
	a.log.Info("evidence asked for", "host", one.host, "pid", one.request.Pid, "incident", one.request.Incident, "reason", one.request.Reason,
		"history_seconds", one.request.HistorySeconds, "answer", outcome, "id", reply.ID, "said", reply.Error, "error", err)
}

func (a *Asker) request(ctx context.Context, one *ask) (outcome string, reply askReply, err error) {
	text, err := json.Marshal(one.request)
	if err != nil {
		return askUnreadable, reply, fmt.Errorf("write ask: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	answer, err := a.conn.RequestWithContext(limited, one.subject, text)
	if err != nil {
		return askSilent, reply, fmt.Errorf("ask %s: %w", one.host, err)
	}
	if len(answer.Data) > maxAnswer {
		return askUnreadable, reply, fmt.Errorf("read answer of %s: %d bytes, %d at most", one.host, len(answer.Data), maxAnswer)
	}
	if err := json.Unmarshal(answer.Data, &reply); err != nil {
		return askUnreadable, askReply{}, fmt.Errorf("read answer of %s: %w", one.host, err)
	}
	switch reply.Status {
	case askAccepted, askRefused, askUnknown:
		return reply.Status, reply, nil
	}
	return askUnreadable, reply, fmt.Errorf("read answer of %s: unknown status %q", one.host, reply.Status)
}

func (a *Asker) count(outcome string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[outcome]++
}

// Counts returns how many asks had which outcome: what the host answered, or no_answer, unreadable, dropped, not_allowed.
func (a *Asker) Counts() map[string]int {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.counts)
}

var asksTotal = prometheus.NewDesc("lowtide_evidence_asks_total", "Allocator snapshots that hosts were asked for because of an incident, by outcome.", []string{"outcome"}, nil)

// Describe implements prometheus.Collector.
func (a *Asker) Describe(out chan<- *prometheus.Desc) { out <- asksTotal }

// Collect implements prometheus.Collector.
func (a *Asker) Collect(out chan<- prometheus.Metric) {
	counts := a.Counts()
	for _, outcome := range []string{askAccepted, askRefused, askUnknown, askSilent, askUnreadable, askDropped, askForbidden} {
		out <- prometheus.MustNewConstMetric(asksTotal, prometheus.CounterValue, float64(counts[outcome]), outcome)
	}
}
