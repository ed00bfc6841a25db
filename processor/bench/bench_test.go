package bench

import (
	"bytes"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestReadUsageOfThisProcess(t *testing.T) {
	u, err := ReadUsage("/proc", os.Getpid())
	if err != nil {
		t.Skipf("SKIPPED: no /proc: %v", err)
	}
	own, err := OwnCPU()
	if err != nil {
		t.Fatal(err)
	}
	if u.RSS == 0 || u.PeakRSS < u.RSS || own < 0 || u.CPU > own+2*clockTick+time.Second {
		t.Errorf("%+v, own %v", u, own)
	}
	if _, err := ReadUsage("/proc", 1<<30); err == nil {
		t.Error("a process that is not there is read")
	}
}

func TestCollectingGarbageTakesTime(t *testing.T) {
	before := OwnGarbage()
	for range 3 {
		runtime.GC()
	}
	if after := OwnGarbage(); after <= before {
		t.Errorf("three collections took %v", after-before)
	}
}

func TestParse(t *testing.T) {
	// The second field is the name, which may hold spaces and parentheses; 14 and 15 are 250 and 50 ticks.
	cpu, kernel, err := parseCPU([]byte("17 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20"))
	if err != nil || cpu != 3*time.Second || kernel != time.Second/2 {
		t.Errorf("%v, %v in the kernel, %v", cpu, kernel, err)
	}
	for _, bad := range []string{"", "17 (a", "17 (a) S 1", "17 (a) S 1 2 3 4 5 6 7 8 9 10 x 50 0"} {
		if _, _, err := parseCPU([]byte(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	status := []byte("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\tx kB\n")
	if parseStatus(status, "VmHWM:") != 2<<20 || parseStatus(status, "VmRSS:") != 0 || parseStatus(status, "VmSwap:") != 0 {
		t.Error("status is read wrong")
	}
}

// user 100, nice 10, system 30, irq 1, softirq 2, steal 7: 150 ticks of a hundredth; idle 900 and iowait 40 are nobody's.
func TestParseMachine(t *testing.T) {
	busy, err := parseMachine([]byte("cpu  100 10 30 900 40 1 2 7 0 0\ncpu0 1 1 1 1 1 1 1 1\n"))
	if err != nil || busy != 1500*time.Millisecond {
		t.Errorf("%v, %v", busy, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 x 4 5 6 7 8"} {
		if _, err := parseMachine([]byte(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("17 (a) S 1 2 3 4 5 6 7 8 9 10 250 50 0"), []byte("VmRSS: 1 kB"))
	f.Fuzz(func(t *testing.T, stat, status []byte) {
		if cpu, kernel, err := parseCPU(stat); err != nil && cpu+kernel != 0 {
			t.Errorf("%v, %v with %v", cpu, kernel, err)
		}
		parseStatus(status, "VmRSS:")
		if busy, err := parseMachine(stat); err != nil && busy != 0 {
			t.Errorf("%v with %v", busy, err)
		}
	})
}

// Nearest rank: of one hundred values 1 to 100 the median is 50 and p99 is 99; of twenty p99 is the longest.
func TestLatencyOf(t *testing.T) {
	var took []time.Duration
	for n := 100; n > 0; n-- {
		took = append(took, time.Duration(n)*time.Second)
	}
	if l := LatencyOf(101, took); l != (Latency{Planted: 101, Arrived: 100, P50: 50, P90: 90, P99: 99, Most: 100}) {
		t.Errorf("%+v", l)
	}
	if l := LatencyOf(20, took[:20]); l.P99 != 20 || l.P50 != 10 {
		t.Errorf("%+v", l)
	}
	if l := LatencyOf(3, nil); l != (Latency{Planted: 3}) {
		t.Errorf("%+v", l)
	}
}

// Ten more with each of sixty readings, one a second: ten a second.
func TestGrowthOf(t *testing.T) {
	var readings []float64
	for n := range 60 {
		readings = append(readings, 100+10*float64(n))
	}
	if g := GrowthOf(readings, time.Minute); g.PerSecond != 10 || g.Start != 195 || g.End != 595 || g.Most != 690 {
		t.Errorf("%+v", g)
	}
	if g := GrowthOf(readings[:2], time.Minute); g != (Growth{}) {
		t.Errorf("of two readings: %+v", g)
	}
}

func TestVerdict(t *testing.T) {
	ok := []Check{{Name: "x", OK: true}}
	fast := Latency{Planted: 5, Arrived: 5, P99: 0.5}
	for _, test := range []struct {
		r    Result
		want string
	}{
		{Result{Stored: true, PerSecond: 30_000, Checks: ok}, "30,000 worker-samples/s; must 30,000: met; goal 100,000: short by a factor of 3.3"},
		{Result{Stored: true, PerSecond: 29_999, Checks: ok}, "must 30,000: MISSED"},
		{Result{Stored: true, PerSecond: 100_001, Checks: ok}, "goal 100,000: met"},
		{Result{PerSecond: 50_000, Checks: ok, Slack: fast}, "judged with ClickHouse down; event to Slack p99 500ms (must 2s): met"},
		{Result{AskedPerSecond: 1000, PerSecond: 1000, MessagesPerSecond: 500, Checks: ok, Slack: fast}, "the backlog does not grow; event to Slack p99 500ms (must 2s): met"},
		{Result{AskedPerSecond: 1000, PerSecond: 900, MessagesPerSecond: 500, Backlog: Growth{PerSecond: 50}, Checks: ok, Slack: Latency{Planted: 2, Arrived: 1, P99: 2}}, "GROWS by 50 messages a second; event to Slack p99 2s (must 2s): MISSED"},
		{Result{AskedPerSecond: 1000, Checks: ok}, "event to Slack not measured"},
		{Result{Stored: true, PerSecond: 1e6, Checks: append(ok, Check{})}, "a check failed"},
	} {
		if got := test.r.Verdict(); !strings.Contains(got, test.want) {
			t.Errorf("%q, want %q", got, test.want)
		}
		var text bytes.Buffer
		if err := test.r.Write(&text); err != nil || !strings.Contains(text.String(), test.r.Verdict()) {
			t.Errorf("%s (%v)", text.String(), err)
		}
	}
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", -1234567.4: "-1,234,567"} {
		if got := count(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}
