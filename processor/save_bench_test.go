package processor

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"lowtide/collector/sim"
	"lowtide/event"
)

const partitionWorkers = 156 // of ten thousand over 64 partitions

// fullPartition is a judge of a partition that has seen ten hours of simulated hosts, each another world, one for each of its workers or more.
func fullPartition(b *testing.B) *Judge {
	b.Helper()
	scenarios := sim.Scenarios()
	var worlds [][]*event.Event
	longest := 0
	for i := range partitionWorkers {
		var events []*event.Event
		host := fmt.Sprint("host-", i)
		_, err := sim.Play(scenarios[i*7%len(scenarios)], uint64(i), 10, 0, func(e *event.Event) error {
			e = proto.CloneOf(e)
			e.Host.Name = host + "-" + e.Host.Name
			events = append(events, e)
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		worlds, longest = append(worlds, events), max(longest, len(events))
	}
	j := NewJudge(builtin(b), func(*event.Finding) {})
	for k := range longest { // side by side, since who is silent for hours is forgotten
		for _, events := range worlds {
			if k < len(events) {
				j.Apply(events[k])
			}
		}
	}
	return j
}

// What a partition stands still for while it is saved, and the bytes; and what it takes to go on from them.
func BenchmarkJudgeState(b *testing.B) {
	j := fullPartition(b)
	state, err := j.Save()
	if err != nil {
		b.Fatal(err)
	}
	parts, err := ownLayout().Open(state)
	if err != nil {
		b.Fatal(err)
	}
	pack := builtin(b)
	workers := float64(len(j.workers))
	b.Logf("%.0f workers, %d hosts, %d incidents open, %d bytes, %d packed", workers, len(j.hosts), len(j.incidents.State().Incidents), len(parts), len(state))
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := j.write(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(parts))/workers, "bytes/worker")
	})
	b.Run("seal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ownLayout().Seal(parts)
		}
		b.ReportMetric(float64(len(state))/workers, "bytes/worker")
	})
	b.Run("swap", func(b *testing.B) { // to other rules
		b.ReportAllocs()
		for b.Loop() {
			parts, err := j.write()
			if err != nil {
				b.Fatal(err)
			}
			if _, err := readJudge(pack, NewBoard(), func(*event.Finding) {}, parts); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("restore", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := RestoreJudge(pack, NewBoard(), func(*event.Finding) {}, state); err != nil {
				b.Fatal(err)
			}
		}
	})
}
