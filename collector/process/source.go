// Package process owns the source that reads /proc: memory, handles and cgroup of the processes that serve models, and the
// host's own memory. It refuses to look at any other process beyond its command line, and never reads an environment.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

// DefaultMatch finds the processes of the known engines, and python, by their command line.
const DefaultMatch = `(?i)^\S*python[0-9.]*(\s|$)|vllm|sglang|trtllm|tritonserver|llama-server|llama_cpp`

// ticksPerSecond is USER_HZ, the unit of starttime in /proc/PID/stat: 100 on every Linux that GPUs are served from.
const ticksPerSecond = 100

// Options say where /proc is and which processes matter.
type Options struct {
	ProcRoot   string         // /proc when empty
	CgroupRoot string         // /sys/fs/cgroup when empty
	PIDs       []int          // these processes and no search, when given
	Match      *regexp.Regexp // on the command line, arguments joined by spaces; DefaultMatch when nil
}

// Source reads /proc. It is not safe for concurrent use.
type Source struct {
	o     Options
	fs    procfs.FS
	boot  time.Time
	known map[int]*known
}

// known is what stays the same over a process life.
type known struct {
	ticks uint64
	start time.Time
	seen  bool
}

// New opens the roots. The error wraps status.ErrAbsent where there is no /proc.
func New(o Options) (*Source, error) {
	if o.ProcRoot == "" {
		o.ProcRoot = procfs.DefaultMountPoint
	}
	if o.CgroupRoot == "" {
		o.CgroupRoot = "/sys/fs/cgroup"
	}
	if o.Match == nil {
		o.Match = regexp.MustCompile(DefaultMatch)
	}
	fs, err := procfs.NewFS(o.ProcRoot)
	if err != nil {
		return nil, fmt.Errorf("%w: open %s: %w", status.ErrAbsent, o.ProcRoot, err)
	}
	stat, err := fs.Stat()
	if err != nil {
		return nil, fmt.Errorf("read boot time: %w", err)
	}
	return &Source{o: o, fs: fs, boot: time.Unix(int64(stat.BootTime), 0).UTC(), known: make(map[int]*known)}, nil
}

// BootID returns the id the kernel drew at boot, empty when it cannot be read.
func BootID(procRoot string) string {
	text, err := os.ReadFile(filepath.Join(procRoot, "sys/kernel/random/boot_id"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Name implements collector.Source.
func (s *Source) Name() string { return "process" }

// Collect returns one `machine` event and one `process` event for each process that matters. A process that ends while it is
// read is left out. The error wraps ErrDenied when handles of a process may not be seen, which then are absent.
func (s *Source) Collect(ctx context.Context, tick time.Time) ([]*event.Event, error) {
	at := timestamppb.New(tick)
	machine, err := s.machine()
	if err != nil {
		return nil, err
	}
	events := []*event.Event{{Time: at, Machine: machine}}
	found, err := s.find(ctx)
	if err != nil {
		return events, err
	}
	inherit(found)
	for _, k := range s.known {
		k.seen = false
	}
	sockets := sockets{procRoot: s.o.ProcRoot, closeWait: make(map[string]map[uint64]bool)}
	var denied []int
	for _, f := range found {
		if err := ctx.Err(); err != nil {
			return events, fmt.Errorf("read processes: %w", err)
		}
		body, whole, err := s.read(f, &sockets)
		if err != nil {
			continue // it ended between the listing and the reading; that is the lifecycle's to tell
		}
		if !whole {
			denied = append(denied, f.proc.PID)
		}
		events = append(events, &event.Event{Time: at, Worker: s.identify(f), Process: body})
	}
	for pid, k := range s.known {
		if !k.seen {
			delete(s.known, pid)
		}
	}
	if len(denied) > 0 {
		return events, fmt.Errorf("%w: open files of %d processes, such as pid %d; run as their user or with CAP_SYS_PTRACE",
			status.ErrDenied, len(denied), denied[0])
	}
	return events, nil
}

// candidate is a process that matters, before its numbers are read.
type candidate struct {
	proc  procfs.Proc
	stat  procfs.ProcStat
	place place
	words words
}

// find returns the processes that matter, in the order of their pids.
func (s *Source) find(ctx context.Context) ([]*candidate, error) {
	if len(s.o.PIDs) > 0 {
		var found []*candidate
		for _, pid := range s.o.PIDs {
			proc, err := s.fs.Proc(pid)
			if err != nil {
				continue // not there now: `blind` is judged from the silence
			}
			if c := s.candidate(proc, nil); c != nil {
				found = append(found, c)
			}
		}
		return found, nil
	}
	procs, err := s.fs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	sort.Sort(procs)
	self := os.Getpid()
	var found []*candidate
	for _, proc := range procs {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		if proc.PID == self && s.o.ProcRoot == procfs.DefaultMountPoint {
			continue
		}
		if c := s.candidate(proc, s.o.Match); c != nil {
			found = append(found, c)
		}
	}
	return found, nil
}

// candidate is nil when the process does not match, is a kernel thread, has exited or waits to be reaped.
func (s *Source) candidate(proc procfs.Proc, match *regexp.Regexp) *candidate {
	line, err := proc.CmdLine()
	if err != nil || len(line) == 0 || match != nil && !match.MatchString(strings.Join(line, " ")) {
		return nil
	}
	stat, err := proc.Stat()
	if err != nil || stat.State == "Z" || stat.State == "X" {
		return nil
	}
	c := &candidate{proc: proc, stat: stat, words: parseWords(line)}
	if groups, err := proc.Cgroups(); err == nil {
		c.place = parsePlace(groups)
	}
	return c
}

// inherit gives ranks and cores what only the front end's command line says: they are one instance.
func inherit(found []*candidate) {
	byPID := make(map[int]*candidate, len(found))
	for _, c := range found {
		byPID[c.proc.PID] = c
	}
	for _, c := range found {
		parent := byPID[c.stat.PPID]
		for depth := 0; parent != nil && parent != c && depth < 8; depth++ {
			if c.words.engine == "" || c.words.engine == parent.words.engine || parent.words.engine == "" {
				c.words.port = first(c.words.port, parent.words.port)
				c.words.model = first(c.words.model, parent.words.model)
				c.words.engine = first(c.words.engine, parent.words.engine)
			}
			parent = byPID[parent.stat.PPID]
		}
	}
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// identify names the process. The start time is computed once: a later clock step must not make it another process.
func (s *Source) identify(c *candidate) *event.Worker {
	k := s.known[c.proc.PID]
	if k == nil || k.ticks != c.stat.Starttime {
		since := time.Duration(c.stat.Starttime) * (time.Second / ticksPerSecond)
		k = &known{ticks: c.stat.Starttime, start: s.boot.Add(since)}
		s.known[c.proc.PID] = k
	}
	k.seen = true
	w := &event.Worker{
		Pid: int64(c.proc.PID), StartTicks: event.Ptr(k.ticks), StartTime: timestamppb.New(k.start),
		Role: c.words.role, Rank: c.words.rank, EngineIndex: c.words.index, Engine: c.words.engine, Model: c.words.model,
		Pod: c.place.pod, ContainerId: c.place.container, Unit: c.place.unit,
	}
	if w.Unit == "" && c.words.port != "" {
		w.Unit = "port-" + c.words.port
	}
	return w
}

func (s *Source) machine() (*event.Machine, error) {
	info, err := s.fs.Meminfo()
	if err != nil {
		return nil, fmt.Errorf("read meminfo: %w", err)
	}
	m := &event.Machine{MemoryTotalBytes: info.MemTotalBytes, MemoryAvailableBytes: info.MemAvailableBytes}
	if text, err := os.ReadFile(filepath.Join(s.o.ProcRoot, "sys/fs/file-nr")); err == nil {
		var used, free, limit uint64
		if n, _ := fmt.Sscan(string(text), &used, &free, &limit); n == 3 {
			m.Fds = event.Ptr(used - min(free, used))
			if limit < 1<<62 {
				m.FdsLimit = event.Ptr(limit)
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(s.o.ProcRoot, "sys/kernel/osrelease")); err == nil {
		m.KernelVersion = strings.TrimSpace(string(text))
	}
	if text, err := os.ReadFile(filepath.Join(s.o.ProcRoot, "driver/nvidia/version")); err == nil {
		m.DriverVersion = driverVersion(string(text))
	}
	return m, nil
}

var driverPattern = regexp.MustCompile(`Kernel Module(?: for \S+)?\s+([0-9][0-9.]*)`)

// driverVersion takes the number out of the driver's NVRM line, proprietary or open.
func driverVersion(text string) string {
	if m := driverPattern.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// gone says whether an error means that the process has ended.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "no such process")
}
