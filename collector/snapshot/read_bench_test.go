package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// bigEntries is the length of the history that makes serving 100 MB.
const bigEntries = 945_000

// big is a snapshot of 100 MB, as a long history of a server leaves it.
func big() []byte { return generate(serving(bigEntries)) }

// BenchmarkRead reads 100 MB of each kind; TestReadSpeed sets the first beside CPython.
func BenchmarkRead(b *testing.B) {
	for _, kind := range []struct {
		name string
		shape
	}{
		{"serving", serving(bigEntries)},
		{"without_stacks", shape{protocol: 4, devices: 1, segments: 200, blocks: 20, entries: 1_400_000}},
		{"deep_stacks", shape{protocol: 4, devices: 1, segments: 200, blocks: 20, entries: 570_000, depth: 40, sites: 2000}},
		{"unshared_frames", shape{protocol: 4, devices: 1, segments: 200, blocks: 20, entries: 310_000, depth: 20, sites: 2000, unshared: true}},
		{"blocks", shape{protocol: 4, devices: 1, segments: 20_000, blocks: 100, entries: 1}},
		{"torch", shape{protocol: 2, torch: true, devices: 1, segments: 200, blocks: 20, entries: 850_000, depth: 12, sites: 300}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			pickle := generate(kind.shape)
			b.SetBytes(int64(len(pickle)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Read(bytes.NewReader(pickle), Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// cost is what one reading took.
type cost struct {
	Wall float64 `json:"wall"` // seconds
	CPU  float64 `json:"cpu"`  // seconds, of all threads
	Peak float64 `json:"peak"` // bytes of memory that the process had at most
}

func processorTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// readOnce reads the file and writes its cost to stdout, in a process of its own so that the peak is that of the one reading.
func readOnce(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	began, used := time.Now(), processorTime()
	s, err := Read(file, Limits{})
	if err != nil {
		return err
	}
	c := cost{Wall: time.Since(began).Seconds(), CPU: (processorTime() - used).Seconds()}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if peak == nil {
		return fmt.Errorf("no VmHWM in /proc/self/status")
	}
	kib, err := strconv.ParseFloat(string(peak[1]), 64)
	if err != nil {
		return err
	}
	c.Peak = 1024 * kib
	if len(s.Traces) != 1 || len(s.Traces[0]) != bigEntries {
		return fmt.Errorf("%d traces, want one of %d entries", len(s.Traces), bigEntries)
	}
	return json.NewEncoder(os.Stdout).Encode(c)
}

// raced says whether the race detector is built in, with which nothing is as fast as it is.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// 100 MB in less than twice as much memory. What it takes beside CPython in the same run is told, not asserted; processor time is compared,
// since other work on the machine adds to the wall's.
func TestReadSpeed(t *testing.T) {
	if path := os.Getenv("LOWTIDE_SNAPSHOT_TO_READ"); path != "" {
		if err := readOnce(path); err != nil {
			t.Fatal(err)
		}
		return
	}
	if testing.Short() || raced() {
		t.Skip("SKIPPED: with -short or the race detector 100 MB are not read for time")
	}
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skipf("SKIPPED: peak memory is read from /proc: %v", err)
	}
	py := python(t)
	b := big()
	size := float64(len(b))
	if size < 100e6 {
		t.Fatalf("%.0f bytes, want 100 MB", size)
	}
	path := filepath.Join(t.TempDir(), "big.pickle")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var best cost
	for range 3 {
		read := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestReadSpeed$")
		read.Env = append(os.Environ(), "LOWTIDE_SNAPSHOT_TO_READ="+path)
		out, err := read.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var c cost
		if err := json.NewDecoder(bytes.NewReader(out)).Decode(&c); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if best.CPU == 0 || c.CPU < best.CPU {
			best = c
		}
	}
	out, err := exec.CommandContext(t.Context(), py, "testdata/figures.py", "--time", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var other cost
	if err := json.Unmarshal(out, &other); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%.1f MB: %.3f s (%.3f s of processor, %.0f MB/s), at most %.0f MB of memory; CPython's pickle.load: %.3f s (%.3f s), %.0f MB; %.1f times as fast",
		size/1e6, best.Wall, best.CPU, size/1e6/best.CPU, best.Peak/1e6, other.Wall, other.CPU, other.Peak/1e6, other.CPU/best.CPU)
	if best.Peak >= 2*size {
		t.Errorf("%.0f MB of memory for %.0f, want less than twice that", best.Peak/1e6, size/1e6)
	}
}
