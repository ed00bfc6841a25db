package fleet

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/bench"
)

// nowhere acknowledges everything.
type nowhere struct{}

func (nowhere) PublishMsg(context.Context, *nats.Msg, ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return &jetstream.PubAck{}, nil
}

// BenchmarkTick makes and hands over the ticks of 100 hosts of 8 workers: what a simulated fleet costs beside the client of the broker.
func BenchmarkTick(b *testing.B) {
	f, err := New(nowhere{}, Options{Hosts: 100, Workers: 8, Start: start})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	samples, n := 0, 0
	before, err := bench.OwnCPU()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		made, err := f.Tick(b.Context(), n%100)
		if err != nil {
			b.Fatal(err)
		}
		samples += made
		n++
	}
	if err := f.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	after, err := bench.OwnCPU()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric((after-before).Seconds()*1e6/float64(samples), "cpu-µs/worker-sample")
}
