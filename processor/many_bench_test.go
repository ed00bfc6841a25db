package processor

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/rules"
)

// BenchmarkMany is what judging costs where there are many rules and many workers: 1,250 hosts of 8 workers, which tell of themselves every
// five seconds, in the 64 partitions of one process, from the bytes of a message to the findings. An iteration is a minute of all of them.
// cores is processor time, of this process and so with what its garbage costs, per second of the events; beside it, what a worker-sample
// costs, what of cores is collecting garbage, and what is remembered of a thousand workers. Compare builtin with many within one run.
// With -short there are 64 hosts, and cores is scaled up.
func BenchmarkMany(b *testing.B) {
	hosts := 1250
	if testing.Short() {
		hosts = 64
	}
	for _, of := range []struct {
		name string
		pack *rules.Pack
	}{{"builtin", builtin(b)}, {"many", manyRules(b, 500)}} {
		b.Run(of.name, func(b *testing.B) {
			defer debug.SetGCPercent(debug.SetGCPercent(200)) // as a processor runs
			f := newManyHosts(b, of.pack, hosts)
			for range 90 {
				f.play(b, 1) // past warm-up, and until growth of three hours can be called
			}
			f.pace(5 * time.Second)
			f.play(b, 12)
			f.spent, f.bytes, f.samples = 0, 0, 0
			for b.Loop() {
				f.play(b, 12)
			}
			garbage, held := f.weigh(b)
			seconds := 60 * float64(b.N)
			// A collection comes when twice as much as is held was allocated since the one before.
			garbage = time.Duration(float64(garbage) * float64(f.bytes) / (2 * float64(held)))
			full := float64(1250) / float64(hosts)
			b.ReportMetric(full*(f.spent+garbage).Seconds()/seconds, "cores")
			b.ReportMetric(full*garbage.Seconds()/seconds, "cores-garbage")
			b.ReportMetric(float64((f.spent+garbage).Nanoseconds())/float64(f.samples)/1000, "µs-cpu/worker-sample")
			b.ReportMetric(float64(held)/float64(8*hosts)*1000/(1<<20), "MiB/1000-workers")
			b.ReportMetric(float64(f.findings), "findings")
			b.ReportMetric(float64(len(of.pack.Rules)), "rules")
			b.ReportMetric(0, "ns/op") // the generator is most of it
		})
	}
}

// manyHosts are simulated hosts and those who judge them.
type manyHosts struct {
	machines []*sim.Machine
	judges   [event.PartitionCount]*Judge
	readers  [event.PartitionCount]*event.BatchReader
	told     time.Time
	sequence uint64
	findings int

	spent   time.Duration // processor time of judging
	bytes   uint64        // allocated meanwhile
	samples int
}

func newManyHosts(b *testing.B, pack *rules.Pack, hosts int) *manyHosts {
	f := new(manyHosts)
	kinds := make([]sim.Kind, 100) // one of a hundred workers leaks, one is pressed
	kinds[33], kinds[66] = sim.Leaking, sim.KVPressed
	for n := range hosts {
		m, err := sim.NewMachine(sim.MachineOptions{Number: n, Workers: 8, Kinds: kinds, Seed: 7, Step: 2 * time.Minute, Start: time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)})
		if err != nil {
			b.Fatal(err)
		}
		f.machines = append(f.machines, m)
	}
	board := NewBoard()
	for i := range f.judges {
		f.judges[i], f.readers[i] = NewJudgeWith(pack, board, func(*event.Finding) { f.findings++ }), event.NewBatchReader()
	}
	return f
}

func (f *manyHosts) pace(step time.Duration) {
	for _, m := range f.machines {
		m.Pace(step)
	}
}

// play makes some ticks of all hosts, and then has them judged in the order of time.
func (f *manyHosts) play(b *testing.B, ticks int) {
	b.StopTimer()
	var wire [][]byte
	var at []time.Time
	for range ticks {
		f.sequence++
		for _, m := range f.machines {
			all := m.Tick()
			data, err := event.EncodeBatch(&event.Batch{Schema: event.Schema, Host: all[0].Host, Source: event.AllSources, Producer: "p", Lane: event.LaneSamples, Sequence: f.sequence, Events: all})
			if err != nil {
				b.Fatal(err)
			}
			wire = append(wire, data)
			for _, e := range all {
				if e.Process != nil {
					f.samples++
				}
			}
		}
		at = append(at, f.machines[0].Now())
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.StartTimer()
	began := processorTime(b)
	for tick, now := range at {
		for n := range f.machines {
			f.judge(b, n%event.PartitionCount, wire[tick*len(f.machines)+n], now)
		}
		if now.Sub(f.told) >= tickEvery {
			f.told = now
			for _, j := range f.judges {
				j.Tick(now)
			}
		}
	}
	f.spent += processorTime(b) - began
	b.StopTimer()
	runtime.ReadMemStats(&after)
	f.bytes += after.TotalAlloc - before.TotalAlloc
	b.StartTimer()
}

func (f *manyHosts) judge(b *testing.B, partition int, wire []byte, now time.Time) {
	j := f.judges[partition]
	batch, _, err := f.readers[partition].Decode("", wire)
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range batch.Events {
		j.Apply(e)
	}
	j.hear(batch.Host, now)
}

// weigh returns what one collection of garbage costs while there is nothing but the judges, and how much they remember.
func (f *manyHosts) weigh(b *testing.B) (once time.Duration, held uint64) {
	f.machines = nil
	var with, without runtime.MemStats
	runtime.GC()
	runtime.GC()
	began := processorTime(b)
	runtime.GC()
	once = processorTime(b) - began
	runtime.ReadMemStats(&with)
	clear(f.judges[:])
	clear(f.readers[:])
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&without)
	return once, with.HeapAlloc - without.HeapAlloc
}

// manyRules returns the built-in rules and as many more as make up a number: of ten kinds in turn, as people write them, each with limits of
// its own, so that no two are the same. One of ten is tried out only.
func manyRules(t testing.TB, number int) *rules.Pack {
	t.Helper()
	var text strings.Builder
	text.WriteString("rules:\n")
	kinds := []func(n int) (class, scope, when, more string){
		func(n int) (string, string, string, string) { // a gauge that moves at every tick
			return "kv_pressure", "worker", fmt.Sprintf("kv.busy > %.4f && waiting.now > %d.0", 0.985+float64(n)/1e5, 200+n), "    with: symptom.latency || symptom.slo\n"
		},
		func(n int) (string, string, string, string) { // growth, with all that a built-in rule has
			return "retention", "worker", fmt.Sprintf("live.growth_low > %d * MiB && quiet.count >= %d && !live.filling", 512+n, 4+n%4),
				"    confirm: proof.work || proof.peer\n    with: symptom.oom || symptom.latency\n    against:\n      kv: kv.moved\n      graphs: graphs.moved\n      prompts: prompts.moved\n    evidence: [live.growth, live.level_bytes, quiet.count]\n"
		},
		func(n int) (string, string, string, string) {
			return "host_memory", "worker", fmt.Sprintf("anon.growth_low > %d * MiB || (known(cgroup.ratio) && cgroup.ratio > %.4f)", 900+n, 0.97+float64(n)/1e5), "    confirm: proof.work\n    with: symptom.kill\n"
		},
		func(n int) (string, string, string, string) {
			return "fd_leak", "worker", fmt.Sprintf("fds.now > %d.0 || fds.growth_low > %d.0", 60_000+n, 500+n), "    evidence: [fds.now, fds.growth]\n"
		},
		func(n int) (string, string, string, string) { // a symptom, of one model
			return "kv_pressure", "instance", fmt.Sprintf("symptom.latency && queue.seconds > %d.0 && model == \"llama-%d\"", 20+n, n%23), "    with: symptom.slo || symptom.preemption\n    against:\n      demand: demand.ratio > 1.5\n"
		},
		func(n int) (string, string, string, string) { // of the model that all have
			return "oversize_request", "worker", fmt.Sprintf("model == \"sim-healthy\" && symptom.oom && oom.requested_bytes > %d * GiB", 1+n), "    confirm: oom.requested_bytes > headroom.bytes\n"
		},
		func(n int) (string, string, string, string) { // by label and cluster
			return "stall", "worker", fmt.Sprintf("known(labels) && \"team\" in labels && labels[\"team\"] == \"t%d\" && progress.seconds > %d.0 && cluster == \"sim\"", n, 120+n), ""
		},
		func(n int) (string, string, string, string) { // a card
			return "device_fault", "gpu", fmt.Sprintf("ecc.corrected_delta > %d.0 || utilization.now > %.4f && xid.count > %d.0", 100+n, 0.9+float64(n)/1e4, n), ""
		},
		func(n int) (string, string, string, string) { // what is live and what is cached, both of which move with the load
			return "fragmentation", "worker", fmt.Sprintf("cached.now > %d * GiB && live.now > %d * GiB && headroom.ratio < %.4f", 20+n%9, 60+n%7, 0.02+float64(n)/1e5), "    confirm: known(snapshot.fragmentation) && snapshot.fragmentation > 0.5\n    evidence: [cached.now, live.now, headroom.bytes]\n"
		},
		func(n int) (string, string, string, string) { // that the fleet meets now and then
			return "thread_leak", "worker", fmt.Sprintf("running.now > %d.0 && age.hours > 2.0 && threads.now > %d.0", 40+n%8, 3000+n), "    with: symptom.restart\n"
		},
	}
	builtin := len(builtin(t).Rules)
	for n := range number - builtin {
		class, scope, when, more := kinds[n%len(kinds)](n / len(kinds))
		fmt.Fprintf(&text, "  - id: many_%d\n    class: %s\n    scope: %s\n    when: |\n      %s\n    pair: 1h\n    keep: 1h\n    severity: {alone: ticket, with: page}\n    summary: \"Rule %d of many\"\n    shadow: %t\n%s",
			n, class, scope, when, n, n/len(kinds)%10 == 9, more)
	}
	pack, err := rules.LoadSources([]rules.Source{{Name: "many.yaml", Content: []byte(text.String())}})
	if err != nil {
		t.Fatal(err)
	}
	if len(pack.Rules) != number {
		t.Fatalf("%d rules, want %d", len(pack.Rules), number)
	}
	return pack
}
