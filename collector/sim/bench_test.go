package sim

import (
	"testing"

	"lowtide/event"
)

// A worker-tick is one tick of one worker, about five events.
func BenchmarkPlay(b *testing.B) {
	b.ReportAllocs()
	ticks := 0
	for seed := uint64(1); b.Loop(); seed++ {
		if _, err := Play(Scenario{Name: "healthy-busy"}, seed, 0, 0, func(e *event.Event) error {
			if e.Process != nil {
				ticks++
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(ticks)/b.Elapsed().Seconds(), "worker-ticks/s")
}
