package process

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"lowtide/event"
)

// BootID returns the id the kernel drew at boot, empty when it cannot be read.
func BootID(procRoot string) string {
	text, err := os.ReadFile(filepath.Join(procRoot, "sys/kernel/random/boot_id"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// machine reads the host's own memory and handles.
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
