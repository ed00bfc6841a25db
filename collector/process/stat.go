package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// ticksPerSecond is USER_HZ, the unit of starttime in /proc/PID/stat: 100 on every Linux that GPUs are served from.
const ticksPerSecond = 100

// The most that is read of a file that a process can make as long as it likes.
const (
	mostLine    = 16 << 10
	mostStat    = 4 << 10
	mostStatus  = 16 << 10
	mostCgroup  = 64 << 10
	mostEnviron = 256 << 10
)

// files reads small files into one buffer: a tick reads some thousand of them.
type files struct{ buffer []byte }

// read returns at most limit bytes of a file. They are overwritten by the next call.
func (f *files) read(path string, limit int) ([]byte, error) {
	if len(f.buffer) < limit {
		f.buffer = make([]byte, limit)
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	for {
		// These files give all they have at once.
		n, err := syscall.Read(fd, f.buffer[:limit])
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return f.buffer[:n], nil
	}
}

// stat is what is used of /proc/PID/stat.
type stat struct {
	state   byte
	parent  int
	kernel  bool // a kernel thread
	threads uint64
	ticks   uint64  // start, in ticks since boot
	cpu     float64 // seconds, user and system
	status  int     // of a dead process, as wait returns it; 0 may also mean that it may not be seen
}

// dead says whether the process has ended and waits to be reaped. A leader that left its threads behind lives on.
func (s stat) dead() bool { return s.state == 'X' || s.state == 'Z' && s.threads <= 1 }

// kernelThread is PF_KTHREAD.
const kernelThread = 0x00200000

// parseStat reads proc(5)'s fields by number. The name in parentheses may itself hold parentheses and spaces.
func parseStat(text []byte) (stat, error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return stat{}, errors.New("read stat: no process name")
	}
	var s stat
	field := 2
	for word := range bytes.FieldsSeq(text[end+1:]) {
		field++
		switch field {
		case 3:
			s.state = word[0]
			continue
		case 4, 9, 14, 15, 20, 22, 52:
		default:
			continue
		}
		n, err := strconv.ParseUint(string(word), 10, 63)
		if err != nil {
			return stat{}, fmt.Errorf("read stat: field %d: %w", field, err)
		}
		switch field {
		case 4:
			s.parent = int(n)
		case 9:
			s.kernel = n&kernelThread != 0
		case 14, 15:
			s.cpu += float64(n) / ticksPerSecond
		case 20:
			s.threads = n
		case 22:
			s.ticks = n
		case 52:
			s.status = int(n)
		}
	}
	if field < 22 {
		return stat{}, fmt.Errorf("read stat: %d fields, want at least 22", field)
	}
	return s, nil
}

// parseLine splits a command line. A title that was written over it leaves zeros or blanks behind.
func parseLine(text string) []string {
	text = strings.TrimRight(text, "\x00 ")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\x00")
}

// firstOfNamespace says whether a process is the first of its pid namespace: NSpid lists the pid in every namespace, ours first.
func firstOfNamespace(status []byte) bool {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			pids := bytes.Fields(rest)
			return len(pids) > 1 && string(pids[len(pids)-1]) == "1"
		}
	}
	return false
}

// environRanks are the variables that a launcher gives its ranks, the first that is there counts.
var environRanks = []string{"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}

// rankOf looks for a rank in an environment. It looks at no other variable and keeps nothing else: environments hold secrets.
func rankOf(environ []byte) *int64 {
	best, found := len(environRanks), int64(0)
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		for i, name := range environRanks[:best] {
			if len(entry) <= len(name) || entry[len(name)] != '=' || string(entry[:len(name)]) != name {
				continue
			}
			value := entry[len(name)+1:]
			if len(value) > 6 {
				continue
			}
			if n, err := strconv.ParseUint(string(value), 10, 32); err == nil {
				best, found = i, int64(n)
			}
			break
		}
	}
	if best == len(environRanks) {
		return nil
	}
	return &found
}

// gone says whether an error means that the process has ended.
func gone(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
