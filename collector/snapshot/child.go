package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// childMark is set in the environment of the child and of all that it starts: it refuses to be a parent.
const childMark = "LOWTIDE_SNAPSHOT_CHILD"

// ChildKnown is set in the environment of a test whose TestMain knows the command snapshot-child.
const ChildKnown = "LOWTIDE_SNAPSHOT_CHILD_KNOWN"

const (
	childCommand  = "snapshot-child"
	childDeadline = time.Minute
	childSeconds  = 120       // of a processor
	childMemory   = "384MiB"  // where its garbage collector gets busy
	childData     = 768 << 20 // bytes; where it ends. Read takes at most about twice a raw file, and those of probes have 256 MiB
	childNice     = 19
	childBefore   = 3 // descriptor of the earlier snapshot

	maxAnswer    = 1 << 20 // bytes, of all devices of a process together
	maxComplaint = 300     // bytes of a child's complaint
)

// ChildCommand is the hidden command snapshot-child: it reads the raw snapshot on its stdin and writes one `snapshot` event a device to
// stdout. The collector starts it, so that what is wrong with a file that some process wrote ends the child, and not the collector.
type ChildCommand struct {
	Reason string            `help:"Why it was taken."`
	GPU    map[string]string `name:"gpu" help:"UUIDs by device."`
	Before bool              `help:"An earlier snapshot of the process is on descriptor 3."`
}

// Run summarises one snapshot.
func (c *ChildCommand) Run(context.Context) error {
	if os.Getenv(childMark) == "" {
		return errors.New("snapshot-child is started by lowtide itself\nhint: use `lowtide snapshot show FILE`")
	}
	// Its deadline ends it, or its parent's end: a signal to the whole service must not cost what has been written.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	humble()
	var before io.Reader
	if c.Before {
		before = os.NewFile(childBefore, "the earlier snapshot")
	}
	return c.summarise(os.Stdin, before, os.Stdout)
}

// humble makes this process the last that gets a processor and the first that goes when memory is short. None of it can fail in a way
// that matters: each makes it smaller than it has to be.
func humble() {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, childNice)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: childData, Max: childData})
	_ = unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: childSeconds, Max: childSeconds}) // whoever is left to end it
}

func (c *ChildCommand) summarise(raw, before io.Reader, out io.Writer) error {
	options := Options{Reason: c.Reason, GPU: func(device int32) string { return c.GPU[strconv.Itoa(int(device))] }}
	var lacking string
	if before != nil { // first, so that only one of them is in memory
		if earlier, err := Read(before, Limits{}); err != nil {
			lacking = "growth by stack: the earlier snapshot cannot be read: " + event.Shorten(err.Error(), 200)
		} else {
			options.Before = TotalsOf(earlier)
		}
		runtime.GC() // what the earlier one took is the room of the next
	}
	whole, err := Read(raw, Limits{})
	if err != nil {
		return err
	}
	devices := Summarise(whole, options)
	for _, d := range devices {
		if lacking != "" {
			d.Lacking = append(d.Lacking, lacking)
		}
	}
	text, err := fitSummary(devices)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// fitSummary writes the devices as events, a line each, and cuts their stacks until all are within maxAnswer.
func fitSummary(devices []*event.Snapshot) ([]byte, error) {
	now := timestamppb.Now()
	for {
		var out bytes.Buffer
		longest := 0
		for i, d := range devices {
			text, err := event.MarshalEvent(&event.Event{Time: now, Snapshot: d})
			if err != nil {
				return nil, err
			}
			out.Write(append(text, '\n'))
			if len(d.Stacks) > len(devices[longest].Stacks) {
				longest = i
			}
		}
		if out.Len() <= maxAnswer {
			return out.Bytes(), nil
		}
		d := devices[longest]
		if len(d.Stacks) == 0 {
			return nil, fmt.Errorf("summary has %d bytes without any stack, more than %d", out.Len(), maxAnswer)
		}
		left := len(d.Stacks) / 2
		d.Stacks = d.Stacks[:left]
		const cut = "stacks: only the largest are told, this process has many devices"
		if n := len(d.Lacking); n == 0 || d.Lacking[n-1] != cut {
			d.Lacking = append(d.Lacking, cut)
		}
	}
}

// Child starts the reader of raw snapshots: this program once more, with a deadline, a bound on its memory and the lowest priority.
type Child struct {
	Argv     []string      // of the program; its own with snapshot-child when empty
	Deadline time.Duration // one minute when zero
}

// Summarise has the raw snapshot summarised, one event.Snapshot a device. before is an earlier one of the same process, or nil. The
// error wraps ErrUnreadable where the file or the child is at fault, and context.DeadlineExceeded where it took too long. In a child it
// is an error: a program that does not know the command, such as a test, would start itself over and over.
func (c Child) Summarise(ctx context.Context, raw, before *os.File, reason string, gpus map[string]string) ([]*event.Snapshot, error) {
	if os.Getenv(childMark) != "" {
		return nil, errors.New("read raw snapshot: this is a child already, which starts no other")
	}
	argv := c.Argv
	if len(argv) == 0 {
		own, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find own program: %w", err)
		}
		if strings.HasSuffix(own, ".test") && os.Getenv(ChildKnown) == "" {
			return nil, fmt.Errorf("start child: %s is a test, which would run its tests as the child; hint: answer %s in its TestMain, and set %s", own, childCommand, ChildKnown)
		}
		argv = []string{own, childCommand}
	}
	argv = append(argv[:len(argv):len(argv)], "--reason="+reason)
	for device, uuid := range gpus {
		argv = append(argv, "--gpu="+device+"="+uuid)
	}
	deadline := c.Deadline
	if deadline <= 0 {
		deadline = childDeadline
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, words := &boundedOutput{most: maxAnswer}, &boundedOutput{most: maxComplaint, quiet: true}
	command.Stdin, command.Stdout, command.Stderr = raw, out, words
	if before != nil {
		command.Args = append(command.Args, "--before")
		command.ExtraFiles = []*os.File{before}
	}
	command.Env = childEnvironment()
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) } // and whatever it has started
	command.WaitDelay = time.Second
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	// The parent-death signal is tied to the thread that starts the child, so this goroutine keeps its thread.
	runtime.LockOSThread()
	err := command.Run()
	runtime.UnlockOSThread()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w within %v: %w", ErrUnreadable, deadline, ctx.Err())
	case out.over():
		return nil, fmt.Errorf("%w: its summary has more than %d bytes", ErrUnreadable, maxAnswer)
	case err != nil:
		return nil, fmt.Errorf("%w: %w%s", ErrUnreadable, err, words.said())
	}
	return parseSummary(out.text)
}

// childEnvironment is all that the child inherits: no token of the parent is in it.
func childEnvironment() []string {
	env := []string{childMark + "=1", "GOMAXPROCS=1", "GOMEMLIMIT=" + childMemory}
	for _, name := range []string{"PATH", "TZ", "LANG", "LC_ALL"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// parseSummary reads what the child wrote.
func parseSummary(text []byte) ([]*event.Snapshot, error) {
	var devices []*event.Snapshot
	for line := range bytes.Lines(text) {
		e, _, err := event.UnmarshalEvent(bytes.TrimSpace(line))
		if err != nil {
			return nil, fmt.Errorf("%w: its summary: %w", ErrUnreadable, err)
		}
		if e.Snapshot == nil {
			return nil, fmt.Errorf("%w: its summary holds something else", ErrUnreadable)
		}
		devices = append(devices, e.Snapshot)
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("%w: it holds no device", ErrUnreadable)
	}
	return devices, nil
}

// boundedOutput keeps the beginning of what a child writes. Where it is quiet the rest is dropped, else it ends the child.
type boundedOutput struct {
	most  int
	quiet bool

	mu     sync.Mutex
	text   []byte
	excess bool
}

// Write implements io.Writer.
func (b *boundedOutput) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := min(len(p), b.most-len(b.text))
	b.text = append(b.text, p[:kept]...)
	if kept == len(p) || b.quiet {
		return len(p), nil
	}
	b.excess = true
	return kept, io.ErrShortWrite
}

func (b *boundedOutput) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.excess
}

// said is the first two lines, as the end of a sentence.
func (b *boundedOutput) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := strings.SplitN(strings.TrimSpace(strings.ToValidUTF8(string(b.text), "?")), "\n", 3)
	if lines[0] == "" {
		return ""
	}
	return ": " + strings.Join(lines[:min(len(lines), 2)], " ")
}
