package sink

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor/bench"
)

// BenchmarkEngineByBlock is what a row of worker_samples costs in processor time of the engine, with its card's row, the rollups and the merges
// until none runs any more, by how many rows a block has and whether rollups hang on the tables. Simulated hosts in eight lanes, 24 blocks of their ticks
// (fewer of large ones), as fast as they go in. Use -benchtime 1x.
func BenchmarkEngineByBlock(b *testing.B) {
	for _, rollups := range []bool{true, false} {
		for _, size := range []struct{ rows, blocks int }{{500, 24}, {1500, 24}, {4500, 24}, {20000, 16}} {
			b.Run(fmt.Sprintf("rows=%d/rollups=%v", size.rows, rollups), func(b *testing.B) {
				for range b.N {
					engineCost(b, size.rows, size.blocks, rollups)
				}
			})
		}
	}
}

func engineCost(b *testing.B, rows, blocks int, rollups bool) {
	o := &onceStore{t: b, folder: b.TempDir()}
	o.start()
	defer o.end()
	if !rollups {
		for _, view := range []string{"worker_minute_fill", "instance_minute_fill", "worker_hour_fill", "gpu_minute_fill", "gpu_hour_fill"} {
			if err := o.store.exec(b.Context(), "DROP VIEW lowtide."+view); err != nil {
				b.Fatal(err)
			}
		}
	}
	const lanes, hosts = 8, 62
	start := time.Now().UTC().Truncate(24 * time.Hour).Add(-24 * time.Hour)
	var machines [lanes][]*sim.Machine
	for n := range lanes * hosts {
		m, err := sim.NewMachine(sim.MachineOptions{Number: n, Workers: 8, Seed: 7, Start: start})
		if err != nil {
			b.Fatal(err)
		}
		machines[n%lanes] = append(machines[n%lanes], m)
	}
	spent := func() time.Duration {
		usage, err := bench.ReadUsage("/proc", o.engine.ChildPID())
		if err != nil {
			b.Fatal(err)
		}
		return usage.CPU
	}
	began, stored, sequence := spent(), 0, uint64(0)
	for n := range blocks {
		block := Block{Token: "cost" + strconv.Itoa(n)}
		for had := 0; had < rows; {
			for _, m := range machines[n%lanes] {
				sequence++
				events := slices.Clone(m.Tick())
				block.Messages = append(block.Messages, Message{Sequence: sequence, Time: start, Batch: &event.Batch{Host: events[0].Host, Events: events}})
				had += 8
			}
		}
		for _, one := range Join(block) {
			if err := o.store.InsertRows(b.Context(), block.Token+":"+one.Table, one); err != nil {
				b.Fatal(err)
			}
			if one.Table == TableWorkers {
				stored += one.Count
			}
		}
	}
	inserted := spent() - began
	for quiet := 0; quiet < 10; quiet++ { // merges begin a while after one another
		if o.count("SELECT count() FROM system.merges") > 0 {
			quiet = 0
		}
		if err := pause(b.Context(), 200*time.Millisecond); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(inserted.Microseconds())/float64(stored), "inserted-µs/row")
	b.ReportMetric(float64((spent()-began).Microseconds())/float64(stored), "merged-µs/row")
}
