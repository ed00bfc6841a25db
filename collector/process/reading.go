package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"lowtide/event"
)

// closeWait is TCP_CLOSE_WAIT: the other end has closed, this process has not.
const closeWait = 8

// read returns the numbers of one process. Whole is false when its open files may not be seen. An error means it is gone.
func (s *Source) read(c *candidate, sockets *sockets) (body *event.Process, whole bool, err error) {
	text, err := os.ReadFile(filepath.Join(s.o.ProcRoot, strconv.Itoa(c.proc.PID), "status"))
	if err != nil {
		return nil, false, fmt.Errorf("read status: %w", err)
	}
	body = &event.Process{}
	memory(body, parseStatus(string(text)))
	body.CpuSecondsTotal = event.Ptr(c.stat.CPUTime())
	if limits, err := c.proc.Limits(); err == nil && limits.OpenFiles < 1<<62 {
		body.FdsLimit = event.Ptr(limits.OpenFiles)
	}
	body.CgroupBytes, body.CgroupLimitBytes = memoryOf(s.o.CgroupRoot, c.place)
	whole = true
	if err := handles(body, c.proc, sockets); err != nil {
		if gone(err) {
			return nil, false, err
		}
		whole = !errors.Is(err, os.ErrPermission)
	}
	return body, whole, nil
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
	if pin, lock := field("VmPin"), field("VmLck"); pin != nil && lock != nil {
		p.PinnedKernelBytes = event.Ptr(*pin + *lock)
	}
}

// handles counts open files and the sockets among them that wait to be closed.
func handles(p *event.Process, proc procfs.Proc, sockets *sockets) error {
	targets, err := proc.FileDescriptorTargets()
	if err != nil {
		return fmt.Errorf("read open files: %w", err)
	}
	p.Fds = event.Ptr(uint64(len(targets)))
	waiting, err := sockets.of(proc.PID)
	if err != nil {
		return nil // no TCP in this kernel or namespace: the count stays absent
	}
	count := uint64(0)
	for _, target := range targets {
		if number, ok := strings.CutPrefix(target, "socket:["); ok {
			inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
			if err == nil && waiting[inode] {
				count++
			}
		}
	}
	p.SocketsCloseWait = event.Ptr(count)
	return nil
}

// sockets reads each network namespace's TCP table once per tick, however many processes share it.
type sockets struct {
	procRoot  string
	closeWait map[string]map[uint64]bool // by namespace, inodes in CLOSE_WAIT
}

func (s *sockets) of(pid int) (map[uint64]bool, error) {
	root := filepath.Join(s.procRoot, strconv.Itoa(pid))
	namespace, err := os.Readlink(filepath.Join(root, "ns/net"))
	if err != nil {
		namespace = root // unknown: its own table
	}
	if inodes, ok := s.closeWait[namespace]; ok {
		return inodes, nil
	}
	// The table stands under /proc/PID/net; procfs reads it when /proc/PID is its root.
	fs, err := procfs.NewFS(root)
	if err != nil {
		return nil, fmt.Errorf("read sockets: %w", err)
	}
	//lint:ignore SA1019 netlink would answer for our own network namespace, not for the process's
	table, err := fs.NetTCP()
	if err != nil {
		return nil, fmt.Errorf("read sockets: %w", err)
	}
	inodes := make(map[uint64]bool)
	//lint:ignore SA1019 as above
	table6, _ := fs.NetTCP6() // absent where IPv6 is off
	for _, lines := range []procfs.NetTCP{table, table6} {
		for _, line := range lines {
			if line.St == closeWait {
				inodes[line.Inode] = true
			}
		}
	}
	s.closeWait[namespace] = inodes
	return inodes, nil
}
