package processor

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

// BenchmarkReading is what a message costs in processor time, server and client together, from its publisher to the partition that would judge it,
// which only counts it: 64 partitions, 2,000 messages a second as they come. nobody is publishing alone; durables is how judges read before,
// by a durable consumer for each partition. Compare within one run.
func BenchmarkReading(b *testing.B) {
	for _, size := range []int{2 << 10, 8 << 10} {
		for _, way := range []struct {
			name string
			read func(b *testing.B, ctx context.Context, js jetstream.JetStream, partitions int, here, count func())
			some int
		}{{"nobody", nil, 0}, {"feed", readByFeed, event.PartitionCount}, {"third", readByFeed, event.PartitionCount / 3}, {"durables", readByDurables, event.PartitionCount}} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, way.name), func(b *testing.B) {
				server, _, js := brokertest.Start(b)
				conn, err := server.Connect()
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				reads, err := jetstream.New(conn)
				if err != nil {
					b.Fatal(err)
				}
				ctx, stop := context.WithCancel(b.Context())
				var here, got atomic.Int64
				var reading sync.WaitGroup
				defer reading.Wait()
				defer stop()
				if way.read != nil {
					reading.Go(func() { way.read(b, ctx, reads, way.some, func() { here.Add(1) }, func() { got.Add(1) }) })
				}
				hosts := make([]*event.Host, 4*event.PartitionCount)
				for i := range hosts {
					hosts[i] = hostOn(i%event.PartitionCount, "h"+strconv.Itoa(i))
				}
				draw := rand.New(rand.NewPCG(1, uint64(size)))
				wire := make([]byte, size)
				for i := range wire[:size/3] {
					wire[i] = byte(draw.Uint32())
				}
				want := int64(0)
				send := func(host int) {
					if host%event.PartitionCount < way.some {
						want++
					}
					if _, err := js.PublishAsync(event.SubjectFor(hosts[host].Cluster, hosts[host].Name, "x"), wire, jetstream.WithStallWait(20*time.Second)); err != nil {
						b.Fatal(err)
					}
				}
				until(b, "all read", func() bool { return here.Load() == int64(way.some) })
				pace := time.NewTicker(10 * time.Millisecond)
				defer pace.Stop()
				used := processorTime(b)
				b.ResetTimer()
				for n := range b.N {
					if n%20 == 19 {
						<-pace.C
					}
					send(draw.IntN(len(hosts)))
				}
				<-js.PublishAsyncComplete()
				until(b, "all arrive", func() bool { return got.Load() >= want })
				b.ReportMetric(float64(processorTime(b)-used)/float64(b.N)/1000, "µs-cpu/message")
			})
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func readByFeed(_ *testing.B, ctx context.Context, js jetstream.JetStream, partitions int, here, count func()) {
	f := newFeed(js, slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	defer all.Wait()
	for number := range partitions {
		q := f.join(number)
		all.Go(func() {
			for first := true; ; first = false {
				select {
				case <-q.ready:
				case <-ctx.Done():
					return
				}
				if first {
					here()
				}
				letters, _ := f.take(q)
				for range letters {
					count()
				}
			}
		})
	}
	f.run(ctx)
}

func readByDurables(b *testing.B, ctx context.Context, js jetstream.JetStream, partitions int, here, count func()) {
	var all sync.WaitGroup
	defer all.Wait()
	for number := range partitions {
		c, err := broker.JudgeConsumer(ctx, js, number)
		if err != nil {
			b.Error(err)
			return
		}
		here()
		all.Go(func() {
			for ctx.Err() == nil {
				batch, err := c.Fetch(pull, jetstream.FetchMaxWait(pullWait))
				if err != nil {
					return
				}
				for m := range batch.Messages() {
					if _, err := m.Metadata(); err == nil {
						count()
					}
				}
			}
		})
	}
}
