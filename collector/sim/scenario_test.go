package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lowtide/event"
)

const testSeeds = 3

// series is what a scenario may make grow, with the growth per hour that counts as none.
var series = []struct {
	name  string
	of    func(row) float64
	level float64
}{
	{"live", func(r row) float64 { return r.live }, 10 * mib},
	{"awaiting", func(r row) float64 { return r.active - r.live }, 5 * mib},
	{"outside", func(r row) float64 { return r.used - r.reserved }, 8 * mib},
	{"graphs", func(r row) float64 { return r.graphs }, 5 * mib},
	{"anon", func(r row) float64 { return r.anon }, 16 * mib},
	{"pinned", func(r row) float64 { return r.pinned }, 5 * mib},
	{"fds", func(r row) float64 { return r.fds - r.waiting - r.running }, 8},
	{"sockets", func(r row) float64 { return r.sockets }, 2},
	{"threads", func(r row) float64 { return r.threads }, 2},
	{"kv", func(r row) float64 { return r.kv }, 0.007},
}

// What stays behind grows at the planted rate where it was planted, and nothing else grows.
func TestWhatIsPlantedGrows(t *testing.T) {
	for _, c := range []struct {
		scenario  string
		grows     string  // names of the series, with a space between
		low, high float64 // per hour
	}{
		{"retention-20mib", "live", 14 * mib, 29 * mib},
		{"retention-200mib", "live", 110 * mib, 330 * mib},
		{"retention-2gib", "live", 1.2 * gib, 3 * gib},
		{"retention-lumps", "live", 60 * mib, 400 * mib},
		{"retention-abort", "live", 0.2 * gib, 1.6 * gib},
		{"retention-busy", "live", 0.25 * gib, 1.6 * gib},
		{"retention-restarts", "live", 1.2 * gib, 4 * gib},
		{"retention-release", "live", 130 * mib, 650 * mib},
		{"retention-ranks", "live", 0.13 * gib, 1.1 * gib},
		{"retention-late", "live", 0.08 * gib, 1.2 * gib},
		{"retention-no-engine", "live", 100 * mib, 520 * mib},
		{"native-slow", "outside", 25 * mib, 90 * mib},
		{"native-request", "outside", 130 * mib, 950 * mib},
		{"native-busy", "outside", 0.2 * gib, 1.2 * gib},
		{"native-oom", "outside", 0.8 * gib, 3 * gib},
		{"stream-backlog-slow", "awaiting", 70 * mib, 330 * mib},
		{"stream-backlog-fast", "awaiting", 0.5 * gib, 2.2 * gib},
		{"graph-pools-shapes", "graphs", 0.12 * gib, 0.8 * gib},
		{"graph-pools-oom", "graphs", 0.8 * gib, 2.8 * gib},
		{"kv-leak-drains", "kv", 0.009, 0.06},
		{"host-memory-slow", "anon", 25 * mib, 75 * mib},
		{"host-memory-request", "anon", 65 * mib, 540 * mib},
		{"host-memory-fast", "anon", 10 * gib, 34 * gib},
		{"host-memory-kill", "anon", 1.3 * gib, 5.5 * gib},
		{"pinned-slow", "pinned", 65 * mib, 330 * mib},
		{"pinned-fast", "pinned", 0.6 * gib, 3.4 * gib},
		{"fd-leak-files", "fds", 18, 170},
		{"fd-leak-sockets", "sockets fds", 38, 420},
		{"thread-leak-slow", "threads", 3, 17},
		{"thread-leak-fast", "threads", 18, 130},
	} {
		for seed := range uint64(testSeeds) {
			t.Run(fmt.Sprintf("%s-%d", c.scenario, seed), func(t *testing.T) {
				tr := play(t, c.scenario, seed)
				rows := tr.planted(t)
				for _, s := range series {
					rate := slope(rows, s.of)
					if slices.Contains(strings.Fields(c.grows), s.name) {
						if !(rate > c.low && rate < c.high) {
							t.Errorf("%s rises by %v an hour, want %v to %v", s.name, rate, c.low, c.high)
						}
						continue
					}
					level := s.level
					if rows[len(rows)-1].hour-rows[0].hour < 6 {
						level *= 4 // the noise of a short life
					}
					if math.Abs(rate) > level {
						// A private pool hands out a little, and a busy worker's descriptors follow its load.
						if s.name == "live" && c.grows == "graphs" && rate < 0.03*c.high {
							continue
						}
						t.Errorf("%s rises by %v an hour, want none", s.name, rate)
					}
				}
			})
		}
	}
}

// What fails says why in its own numbers.
func TestFailuresSayWhy(t *testing.T) {
	fits := func(o *event.Oom) bool {
		return o.GetRequestedBytes() <= o.GetFreeBytes()+o.GetReservedUnallocatedBytes()
	}
	others := func(o *event.Oom) bool {
		return o.GetRequestedBytes() <= o.GetFreeBytes()+o.GetReservedUnallocatedBytes()+o.GetOtherProcessesBytes()
	}
	for _, c := range []struct {
		scenario string
		least    int
		right    func(*event.Oom) bool
		share    float64 // of the failures, at least
	}{
		{"retention-oom", 1, func(o *event.Oom) bool { return !fits(o) }, 0.95},
		{"retention-restarts", 2, func(o *event.Oom) bool { return !fits(o) }, 0.95},
		{"native-oom", 1, func(o *event.Oom) bool { return !fits(o) }, 0.95},
		{"fragmentation-oom", 1, fits, 0.95},
		{"oversize-requests", 2, func(o *event.Oom) bool { return !fits(o) && o.GetRequestedBytes() > 2*gib }, 0.95},
		{"oversize-crash", 2, func(o *event.Oom) bool { return !fits(o) && o.GetRequestedBytes() > 2*gib }, 0.95},
		{"oversize-reserve", 2, func(o *event.Oom) bool {
			return !fits(o) && o.GetRequestedBytes() > 20*gib && o.GetReservedUnallocatedBytes() > 3*gib
		}, 0.6},
		{"cotenant-grab", 1, func(o *event.Oom) bool { return !fits(o) && others(o) && o.GetOtherProcessesBytes() > 4*gib }, 0.9},
		{"cotenant-orphan", 3, func(o *event.Oom) bool { return !fits(o) && o.GetOtherProcessesBytes() == 0 }, 1},
		{"capacity-device", 10, func(o *event.Oom) bool { return !fits(o) }, 1},
		{"exhaustion-device", 1, func(o *event.Oom) bool { return !fits(o) }, 1},
	} {
		for seed := range uint64(testSeeds) {
			tr := play(t, c.scenario, seed)
			right := 0
			for _, e := range tr.ooms {
				if e.Oom.Kind != "cuda" || e.Oom.Text == "" || !slices.Contains(tr.recording.Pids, e.Worker.Pid) {
					t.Errorf("%s, seed %d: %v", c.scenario, seed, e)
				}
				if c.right(e.Oom) {
					right++
				} else if testing.Verbose() {
					t.Logf("%s: %v", c.scenario, e.Oom)
				}
			}
			if len(tr.ooms) < c.least || float64(right) < c.share*float64(len(tr.ooms)) {
				t.Errorf("%s, seed %d: %d failures of which %d say so, want %d at least", c.scenario, seed, len(tr.ooms), right, c.least)
			}
		}
	}
}

func TestFragmentationWithoutText(t *testing.T) {
	for seed := range uint64(testSeeds) {
		tr := play(t, "fragmentation-counters", seed)
		rows := tr.planted(t)
		last := rows[len(rows)-1]
		if len(tr.ooms) > 0 || last.ooms == 0 || last.retries == 0 || last.split < 0.2*last.reserved || math.Abs(slope(rows, series[0].of)) > mib {
			t.Errorf("seed %d: %d texts, %v failures, %v retries, split %.2f of the reserve, live %+.1f MiB/h",
				seed, len(tr.ooms), last.ooms, last.retries, last.split/last.reserved, slope(rows, series[0].of)/mib)
		}
	}
}

func TestPressureOnThePool(t *testing.T) {
	for _, c := range []struct {
		scenario                 string
		preemptionsLow, mostHigh float64 // per finished request since the onset
	}{{"kv-pressure-demand", 0, 0.1}, {"kv-pressure-preemption", 0.3, 3}, {"kv-pressure-long", 0, 0.2}} {
		for seed := range uint64(testSeeds) {
			tr := play(t, c.scenario, seed)
			rows := tr.planted(t)
			rows = rows[len(rows)*2/5:] // demand takes an hour or two to rise
			var full, queued, slow float64
			usual := tr.rows[tr.recording.Pids[0]][90].ttft
			for _, r := range rows {
				if r.kv >= 0.88 {
					full++
				}
				if r.waiting > 0 && r.running > 0 {
					queued++
				}
				if r.ttft > 3*usual && r.ttft > 1 {
					slow++
				}
			}
			n, first, last := float64(len(rows)), rows[0], rows[len(rows)-1]
			preempted := (last.preempted - first.preempted) / (last.finished - first.finished)
			if full < 0.8*n || queued < 0.8*n || slow < 0.8*n || preempted < c.preemptionsLow || preempted > c.mostHigh {
				t.Errorf("%s, seed %d: of %v ticks full in %v, queue in %v, slow in %v; %v preemptions a request", c.scenario, seed, n, full, queued, slow, preempted)
			}
		}
	}
}

func TestHeldBlocksStopAdmission(t *testing.T) {
	for seed := range uint64(testSeeds) {
		tr := play(t, "kv-leak-stops", seed)
		rows := tr.planted(t)
		last := rows[len(rows)-1]
		if last.running > 0 || last.waiting == 0 || last.kv < 0.9 {
			t.Errorf("seed %d ends with %v running, %v waiting, %v of the pool", seed, last.running, last.waiting, last.kv)
		}
	}
}

func TestStalls(t *testing.T) {
	for seed := range uint64(testSeeds) {
		for _, name := range []string{"stall-queue", "stall-collective"} {
			tr := play(t, name, seed)
			all := tr.rows[tr.recording.Pids[0]]
			var rows []row
			for _, r := range all {
				if r.hour > tr.onset()+0.05 {
					rows = append(rows, r)
				}
			}
			first, last := rows[0], rows[len(rows)-1]
			if last.tokens != first.tokens || last.finished != first.finished || last.running == 0 {
				t.Errorf("%s, seed %d: tokens %v to %v, running %v", name, seed, first.tokens, last.tokens, last.running)
			}
			if spins := name == "stall-collective"; spins != (last.waiting == first.waiting) || spins != (last.utilization == 1) || !spins && last.utilization != 0 {
				t.Errorf("%s, seed %d: waiting %v to %v, utilization %v", name, seed, first.waiting, last.waiting, last.utilization)
			}
		}
	}
}

// How a worker ends is in its events, in order.
func TestEnds(t *testing.T) {
	for _, c := range []struct {
		scenario string
		xids     []uint64 // in their order, as far as they go
		ends     int      // of the first life on, at least
		signal   int64
		code     int64 // -1 none
		by       string
		bye      bool
		ooms     int
	}{
		{"device-bus", []uint64{79}, 1, 6, -1, "self", false, 0},
		{"device-ecc", []uint64{48}, 1, 0, 1, "self", false, 0},
		{"device-nvlink", []uint64{62, 45, 45, 45, 45, 45, 45}, 2, 6, -1, "self", false, 0},
		{"software-mmu", []uint64{31}, 1, 0, 0, "self", true, 0},
		{"software-exception", []uint64{13, 43, 45}, 1, 6, -1, "self", false, 0},
		{"kill-cgroup", nil, 1, 9, -1, "cgroup", false, 1},
		{"kill-kernel", nil, 1, 9, -1, "kernel", false, 1},
		{"kill-parent", nil, 1, 9, -1, "parent", false, 0},
		{"kill-term", nil, 1, 15, -1, "unknown", false, 0},
		{"exhaustion-host", nil, 1, 9, -1, "cgroup", false, 1},
		{"host-memory-kill", nil, 1, 9, -1, "cgroup", false, 1},
		{"capacity-host", nil, 1, 9, -1, "cgroup", false, 1},
		{"crash-loop-start", nil, 20, 0, 1, "self", false, 0},
		{"crash-loop-served", nil, 6, 11, -1, "self", false, 0},
	} {
		for seed := range uint64(testSeeds) {
			tr := play(t, c.scenario, seed)
			if len(tr.ends) < c.ends || len(tr.ooms) < c.ooms || len(tr.xids) < len(c.xids) {
				t.Errorf("%s, seed %d: %d ends, %d failures, %d Xids", c.scenario, seed, len(tr.ends), len(tr.ooms), len(tr.xids))
				continue
			}
			for n, code := range c.xids {
				if x := tr.xids[n].Xid; x.GetCode() != code {
					t.Errorf("%s, seed %d: Xid %d is %d, want %d", c.scenario, seed, n, x.GetCode(), code)
				}
			}
			end := tr.ends[0].Lifecycle
			code := int64(-1)
			if end.ExitCode != nil {
				code = *end.ExitCode
			}
			if end.GetSignal() != c.signal || code != c.code || end.By != c.by || end.GetSaidBye() != c.bye {
				t.Errorf("%s, seed %d: %v", c.scenario, seed, end)
			}
			if len(c.xids) > 0 && tr.xids[0].At().After(tr.ends[0].At()) {
				t.Errorf("%s, seed %d: the first Xid comes after the end", c.scenario, seed)
			}
			if c.ooms > 0 && (tr.ooms[0].Oom.GetVictimPid() != tr.ends[0].Worker.Pid || tr.ooms[0].At().After(tr.ends[0].At())) {
				t.Errorf("%s, seed %d: %v, then %v", c.scenario, seed, tr.ooms[0], tr.ends[0])
			}
		}
	}
}

func TestExhaustionTakesLessThanAnHour(t *testing.T) {
	for seed := range uint64(testSeeds) {
		for _, name := range []string{"exhaustion-device", "exhaustion-host"} {
			tr := play(t, name, seed)
			if len(tr.ooms) == 0 {
				t.Errorf("%s, seed %d: nothing fails", name, seed)
				continue
			}
			if lasts := tr.ooms[0].At().Sub(tr.recording.Onset).Minutes(); lasts < 18 || lasts > 62 {
				t.Errorf("%s, seed %d: %.0f minutes from the onset to the end", name, seed, lasts)
			}
		}
	}
}

func TestCapacityIsInTheConfiguration(t *testing.T) {
	for seed := range uint64(testSeeds) {
		tr := play(t, "capacity-device", seed)
		c := tr.config[0].Config
		asked := c.GetWeightsBytes() + c.GetKvPoolBytes() + c.GetGraphPoolBytes()
		if limit := uint64(141 * gib); asked < 80*gib || asked > 170*gib || asked > 100*gib && asked < limit {
			t.Errorf("seed %d asks for %.1f GiB", seed, float64(asked)/gib)
		}
		tr = play(t, "capacity-host", seed)
		var caches float64
		for _, d := range tr.config[0].Config.DeclaredCaches {
			caches += float64(d.GetCapBytes())
		}
		if limit := tr.rows[tr.recording.Pids[0]][0].cgroup; caches <= limit || limit == 0 {
			t.Errorf("seed %d declares caches of %.0f GiB under a limit of %.0f GiB", seed, caches/gib, limit/gib)
		}
	}
}

func TestBlindSaysSo(t *testing.T) {
	for seed := range uint64(testSeeds) {
		if tr := play(t, "blind-nvml", seed); tr.sources["lost"] < 3 {
			t.Errorf("seed %d: %v", seed, tr.sources)
		}
		if tr := play(t, "blind-timeout", seed); tr.sources["timeout"] < 2 {
			t.Errorf("seed %d: %v", seed, tr.sources)
		}
	}
}

// Healthy workers neither fail nor are killed; what they keep, they keep below a cap.
func TestHealthyStaysHealthy(t *testing.T) {
	fills := map[string]bool{"healthy-cache-declared": true, "healthy-host-cache-declared": true, "healthy-cache-undeclared": true, "healthy-adapters": true, "healthy-sleep": true, "healthy-no-probe": true}
	for _, s := range Scenarios() {
		if s.Class != "" {
			continue
		}
		for seed := range uint64(testSeeds) {
			tr := play(t, s.Name, seed)
			if len(tr.ooms) > 0 || len(tr.recording.Pids) > 0 || !tr.recording.Onset.IsZero() {
				t.Errorf("%s, seed %d: %d failures, %d planted, onset %v", s.Name, seed, len(tr.ooms), len(tr.recording.Pids), tr.recording.Onset)
			}
			for _, e := range tr.ends {
				if l := e.Lifecycle; !l.GetSaidBye() || l.GetExitCode() != 0 || l.Signal != nil && *l.Signal != 15 {
					t.Errorf("%s, seed %d: %v", s.Name, seed, l)
				}
			}
			for _, pid := range tr.lives {
				rows := tr.rows[pid]
				if len(rows) < 8*60 || fills[s.Name] {
					continue
				}
				rows = rows[3*60:] // start-up is over, and what fills within three hours is full
				for _, g := range series {
					if s.Name == "healthy-gc" && g.name == "anon" || s.Name == "healthy-native-steps" && g.name == "outside" {
						continue
					}
					if rate := slope(rows, g.of); math.Abs(rate) > g.level {
						t.Errorf("%s, seed %d: %s rises by %v an hour", s.Name, seed, g.name, rate)
					}
				}
			}
		}
	}
}
