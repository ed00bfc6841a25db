package process

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"lowtide/event"
)

// read returns the numbers of one process and the sockets it listens on. Whole is false when its open files may not be seen. An
// error means it is gone.
func (s *Source) read(o *observation) (body *event.Process, listens []listener, whole bool, err error) {
	text, err := s.reader.files.read(s.reader.path(o.pid, "status"), mostStatus)
	if err != nil {
		return nil, nil, false, fmt.Errorf("read status: %w", err)
	}
	body = &event.Process{}
	memory(body, parseStatus(string(text)))
	body.CpuSecondsTotal = event.Ptr(o.stat.cpu)
	if text, err := s.reader.files.read(s.reader.path(o.pid, "limits"), mostStatus); err == nil {
		body.FdsLimit = parseLimit(text)
	}
	body.CgroupBytes, body.CgroupLimitBytes = memoryOf(s.o.CgroupRoot, o.place)
	whole = true
	if listens, err = s.handles(body, o); err != nil {
		if gone(err) {
			return nil, nil, false, err
		}
		whole = !errors.Is(err, os.ErrPermission)
	}
	return body, listens, whole, nil
}

// parseStatus returns the fields of /proc/PID/status that are numbers, those in kB as bytes. A field that the kernel does not
// write is not in the map, and so is told apart from zero.
func parseStatus(text string) map[string]uint64 {
	fields := make(map[string]uint64, 48)
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		number, kilo := strings.CutSuffix(strings.TrimSpace(value), " kB")
		n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		if err != nil || kilo && n > 1<<53 {
			continue
		}
		if kilo {
			n <<= 10
		}
		fields[name] = n
	}
	return fields
}

func memory(p *event.Process, fields map[string]uint64) {
	field := func(name string) *uint64 {
		if v, ok := fields[name]; ok {
			return event.Ptr(v)
		}
		return nil
	}
	p.RssBytes = field("VmRSS")
	p.AnonBytes = field("RssAnon")
	p.ShmemBytes = field("RssShmem")
	p.SwapBytes = field("VmSwap")
	p.Threads = field("Threads")
	// CUDA pins through the driver (VmPin), mlock and io_uring lock (VmLck): the kernel can move neither out.
	if pin, lock := field("VmPin"), field("VmLck"); pin != nil && lock != nil && *pin <= math.MaxUint64-*lock {
		p.PinnedKernelBytes = event.Ptr(*pin + *lock)
	}
}

// parseLimit returns the soft limit of open files, nil when there is none.
func parseLimit(text []byte) *uint64 {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("Max open files")); ok {
			if fields := bytes.Fields(rest); len(fields) > 0 {
				if n, err := strconv.ParseUint(string(fields[0]), 10, 64); err == nil && n < 1<<62 {
					return &n
				}
			}
		}
	}
	return nil
}

// handles counts open files and the sockets among them that wait to be closed, and finds those that listen.
func (s *Source) handles(p *event.Process, o *observation) ([]listener, error) {
	dir := s.reader.path(o.pid, "fd")
	file, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("read open files: %w", err)
	}
	defer file.Close()
	names, err := file.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read open files: %w", err)
	}
	p.Fds = event.Ptr(uint64(len(names)))
	t := s.sockets.of(o.pid, o.network, s.roster.uptime < o.stat.ticks+young)
	if t.err != nil {
		return nil, nil // no TCP in this kernel or namespace: the count stays absent
	}
	var listens []listener
	target, count := make([]byte, 64), uint64(0)
	for _, name := range names {
		n, err := syscall.Readlink(dir+"/"+name, target)
		if err != nil {
			continue // closed meanwhile
		}
		number, ok := bytes.CutPrefix(target[:n], []byte("socket:["))
		if !ok {
			continue
		}
		inode, err := strconv.ParseUint(string(bytes.TrimSuffix(number, []byte("]"))), 10, 64)
		if err != nil {
			continue
		}
		if t.waiting[inode] {
			count++
		}
		if at, ok := t.listens[inode]; ok {
			listens = append(listens, listener{inode, at})
		}
	}
	slices.SortFunc(listens, func(a, b listener) int { return a.at.Compare(b.at) })
	p.SocketsCloseWait = event.Ptr(count)
	return listens, nil
}
