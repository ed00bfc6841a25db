package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

const (
	publishedEvents   = "lowtide.event.*.*.*"
	publishedFindings = "lowtide.finding.*"
	publishedShadows  = "lowtide.shadow.*" // of rules that are tried out: the store reads them, the notifier does not
	ensureLimit       = 30 * time.Second
	ensureAll         = 90 * time.Second // a cluster that has just come up takes its time over each of a dozen streams
)

// Limits bound the streams. A field that is zero has its default.
type Limits struct {
	EventBytes   int64         // 1 GiB; the oldest events go first
	EventAge     time.Duration // 24 h
	FindingBytes int64         // a sixteenth of EventBytes, at least 16 MiB
	FindingAge   time.Duration // 30 days
	StateBytes   int64         // a quarter of EventBytes, from 64 MiB to 4 GiB: the saved states, each of which is there twice while it is renewed
	Replicas     int           // 1
}

func (l Limits) withDefaults() Limits {
	if l.EventBytes == 0 {
		l.EventBytes = 1 << 30
	}
	if l.EventAge == 0 {
		l.EventAge = 24 * time.Hour
	}
	if l.FindingBytes == 0 {
		l.FindingBytes = max(l.EventBytes/16, 16<<20)
	}
	if l.FindingAge == 0 {
		l.FindingAge = 30 * 24 * time.Hour
	}
	if l.StateBytes == 0 {
		l.StateBytes = min(max(l.EventBytes/4, 64<<20), 4<<30)
	}
	if l.Replicas == 0 {
		l.Replicas = 1
	}
	return l
}

// total is what a server must be allowed to store, so that every bound can be reached.
func (l Limits) total() int64 {
	total := l.EventBytes + l.FindingBytes + l.StateBytes + 64<<20
	for _, bucket := range buckets() {
		total += bucket.MaxBytes
	}
	return total
}

// Ensure creates or updates the streams and buckets; running it again changes nothing. Publishers keep their subject; what is stored
// carries the partition that the server computed from cluster and host, so that one host stays in order on one partition.
func Ensure(ctx context.Context, js jetstream.JetStream, limits Limits) error {
	limits = limits.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, ensureAll)
	defer cancel()
	if err := ensureStream(ctx, js, jetstream.StreamConfig{
		Name:        event.StreamEvents,
		Description: "Batches of the collectors, by partition",
		Subjects:    []string{publishedEvents},
		SubjectTransform: &jetstream.SubjectTransformConfig{
			Source:      publishedEvents,
			Destination: fmt.Sprintf("lowtide.p.{{partition(%d,1,2)}}.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}", event.PartitionCount),
		},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage, Compression: jetstream.S2Compression,
		MaxBytes: limits.EventBytes, MaxAge: limits.EventAge, MaxMsgSize: MaxPayload, Duplicates: 2 * time.Minute, Replicas: limits.Replicas,
	}); err != nil {
		return explain("create stream "+event.StreamEvents, err)
	}
	// Old findings go first, although that can lose one: the alternative, refusing new ones, would hold back the page of today for
	// what the store already has.
	if err := ensureStream(ctx, js, jetstream.StreamConfig{
		Name:        event.StreamFindings,
		Description: "Transitions of incidents",
		Subjects:    []string{publishedFindings, publishedShadows},
		Retention:   jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage, Compression: jetstream.S2Compression,
		MaxBytes: limits.FindingBytes, MaxAge: limits.FindingAge, MaxMsgSize: MaxPayload, Duplicates: time.Hour, Replicas: limits.Replicas,
	}); err != nil {
		return explain("create stream "+event.StreamFindings, err)
	}
	return ensureBuckets(ctx, js, limits)
}

func ensureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) error {
	return persist(ctx, func(ctx context.Context) error {
		_, err := js.CreateOrUpdateStream(ctx, config)
		return err
	})
}
