package allocator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"lowtide/collector/snapshot"
	"lowtide/event"
)

const (
	// MaxHistory is the longest that a worker is asked to record its allocations for a snapshot.
	MaxHistory = 30 * time.Minute

	maxAsks      = 4                // of a host at a time, beside the post-mortems
	askEvery     = 10 * time.Minute // of a process
	maxArmed     = 64               // processes whose post-mortem is prepared
	armEvery     = time.Minute      // of a process, after one that was used
	armAgain     = 10 * time.Minute // after one that failed
	armBudget    = 10 * time.Second // of a post-mortem
	maxEntries   = 50_000           // of the history
	censusBudget = 200 * time.Millisecond
	maxJobs      = 2 * (maxAsks + maxArmed)
	pruneEvery   = 10 * time.Minute
	armPatience  = 100 * time.Millisecond // for a probe to take a line: many may have to be armed
	askPatience  = time.Second
)

// What Ask says no with, and errNoFile of a post-mortem.
var (
	errNoFile = errors.New("no file can be opened for it")

	ErrNoEvidence = errors.New("evidence is off on this host; hint: start its collector with --evidence")
	ErrUnknown    = errors.New("no such process")
	ErrRefused    = errors.New("refused")
)

// Evidence says where the raw snapshots of the workers' allocators go, and who reads them. Without it no probe is asked for any.
type Evidence struct {
	Store  *snapshot.Store
	Reader Reader
	Host   string        // name of this host, a part of every file's name
	Bytes  int64         // of one raw snapshot; 256 MiB when zero
	Budget time.Duration // from the moment that it is begun until it is written, on a busy machine; 30 s when zero. A post-mortem, which the program waits for, has 10 s at most
	Slack  time.Duration // beyond history and budget, until an ask is given up; 30 s when zero
	Log    *slog.Logger  // nil discards
}

// Reader summarises a raw snapshot, one event.Snapshot a device; before is an earlier one of the same process, or nil. The collector's
// is snapshot.Child.
type Reader interface {
	Summarise(ctx context.Context, raw, before *os.File, reason string, gpus map[string]string) ([]*event.Snapshot, error)
}

// Ask is somebody's wish to look into a process.
type Ask struct {
	PID        int
	StartTicks *uint64       // of the life that is meant; nil for whoever has the pid
	Reason     string        // the reason of the `snapshot` event; "asked" when empty
	History    time.Duration // to record allocations before; zero for at once
	Census     bool          // count live tensors that carry a grad_fn, too
}

// Outcome is what became of asks (kind "asked") and post-mortems (kind "oom").
type Outcome struct{ Kind, Result string }

// life is one process life.
type life struct {
	pid   int
	ticks uint64
}

// sent is an ask that a probe has not answered.
type sent struct {
	Ask
	id      string
	life    life
	worker  *event.Worker
	gpu     string // of the process's only card
	armed   bool   // it is a post-mortem's, which waits for an OOM
	raw     *snapshot.Raw
	at      time.Time // when it was sent
	until   time.Time // when it is given up
	away    bool      // the connection it went over is closed
	hostile bool      // its file grew beyond its bound, and is emptied until the process ends
	again   bool      // it was sent before
}

// kept is the newest raw snapshot of a process.
type kept struct {
	name string
	at   time.Time
}

// arming is when a process may be armed again.
type arming struct {
	next  time.Time
	never bool // its allocator has no snapshots, or it cannot be trusted with a file
}

// desk is where asks go out and answers come in. Its lock is held while a probe takes a line, and never asked for under Source.mu.
type desk struct {
	source *Source
	Evidence
	wake   chan struct{} // capacity 1: a tick, or a connection that is gone
	work   chan struct{} // capacity 1: jobs
	cancel context.CancelFunc
	ctx    context.Context // of the children

	mu      sync.Mutex
	asks    map[string]*sent
	asked   map[life]time.Time
	arms    map[life]arming
	kept    map[life]kept
	jobs    []job
	later   []later
	loose   []*snapshot.Raw // of no use any more, and somebody may still write to them
	counts  map[Outcome]uint64
	trouble string // why nothing is armed, as last said
	pruned  time.Time
}

func newDesk(s *Source, e Evidence) *desk {
	if e.Bytes <= 0 {
		e.Bytes = 256 << 20
	}
	if e.Budget <= 0 {
		e.Budget = 30 * time.Second
	}
	if e.Slack <= 0 {
		e.Slack = 30 * time.Second
	}
	if e.Log == nil {
		e.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	d := &desk{source: s, Evidence: e, wake: make(chan struct{}, 1), work: make(chan struct{}, 1), asks: make(map[string]*sent), asked: make(map[life]time.Time),
		arms: make(map[life]arming), kept: make(map[life]kept), counts: make(map[Outcome]uint64)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// run starts the desk's two goroutines, which end with the source: one keeps what is outstanding in order, one has snapshots read.
func (d *desk) run() {
	d.source.serving.Go(func() {
		for {
			select {
			case <-d.source.done:
				return
			case <-d.wake:
				d.tend(time.Now())
			}
		}
	})
	d.source.serving.Go(func() {
		for {
			select {
			case <-d.source.done:
				return
			case <-d.work:
				for j, more := d.next(); more; j, more = d.next() {
					d.read(d.ctx, j)
				}
			}
		}
	})
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// close lets go of every file. The goroutines are gone.
func (d *desk) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.asks {
		a.raw.Close() // nobody will read it: it is gone with its descriptor
	}
	for _, j := range d.jobs {
		j.raw.Close()
	}
	for _, raw := range d.loose {
		raw.Close()
	}
	clear(d.asks)
	d.jobs, d.later, d.loose = nil, nil, nil
	if err := d.Store.Close(); err != nil {
		d.Log.Warn("folder of raw snapshots is not closed", "error", err)
	}
}

// Ask sends an ask to the probe of a process and returns its id. What becomes of it comes as a `snapshot` event, or as a `source` event
// named evidence whose error names the id. The error wraps ErrNoEvidence, ErrUnknown or ErrRefused, and says what would help.
func (s *Source) Ask(a Ask) (id string, err error) {
	d := s.desk
	if d == nil {
		return "", ErrNoEvidence
	}
	if a.Reason == "" {
		a.Reason = "asked"
	}
	a.Reason = event.Shorten(strings.Map(printable, a.Reason), 256)
	if a.History < 0 || a.History > MaxHistory {
		return "", fmt.Errorf("%w: a history of %v; hint: from 0 to %v", ErrRefused, a.History, MaxHistory)
	}
	p, backend, gpu := s.probeOf(a.PID)
	if p == nil {
		if _, err := startTicks(s.o.ProcRoot, a.PID); err != nil {
			return "", fmt.Errorf("%w: pid %d; hint: `lowtide status` names the workers", ErrUnknown, a.PID)
		}
		return "", fmt.Errorf("%w with a probe: pid %d; hint: install the probe into its Python (docs/watching.md), and start it anew", ErrUnknown, a.PID)
	}
	if a.StartTicks != nil && *a.StartTicks != p.ticks {
		return "", fmt.Errorf("%w: pid %d is another process by now", ErrUnknown, a.PID)
	}
	if backend != "" && backend != "native" {
		return "", fmt.Errorf("%w: the allocator of pid %d is %s, which keeps no snapshot", ErrRefused, a.PID, backend)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if err := d.allows(life{p.pid, p.ticks}, now); err != nil {
		return "", err
	}
	sent, err := d.send(p, gpu, &sent{Ask: a, id: rand.Text()}, now)
	if err != nil {
		d.count(false, "unsent")
		return "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	d.asked[sent.life] = now
	return sent.id, nil
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}

// allows says whether the process may be asked now. The lock is held.
func (d *desk) allows(l life, now time.Time) error {
	if d.arms[l].never {
		return fmt.Errorf("%w: pid %d is not asked any more: %s", ErrRefused, l.pid, "its snapshots failed for good")
	}
	if at, ok := d.asked[l]; ok && now.Sub(at) < askEvery {
		return fmt.Errorf("%w: pid %d was asked %v ago, and is asked once in %v; hint: wait for %v", ErrRefused, l.pid, now.Sub(at).Round(time.Second), askEvery,
			(askEvery - now.Sub(at)).Round(time.Second))
	}
	for _, a := range d.asks {
		if !a.armed && !a.hostile && a.life == l {
			return fmt.Errorf("%w: pid %d has not answered the last ask", ErrRefused, l.pid)
		}
	}
	if n := d.outstanding(); n >= maxAsks {
		return fmt.Errorf("%w: %d asks of this host are not answered; hint: wait for one", ErrRefused, n)
	}
	return nil
}

// outstanding is how many asks of the host are not answered, those that wait to be sent again among them. The lock is held.
func (d *desk) outstanding() int {
	n := len(d.later)
	for _, a := range d.asks {
		if !a.armed && !a.hostile {
			n++
		}
	}
	return n
}

// probeOf finds the newest connection of a process whose probe has said hello.
func (s *Source) probeOf(pid int) (found *peer, backend, gpu string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		if p.pid == pid && p.hello != nil && (found == nil || p.last.After(found.last)) {
			found, backend, gpu = p, p.hello.backend, p.gpu
		}
	}
	return found, backend, gpu
}

// send opens a file and hands it to the probe with the ask. The error wraps errNoFile where it is not the probe's. The lock is held.
func (d *desk) send(p *peer, gpu string, s *sent, now time.Time) (*sent, error) {
	raw, err := d.Store.New()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoFile, err)
	}
	s.life, s.worker, s.gpu, s.raw, s.at, s.away = life{p.pid, p.ticks}, p.worker(), gpu, raw, now, false
	s.until = now.Add(s.History + d.Budget + d.Slack)
	patience := askPatience
	if s.armed {
		patience = armPatience
	}
	if err := d.hand(p, s, patience); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	d.asks[s.id] = s
	d.count(s.armed, "sent")
	return s, nil
}

func (d *desk) count(armed bool, result string) {
	kind := "asked"
	if armed {
		kind = "oom"
	}
	d.counts[Outcome{kind, result}]++
}

// Outcomes are what became of asks and post-mortems so far; nil where evidence is off.
func (s *Source) Outcomes() map[Outcome]uint64 {
	if s.desk == nil {
		return nil
	}
	s.desk.mu.Lock()
	defer s.desk.mu.Unlock()
	return maps.Clone(s.desk.counts)
}

// tend gives up what is not answered, takes up what a process left that ended, and arms who is not.
func (d *desk) tend(now time.Time) {
	connected := d.source.probes()
	d.mu.Lock()
	defer d.mu.Unlock()
	armed := make(map[life]bool)
	for id, a := range d.asks {
		if d.hostile(a) && d.source.ended(a.life) {
			delete(d.asks, id)
			d.drop(a.raw)
		}
		if a.hostile {
			continue
		}
		size, _ := a.raw.Size() // a file that cannot be asked is as good as an empty one
		back := slices.ContainsFunc(connected, func(c probe) bool { return c.life == a.life })
		switch {
		case a.away && (back || d.source.ended(a.life)):
			// Nobody will say any more that the file is written: a probe forgets what it was asked over another connection.
			delete(d.asks, id)
			switch {
			case size > 0:
				d.enqueue(job{sent: a})
			case a.armed:
				d.drop(a.raw)
			default:
				d.drop(a.raw)
				d.failed(a, "died", fmt.Errorf("the process ended, or its probe went away, before it answered"), 0, now)
			}
			continue
		case !a.armed && now.After(a.until) && a.raw.Ended():
			delete(d.asks, id)
			d.enqueue(job{sent: a})
			continue
		case !a.armed && now.After(a.until):
			delete(d.asks, id)
			d.drop(a.raw)
			d.failed(a, "timeout", fmt.Errorf("%w: the probe has not answered; hint: it may be older than this collector", context.DeadlineExceeded), now.Sub(a.at), now)
			continue
		}
		if a.armed {
			armed[a.life] = true
		}
	}
	d.dropLoose()
	d.sendLater(connected, now)
	d.arm(connected, armed, now)
	d.forget(connected)
	if now.Sub(d.pruned) >= pruneEvery {
		d.pruned = now
		if err := d.Store.Prune(now); err != nil {
			d.Log.Warn("raw snapshots are not pruned", "error", err)
		}
	}
}

// arm prepares the post-mortem of every process with PyTorch's own allocator that has none. The lock is held.
func (d *desk) arm(connected []probe, armed map[life]bool, now time.Time) {
	for _, c := range connected {
		if c.backend != "native" || !c.reads || armed[c.life] || len(armed) >= maxArmed || d.arms[c.life].never || now.Before(d.arms[c.life].next) {
			continue
		}
		armed[c.life] = true
		d.arms[c.life] = arming{next: now.Add(armEvery)}
		_, err := d.send(c.peer, c.gpu, &sent{Ask: Ask{PID: c.life.pid, Reason: "oom"}, id: rand.Text(), armed: true}, now)
		switch {
		case errors.Is(err, errNoFile): // nor for any other
			d.arms[c.life] = arming{}
			if d.trouble == "" {
				d.Log.Warn("post-mortems of failed allocations are not prepared", "error", err)
			}
			d.trouble = err.Error()
			return
		case err != nil:
			d.count(true, "unsent")
			d.Log.Debug("post-mortem is not prepared", "pid", c.life.pid, "error", err)
		case d.trouble != "":
			d.Log.Info("post-mortems of failed allocations are prepared again")
			d.trouble = ""
		}
	}
}

// forget drops what is known of processes that are gone.
func (d *desk) forget(connected []probe) {
	here := make(map[life]bool)
	for _, c := range connected {
		here[c.life] = true
	}
	for _, j := range d.jobs {
		here[j.life] = true
	}
	for _, a := range d.asks {
		here[a.life] = true
	}
	for _, l := range d.later {
		here[l.life] = true
	}
	gone := func(l life) bool { return !here[l] && d.source.ended(l) }
	maps.DeleteFunc(d.asked, func(l life, _ time.Time) bool { return gone(l) })
	maps.DeleteFunc(d.arms, func(l life, _ arming) bool { return gone(l) })
	maps.DeleteFunc(d.kept, func(l life, _ kept) bool { return gone(l) })
}
