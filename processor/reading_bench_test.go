package processor

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// BenchmarkPartition is the way of a message from the stream through the loop of one partition: pulled, decoded, judged, with checkpoints
// every second. What is judged is small, so that it is the loop's own cost.
func BenchmarkPartition(b *testing.B) {
	const messages = 20_000
	_, _, js := brokertest.Start(b)
	host := hostOn(testPartition, "bench")
	var last uint64
	for n := range messages {
		wire, err := event.EncodeBatch(&event.Batch{Host: host, Source: "x", Producer: "p", Lane: event.LaneSamples, Sequence: uint64(n + 1),
			Events: []*event.Event{{Time: timestamppb.New(time.Unix(1_790_000_000+int64(n), 0)), Source: &event.SourceStatus{Name: "nvml", Status: "ok"}}}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := js.PublishAsync(event.SubjectFor(host.Cluster, host.Name, "x"), wire); err != nil {
			b.Fatal(err)
		}
		last++
	}
	<-js.PublishAsyncComplete()
	fence := uint64(0)
	for b.Loop() {
		fence++
		b.StopTimer()
		for _, key := range []string{stateKey(testPartition)} { // from the beginning
			kv, err := js.KeyValue(b.Context(), "LOWTIDE_STATE")
			if err != nil {
				b.Fatal(err)
			}
			if err := kv.Purge(b.Context(), key); err != nil {
				b.Fatal(err)
			}
		}
		if err := js.DeleteConsumer(b.Context(), event.StreamEvents, fmt.Sprint("judge-", testPartition)); err != nil && fence > 1 && err != jetstream.ErrConsumerNotFound {
			b.Fatal(err)
		}
		all := judges(b, js)
		all.pace = usual()
		all.pace.save, all.pace.beat = time.Second, 10*time.Millisecond
		b.StartTimer()
		w := begin(b, all, testPartition, fence)
		w.applied(testPartition, last)
		w.close()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*messages), "ns/message")
}
