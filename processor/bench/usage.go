// Package bench owns what a run of the whole pipeline is measured by: the processor time and memory of processes, what of the stream
// nobody has read yet, percentiles, and the result with its verdict against the numbers that were promised. It starts nothing and
// loads nothing: the command does that.
package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/metrics"
	"strconv"
	"syscall"
	"time"
)

// Usage is what a process has taken so far.
type Usage struct {
	CPU     time.Duration // user and system, of all its threads
	Kernel  time.Duration // of CPU, in the kernel
	Garbage time.Duration // of CPU, collecting garbage; see OwnGarbage, 0 of other processes
	RSS     uint64        // bytes now
	PeakRSS uint64        // bytes at most
}

// clockTick is USER_HZ, in which the kernel tells processor time to every program, whatever its own clock.
const clockTick = 10 * time.Millisecond

// ReadUsage reads it of a process of this machine; proc is /proc.
func ReadUsage(proc string, pid int) (Usage, error) {
	dir := proc + "/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return Usage{}, fmt.Errorf("read processor time: %w", err)
	}
	var u Usage
	if u.CPU, u.Kernel, err = parseCPU(stat); err != nil {
		return Usage{}, fmt.Errorf("read processor time of %d: %w", pid, err)
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return Usage{}, fmt.Errorf("read memory: %w", err)
	}
	u.RSS, u.PeakRSS = parseStatus(status, "VmRSS:"), parseStatus(status, "VmHWM:")
	return u, nil
}

// parseCPU reads utime and stime, the 14th and 15th field; the second, the name, may hold anything, so that it is passed by its last
// parenthesis.
func parseCPU(stat []byte) (all, kernel time.Duration, err error) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, errors.New("no name in stat")
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) < 13 {
		return 0, 0, fmt.Errorf("stat has %d fields after the name, want 13", len(fields))
	}
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseUint(string(f), 10, 63)
		if err != nil {
			return 0, 0, fmt.Errorf("stat has %q ticks", f)
		}
		kernel = time.Duration(ticks) * clockTick
		all += kernel
	}
	return all, kernel, nil
}

// parseStatus reads a field in kB, 0 where there is none.
func parseStatus(status []byte, name string) uint64 {
	for line := range bytes.Lines(status) {
		rest, found := bytes.CutPrefix(line, []byte(name))
		if !found {
			continue
		}
		if fields := bytes.Fields(rest); len(fields) > 0 {
			n, _ := strconv.ParseUint(string(fields[0]), 10, 54)
			return n << 10
		}
	}
	return 0
}

// OwnCPU is the processor time of this process, user and system, to the microsecond.
func OwnCPU() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read own processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// OwnGarbage is what this process has spent collecting garbage, as Go's runtime estimates it: from where its collector runs on a thread that
// could run something else, which the kernel may have given to another program. It moves at the end of a collection only.
func OwnGarbage() time.Duration {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindFloat64 {
		return 0
	}
	return time.Duration(sample[0].Value.Float64() * float64(time.Second))
}

// MachineCPU is the processor time of the whole machine that was not idle, of all its processors and programs.
func MachineCPU(proc string) (time.Duration, error) {
	text, err := os.ReadFile(proc + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read processor time of the machine: %w", err)
	}
	return parseMachine(text)
}

// parseMachine adds up the first line of /proc/stat: user nice system idle iowait irq softirq steal; what guests take is in user already.
func parseMachine(stat []byte) (time.Duration, error) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, fmt.Errorf("read processor time of the machine: %.40q is not its line", line)
	}
	ticks := uint64(0)
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseUint(string(fields[i]), 10, 63)
		if err != nil {
			return 0, fmt.Errorf("read processor time of the machine: %q ticks", fields[i])
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}
