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

// needHistory are the classes that an allocator snapshot says something about beyond what is read all the time, and whether allocations
// are recorded for a while before it is taken: only what is allocated meanwhile has a stack. Where free memory lies needs none.
var needHistory = map[string]bool{"retention": true, "fragmentation": false, "stream_backlog": true, "graph_pools": true}

// snapshotTells says that a snapshot says something about a class.
func snapshotTells(class string) bool {
	_, tells := needHistory[class]
	return tells
}

const (
	askWait   = 5 * time.Second  // a host answers at once; the snapshot itself comes as an event
	maxAsks   = 64               // that wait for their turn
	maxAnswer = 4 << 10          // bytes
	maxAsked  = 4096             // incidents that are remembered to have been asked for
	askAgain  = 11 * time.Minute // a host takes a snapshot of a process every ten minutes at most
)

// The outcomes of an ask, beside the three that a host answers.
const (
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
	again   time.Duration // after which a refused ask is made once more

	mu     sync.Mutex
	asked  map[string]uint64 // by incident, or rule and process: which turn it was
	turn   uint64
	counts map[string]int // by outcome
}

// ask is one request and where it goes.
type ask struct {
	about         string // the incident, or the rule and the process
	subject, host string
	request       event.AskRequest
	due           time.Time // of one that was refused
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
	return &Asker{conn: conn, options: o, log: log, queue: make(chan ask, maxAsks), again: askAgain, asked: make(map[string]uint64), counts: make(map[string]int)}, nil
}

// Offer takes a transition that was announced, and never waits. The first of an open incident that a snapshot would tell more about is asked
// for; where the host did not take that ask, so is the next one.
func (a *Asker) Offer(f *event.Finding) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.concerns(f) {
		return
	}
	var history time.Duration
	if needHistory[f.Class] {
		history = a.options.History
	}
	a.offer(f.Incident, f.Labels["cluster"], f.Labels["host"], event.AskRequest{Ask: event.AskSnapshot, PID: f.Worker.Pid, StartTicks: f.Worker.StartTicks,
		Incident: f.Incident, Reason: f.Class + " " + f.State, HistorySeconds: history.Seconds(), Census: a.options.Census && f.Class == "retention"})
}

// Want takes what a rule asks for without a suspicion, and never waits. Nothing is recorded for it: it is to see where memory lies, and the
// worker may be well.
func (a *Asker) Want(w *Wish) {
	if a == nil || w.Worker.GetPid() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.offer(w.Rule+" "+w.Key, w.Cluster, w.Host, event.AskRequest{Ask: event.AskSnapshot, PID: w.Worker.Pid, StartTicks: w.Worker.StartTicks, Reason: w.Class + " possible"})
}

// Seen takes a transition of before this process began: what it was asked for then is not asked again.
func (a *Asker) Seen(f *event.Finding) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.concerns(f) {
		a.remember(f.Incident)
	}
}

// concerns says that a snapshot would tell more about a transition; an incident that has resolved is forgotten. Mu is held.
func (a *Asker) concerns(f *event.Finding) bool {
	if !snapshotTells(f.Class) || f.Worker.GetPid() == 0 {
		return false
	}
	if f.State == event.Resolved {
		delete(a.asked, f.Incident)
		return false
	}
	return true
}

// offer queues an ask, unless the same thing was asked for. Mu is held.
func (a *Asker) offer(about, cluster, host string, request event.AskRequest) {
	if _, done := a.asked[about]; done {
		return
	}
	if !a.allows(cluster, host) {
		a.remember(about)
		a.counts[askForbidden]++
		return
	}
	one := ask{about: about, subject: event.AskSubject(cluster, host), host: cluster + "/" + host, request: request}
	select {
	case a.queue <- one:
		a.remember(about)
	default: // not remembered: the next transition has another chance
		a.counts[askDropped]++
		if n := a.counts[askDropped]; n&(n-1) == 0 { // in a storm one line would come for each
			a.log.Warn("evidence not asked for: too many asks wait", "dropped", n, "host", one.host, "pid", one.request.PID, "incident", request.Incident)
		}
	}
}

// remember keeps that an incident was seen to. The older half is forgotten where too many are kept: at worst they are asked for once more,
// and the host has limits of its own.
func (a *Asker) remember(about string) {
	if len(a.asked) >= maxAsked {
		turns := slices.Sorted(maps.Values(a.asked))
		middle := turns[len(turns)/2]
		maps.DeleteFunc(a.asked, func(_ string, turn uint64) bool { return turn < middle })
	}
	a.turn++
	a.asked[about] = a.turn
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

// Run asks until ctx ends. It owns the goroutine that calls it. What a host refuses, because it was asked too lately or has too much to do,
// is asked for once more later.
func (a *Asker) Run(ctx context.Context) {
	var refused []ask // in the order of their time, since all wait as long
	timer := time.NewTimer(a.again)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-a.queue:
			if a.ask(ctx, &one) == event.AskRefused && len(refused) < maxAsks {
				one.due = time.Now().Add(a.again)
				refused = append(refused, one)
				timer.Reset(time.Until(refused[0].due))
			}
		case <-timer.C:
			for len(refused) > 0 && !time.Now().Before(refused[0].due) {
				if one := &refused[0]; a.open(one.about) {
					a.ask(ctx, one)
				}
				refused = refused[1:]
			}
			if len(refused) > 0 {
				timer.Reset(time.Until(refused[0].due))
			}
		}
	}
}

// open says that what was asked for is still of interest: an incident that has resolved is forgotten.
func (a *Asker) open(about string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, is := a.asked[about]
	return is
}

// ask asks a host, and returns what came of it; nothing once ctx has ended. Where nobody answered, the next transition may ask again.
func (a *Asker) ask(ctx context.Context, one *ask) (outcome string) {
	outcome, reply, err := a.request(ctx, one)
	if ctx.Err() != nil {
		return ""
	}
	a.count(outcome)
	if outcome == askSilent {
		a.mu.Lock()
		delete(a.asked, one.about)
		a.mu.Unlock()
	}
	a.log.Info("evidence asked for", "host", one.host, "pid", one.request.PID, "incident", one.request.Incident, "reason", one.request.Reason,
		"history_seconds", one.request.HistorySeconds, "answer", outcome, "id", reply.ID, "said", event.Shorten(reply.Error, 256), "error", err)
	return outcome
}

func (a *Asker) request(ctx context.Context, one *ask) (outcome string, reply event.AskReply, err error) {
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
		return askUnreadable, event.AskReply{}, fmt.Errorf("read answer of %s: %w", one.host, err)
	}
	switch reply.Status {
	case event.AskAccepted, event.AskRefused, event.AskUnknown:
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
	for _, outcome := range []string{event.AskAccepted, event.AskRefused, event.AskUnknown, askSilent, askUnreadable, askDropped, askForbidden} {
		out <- prometheus.MustNewConstMetric(asksTotal, prometheus.CounterValue, float64(counts[outcome]), outcome)
	}
}
