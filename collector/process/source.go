// Package process owns the source that reads /proc: memory, handles and cgroup of the processes that serve models, and the host's
// own memory; and the roster that knows these processes, as the trees behind engines' endpoints, for everybody who knows no more
// than a pid. It refuses to look at other processes beyond their command line, reads of an environment only the rank in it, and
// never walks a process's memory maps.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/procfs"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

// Options say where to read and which processes matter.
type Options struct {
	ProcRoot     string         // /proc when empty
	CgroupRoot   string         // /sys/fs/cgroup when empty
	LogRoot      string         // whose folder containers/ names pods; /var/log when empty
	PodResources string         // the kubelet's socket; /var/lib/kubelet/pod-resources/kubelet.sock when empty
	PIDs         []int          // these processes and no search, when given
	Match        *regexp.Regexp // on the command line, arguments joined by spaces; DefaultMatch when nil
	Interval     time.Duration  // between the loop's ticks, which tells a tick from a call after Wake; 5 s when zero

	every bool // what matches was asked for, so that all of it is shown
	self  int  // the collector's pid as ProcRoot has it, 0 when it is not there
}

func (o *Options) fill() {
	o.ProcRoot = first(o.ProcRoot, procfs.DefaultMountPoint)
	o.CgroupRoot = first(o.CgroupRoot, "/sys/fs/cgroup")
	o.LogRoot = first(o.LogRoot, "/var/log")
	o.PodResources = first(o.PodResources, "/var/lib/kubelet/pod-resources/kubelet.sock")
	o.every = o.Match != nil || len(o.PIDs) > 0
	if o.Match == nil {
		o.Match = regexp.MustCompile(DefaultMatch)
	}
	if o.Interval <= 0 {
		o.Interval = 5 * time.Second
	}
	// Pids of another namespace's /proc are not ours to watch, nor to compare with our own.
	if link, err := os.Readlink(o.ProcRoot + "/self"); err == nil && link == strconv.Itoa(os.Getpid()) {
		o.self = os.Getpid()
	}
}

func (o *Options) reader() *reader { return &reader{root: o.ProcRoot, match: o.Match, self: o.self} }

// Source reads /proc. Collect is not safe for concurrent use; the roster is.
type Source struct {
	o         Options
	fs        procfs.FS
	reader    *reader
	roster    *Roster
	watcher   *watcher // nil where processes cannot be watched
	naming    naming
	others    map[int]glimpse
	round     uint32
	seed      maphash.Seed
	born      uint64 // uptime at the first tick: what started later has `started` told
	network   string // the collector's network namespace
	addresses map[string]netip.Addr
	sockets   tables

	wake    chan struct{}
	owed    atomic.Int32 // calls after Wake that have not come yet
	sampled time.Time    // the last tick that gave samples
}

// New opens the roots. The error wraps status.ErrAbsent where there is no /proc. Close ends what the first Collect starts.
func New(o Options) (*Source, error) {
	o.fill()
	fs, err := procfs.NewFS(o.ProcRoot)
	if err != nil {
		return nil, fmt.Errorf("%w: open %s: %w", status.ErrAbsent, o.ProcRoot, err)
	}
	stat, err := fs.Stat()
	if err != nil {
		return nil, fmt.Errorf("read boot time: %w", err)
	}
	s := &Source{
		o: o, fs: fs, seed: maphash.MakeSeed(), others: make(map[int]glimpse), addresses: make(map[string]netip.Addr), wake: make(chan struct{}, 1),
		naming: naming{logs: o.LogRoot, kubelet: newKubelet(o.PodResources)},
	}
	s.sockets = tables{root: o.ProcRoot, byNamespace: make(map[string]*table)}
	s.reader = s.o.reader()
	s.roster = newRoster(&s.o, time.Unix(int64(stat.BootTime), 0).UTC())
	for _, of := range []string{"self", "1"} {
		if s.network, _ = os.Readlink(o.ProcRoot + "/" + of + "/ns/net"); s.network != "" {
			break
		}
	}
	return s, nil
}

// Name implements collector.Source.
func (s *Source) Name() string { return "process" }

// Roster returns the source's knowledge of processes, which its Collect keeps up to date.
func (s *Source) Roster() *Roster { return s.roster }

// Wake implements collector.Waker: a watched process has ended.
func (s *Source) Wake() <-chan struct{} { return s.wake }

// Close ends the watch and lets go of the kubelet. It must not overlap with Collect.
func (s *Source) Close() error {
	s.naming.kubelet.Close()
	if s.watcher == nil {
		return nil
	}
	return s.watcher.Close()
}

func (s *Source) call() {
	s.owed.Store(1) // before it is heard; where an earlier call still waits, it is that one's
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// called says whether this Collect answers a call for attention rather than a tick. Where both fall together the tick comes
// first or second, and the other one gives no samples.
func (s *Source) called(tick time.Time) bool {
	since := tick.Sub(s.sampled)
	if s.owed.Load() == 0 || since < 0 || since >= s.o.Interval-s.o.Interval/10 {
		return false
	}
	s.owed.Store(0)
	return true
}

// Collect returns one `machine` event, one `process` event for each process that matters, and `lifecycle` events for those that
// came and went; after Wake only these last. A process that ends while it is read is left out. The error wraps ErrDenied when
// handles of a process may not be seen, which then are absent, or the kubelet's socket may not be used.
func (s *Source) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	events := s.endings(tick)
	if s.called(tick) {
		return events, nil
	}
	machine, err := s.machine()
	if err != nil {
		return events, err
	}
	events = append([]*event.Event{{Time: timestamppb.New(tick), Machine: machine}}, events...)
	ended, naming, err := s.refresh(ctx, tick)
	events = append(events, ended...)
	if err != nil {
		return events, err
	}
	readings, denied, err := s.readings(ctx)
	if err != nil {
		return events, err
	}
	events = append(events, s.publish(readings, tick)...)
	s.sampled = tick
	var refused error
	if len(denied) > 0 {
		refused = fmt.Errorf("%w: open files of %d processes, such as pid %d; run as their user or with CAP_SYS_PTRACE",
			status.ErrDenied, len(denied), denied[0])
	}
	return events, errors.Join(refused, naming)
}

// endings returns the ends that the watch has seen.
func (s *Source) endings(tick time.Time) []*event.Event {
	if s.watcher == nil {
		return nil
	}
	var events []*event.Event
	for _, e := range s.watcher.take() {
		events = append(events, s.end(e.life, e.status, tick)...)
	}
	return events
}

// end tells the end of a process, once.
func (s *Source) end(l *life, status *exitStatus, tick time.Time) []*event.Event {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	if !l.alive() {
		return nil
	}
	s.roster.end(l, tick)
	if !s.matters(l) && l.killed == "" {
		return nil
	}
	return []*event.Event{l.exit(status, tick)}
}

// refresh brings the roster up to the tick: who came, who went, who became another program, who belongs to whom. Naming is what
// kept it from learning pods' names.
func (s *Source) refresh(ctx context.Context, tick time.Time) (ended []*event.Event, naming, err error) {
	r := s.roster
	uptime := s.reader.uptime(r.boot, tick)
	begins := s.born == 0
	if begins {
		s.born = max(uptime, 1)
	}
	view, err := s.scan(ctx, r.lives(), uptime)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range view.over {
		if s.watcher != nil && s.watcher.awaits(e.life) {
			if !view.reused[e.life] {
				continue // it is told in a moment, with what is known by then
			}
			e.status = s.watcher.drop(e.life)
		}
		ended = append(ended, s.end(e.life, e.status, tick)...)
	}
	r.mu.Lock()
	r.uptime, r.now = uptime, tick
	for l, o := range view.again {
		l.seen = o
	}
	for _, l := range r.living {
		l.forget(tick)
	}
	r.expire(tick)
	r.mu.Unlock()
	s.admit(view.found)
	for range mostAncestors { // each round takes in one more generation
		if s.admit(s.descendants()) == 0 {
			break
		}
	}
	r.mu.Lock()
	missing, gpus := r.unnamed()
	r.mu.Unlock()
	names, naming := s.naming.find(ctx, tick, missing, gpus)
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, name := range names {
		r.names.note(p, name)
	}
	for _, l := range r.living {
		l.told = l.told || begins || l.ticks < s.born
	}
	r.resolve()
	return ended, naming, nil
}

// admit takes in what a search found, and returns how many are new.
func (s *Source) admit(found []sighting) int {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	n := 0
	for _, f := range found {
		if s.roster.living[f.seen.pid] == nil && len(s.roster.living) < mostLives {
			s.roster.watch(f.seen, f.ancestors)
			n++
		}
		delete(s.others, f.seen.pid)
	}
	if n > 0 {
		s.roster.resolve() // once for all: who was listed first must not matter
	}
	return n
}

// numbers is one process's reading.
type numbers struct {
	life    *life
	body    *event.Process
	listens []listener
}

// readings reads the numbers of all watched processes, in the order of their pids, and starts to watch for their ends.
func (s *Source) readings(ctx context.Context) (read []numbers, denied []int, err error) {
	lives := s.roster.lives()
	order := make([]*life, 0, len(lives))
	for _, l := range lives {
		order = append(order, l)
	}
	slices.SortFunc(order, func(a, b *life) int { return cmp.Compare(a.pid, b.pid) })
	s.sockets.next()
	for _, l := range order {
		if err := ctx.Err(); err != nil {
			return nil, nil, fmt.Errorf("read processes: %w", err)
		}
		s.watch(l)
		body, listens, whole, err := s.read(&l.seen)
		if err != nil {
			continue // it ended between the listing and the reading; its end is told in a moment
		}
		if !whole {
			denied = append(denied, l.pid)
		}
		read = append(read, numbers{l, body, listens})
	}
	return read, denied, nil
}

func (s *Source) watch(l *life) {
	if s.o.self == 0 {
		return
	}
	if s.watcher == nil {
		w, err := newWatcher(s.o.reader(), s.call)
		if err != nil {
			return // ends are seen at the ticks
		}
		s.watcher = w
	}
	s.watcher.add(l, s.reader.stat)
}

// matters says whether events are made of a process: of an instance that runs an engine or holds a GPU, and of everything that was
// asked for. Any other python is only known, in case it turns into a worker.
func (s *Source) matters(l *life) bool {
	return s.o.every || l.shown || l.inst != nil && l.inst.serving
}

// publish makes the events of a tick and hands on where engines listen.
func (s *Source) publish(read []numbers, tick time.Time) []*event.Event {
	r := s.roster
	r.mu.Lock()
	for _, n := range read {
		n.life.listens, n.life.read = n.listens, true
	}
	r.resolve()
	var events []*event.Event
	for _, n := range read {
		if !s.matters(n.life) {
			continue
		}
		n.life.shown = true
		if !n.life.told {
			n.life.told = true
			e := stamp(n.life, tick)
			e.Lifecycle = &event.Lifecycle{State: "started"}
			events = append(events, e)
		}
		e := stamp(n.life, tick)
		e.Process = n.body
		events = append(events, e)
	}
	found := r.candidates()
	r.mu.Unlock()
	ends := s.reach(found)
	r.mu.Lock()
	r.endpoints = append([]Endpoint{}, ends...) // never nil from now on: the roster has looked
	r.mu.Unlock()
	return events
}
