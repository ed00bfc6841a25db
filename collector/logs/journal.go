package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"

	"lowtide/collector/status"
	"lowtide/event"
)

const (
	maxEntry      = 256 << 10 // bytes of one entry of the journal; a longer one is passed over
	firstPause    = time.Second
	longestPause  = time.Minute
	steady        = time.Minute // a child that lived so long was well
	maxComplaints = 512         // bytes of what journalctl writes to stderr
)

// journal follows units through journalctl, which knows the journal's files and formats: one child for all units, started anew
// with growing pauses where it ends, killed by the kernel should this process die first.
type journal struct {
	command string
	units   map[string]*unit

	mu         sync.Mutex
	failed     error
	complaints []byte // of the running child
}

// unit is one stream, and a worker whose pid is each entry's.
type unit struct {
	stream *stream
	worker *event.Worker
}

// run follows until the context ends. Entries are handed on with the time at which they were read.
func (j *journal) run(ctx context.Context, entry func(entry, time.Time)) {
	// The kernel sends the death signal when the thread that started the child ends, so this goroutine keeps its own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pause := firstPause
	for {
		began := time.Now()
		err := j.follow(ctx, entry)
		if ctx.Err() != nil {
			return
		}
		j.mu.Lock()
		j.failed = err
		j.mu.Unlock()
		if time.Since(began) >= steady {
			pause = firstPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, longestPause)
	}
}

func (j *journal) follow(ctx context.Context, handle func(entry, time.Time)) error {
	arguments := []string{"--follow", "--lines=0", "--output=json", "--all", "--no-pager", "--output-fields=MESSAGE,_SYSTEMD_UNIT,_PID"}
	for _, name := range slices.Sorted(maps.Keys(j.units)) {
		arguments = append(arguments, "--unit="+name)
	}
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	child := exec.CommandContext(ctx, j.command, arguments...)
	child.Env = []string{"LANG=C", "PATH=/usr/bin:/bin"}
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	child.WaitDelay = time.Second
	child.Stderr = (*complaints)(j)
	out, err := child.StdoutPipe()
	if err == nil {
		j.mu.Lock()
		j.failed, j.complaints = nil, nil
		j.mu.Unlock()
		err = child.Start()
	}
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w: %w", status.ErrAbsent, err)
	}
	if err != nil {
		return fmt.Errorf("follow journal: %w", err)
	}
	read := j.read(out, handle)
	if read != nil {
		kill() // it would wait for somebody to read on
	}
	wait := child.Wait()
	return errors.Join(fmt.Errorf("follow journal: %w: journalctl ended%s", status.ErrLost, j.said()), read, wait)
}

// read hands on the entries of the units. A line that is too long is passed over.
func (j *journal) read(out io.Reader, handle func(entry, time.Time)) error {
	lines := bufio.NewReaderSize(out, maxEntry)
	for passing := false; ; {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			passing = true
			continue
		case err != nil:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case passing:
			passing = false
			continue
		}
		if e, ok := parseEntry(line); ok && j.units[e.unit] != nil {
			handle(e, time.Now())
		}
	}
}

// entry is what matters of an entry of the journal.
type entry struct {
	text string
	unit string
	pid  int64     // as this host sees it; 0 is unknown
	at   time.Time // zero is unknown
}

// parseEntry reads a line of `journalctl --output=json`. A message that is not UTF-8 is an array of its bytes there.
func parseEntry(line []byte) (entry, bool) {
	var fields struct {
		Message jsontext.Value `json:"MESSAGE"`
		Unit    string         `json:"_SYSTEMD_UNIT"`
		PID     string         `json:"_PID"`
		Stamp   string         `json:"__REALTIME_TIMESTAMP"` // microseconds
	}
	if len(line) > maxEntry || json.Unmarshal(line, &fields) != nil {
		return entry{}, false
	}
	e := entry{unit: fields.Unit}
	switch fields.Message.Kind() {
	case '"':
		if json.Unmarshal(fields.Message, &e.text) != nil {
			return entry{}, false
		}
	case '[':
		var codes []uint16
		if json.Unmarshal(fields.Message, &codes) != nil {
			return entry{}, false // several messages in one entry, which no engine writes
		}
		var text bytes.Buffer
		for _, c := range codes {
			text.WriteByte(byte(c))
		}
		e.text = text.String()
	default:
		return entry{}, false
	}
	if pid, err := strconv.ParseInt(fields.PID, 10, 32); err == nil && pid > 0 {
		e.pid = pid
	}
	if micros, err := strconv.ParseInt(fields.Stamp, 10, 64); err == nil && micros >= 1e6 { // an event of 1970 is refused
		e.at = time.UnixMicro(micros)
	}
	return e, true
}

// take gives an entry to its unit's stream.
func (u *unit) take(e entry, now time.Time) {
	if e.pid > 0 {
		w := proto.CloneOf(u.worker)
		w.Pid = e.pid
		u.stream.worker = w
	}
	for line := range strings.SplitSeq(e.text, "\n") {
		text, _ := tidy([]byte(line[:min(len(line), maxLine)]))
		at := e.at
		if at.IsZero() || at.After(now) {
			at = now
		}
		u.stream.text(text, at, now)
	}
}

// problem is why the journal is not read, or not in full; nil while it is.
func (j *journal) problem() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	switch said := string(j.complaints); {
	case strings.Contains(said, "not seeing messages"), strings.Contains(said, "ermission"):
		return fmt.Errorf("follow journal: %w: %s; hint: run as root or in the group systemd-journal", status.ErrDenied, strings.TrimSpace(said))
	case strings.Contains(said, "No journal files"):
		return fmt.Errorf("follow journal: %w: %s; hint: in a container mount /var/log/journal and /etc/machine-id", status.ErrAbsent, strings.TrimSpace(said))
	}
	return nil
}

func (j *journal) said() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.complaints) == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(strings.ToValidUTF8(string(j.complaints), "\uFFFD"))
}

// complaints keeps the beginning of a child's stderr.
type complaints journal

func (c *complaints) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complaints = append(c.complaints, b[:min(len(b), maxComplaints-len(c.complaints))]...)
	return len(b), nil
}
