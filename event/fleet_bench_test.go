package event_test

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"lowtide/collector/sim"
	"lowtide/event"
)

// BenchmarkBatchReaderFleet reads what the hosts of a fleet send, in turn: a message is a tick of a host of eight workers, with all sources.
// A worker-sample is a tick of a worker. The newest messages of two rounds are kept, as a store keeps what it has not written yet, so that what
// collecting garbage costs is in the processor time.
func BenchmarkBatchReaderFleet(b *testing.B) {
	const hosts, workers, ticks = 250, 8, 6
	machines := make([]*sim.Machine, hosts)
	for n := range machines {
		var err error
		if machines[n], err = sim.NewMachine(sim.MachineOptions{Number: n, Workers: workers, Seed: 7, Start: time.Date(2026, 11, 2, 9, 0, 0, 0, time.UTC)}); err != nil {
			b.Fatal(err)
		}
	}
	var wire [][]byte
	size := 0
	for tick := range 1 + ticks {
		for _, m := range machines {
			events := m.Tick()
			if tick == 0 { // says how everything is configured, once
				continue
			}
			text, err := event.EncodeBatch(&event.Batch{Host: events[0].Host, Source: event.AllSources, Producer: "p", Lane: event.LaneSamples, Sequence: uint64(tick + 1), Events: events})
			if err != nil {
				b.Fatal(err)
			}
			wire = append(wire, text)
			size += len(text)
		}
	}
	reader, kept, n := event.NewBatchReader(), make([]*event.Batch, 2*hosts), 0
	for i, text := range wire { // what a fleet looks like is known soon
		batch, _, err := reader.Decode("", text)
		if err != nil {
			b.Fatal(err)
		}
		kept[i%len(kept)] = batch
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := processorTime(b)
	b.ReportAllocs()
	for b.Loop() {
		batch, _, err := reader.Decode("", wire[n%len(wire)])
		if err != nil {
			b.Fatal(err)
		}
		kept[n%len(kept)] = batch
		n++
	}
	spent := processorTime(b) - began
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(spent.Nanoseconds())/float64(n*workers), "ns-cpu/worker-sample")
	b.ReportMetric(float64(size)/float64(len(wire)), "message-B")
	b.ReportMetric(float64(after.HeapAlloc)/1e6, "held-MB")
	runtime.KeepAlive(kept)
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
