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

// BenchmarkEngineByBlock is what a row of worker_samples costs in processor time of the engine, with its card's row, the merges until none runs
// any more and, where they are filled, the rollups, by how many rows a block has. 500 simulated hosts, ticks of 5 s, as fast as they go in; the
// rollups are filled every 400,000 rows. Use -benchtime 1x.
func BenchmarkEngineByBlock(b *testing.B) {
	for _, size := range []struct{ rows, blocks int }{{4000, 60}, {16000, 40}, {32000, 25}} {
		for _, filled := range []bool{true, false} {
			b.Run(fmt.Sprintf("rows=%d/filled=%v", size.rows, filled), func(b *testing.B) {
				for range b.N {
					engineCost(b, size.rows, size.blocks, filled)
				}
			})
		}
	}
}

func engineCost(b *testing.B, rows, blocks int, filled bool) {
	o := &onceStore{t: b, folder: b.TempDir()}
	o.start()
	defer o.end()
	start := time.Now().UTC().Truncate(24 * time.Hour).Add(-24 * time.Hour)
	var machines []*sim.Machine
	for n := range 500 {
		m, err := sim.NewMachine(sim.MachineOptions{Number: n, Workers: 8, Seed: 7, Start: start})
		if err != nil {
			b.Fatal(err)
		}
		machines = append(machines, m)
	}
	spent := func() time.Duration {
		usage, err := bench.ReadUsage("/proc", o.engine.ChildPID())
		if err != nil {
			b.Fatal(err)
		}
		return usage.CPU
	}
	began, stored, unfilled, sequence, filling := spent(), 0, 0, uint64(0), time.Duration(0)
	for n := range blocks {
		block := Block{Token: "cost" + strconv.Itoa(n), Number: uint64(n + 1)}
		for had := 0; had < rows; {
			for _, m := range machines {
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
		if filled && (stored-unfilled >= 400_000 || n == blocks-1) {
			before := spent()
			if err := o.store.Fill(b.Context(), block.Token, uint64(max(0, n-(stored-unfilled)/rows)), uint64(n+1)); err != nil {
				b.Fatal(err)
			}
			filling += spent() - before
			unfilled = stored
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
	b.ReportMetric(float64(filling.Microseconds())/float64(stored), "filled-µs/row") // with the merges that ran meanwhile
	b.ReportMetric(float64((spent()-began).Microseconds())/float64(stored), "merged-µs/row")
}
