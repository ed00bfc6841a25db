package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// The key-value buckets.
const (
	BucketRules    = "LOWTIDE_RULES"
	BucketSilences = "LOWTIDE_SILENCES"
	BucketVerdicts = "LOWTIDE_VERDICTS" // worker → what a router should avoid; read-only advice
	BucketOutbox   = "LOWTIDE_OUTBOX"   // incident → where its message stands
)

const (
	publishedEvents   = "lowtide.event.*.*.*"
	publishedFindings = "lowtide.finding.*"
	bucketBytes       = 16 << 20
	ensureLimit       = 30 * time.Second
)

// VerdictTTL is how long a verdict stands that nobody renews: advice that is old is worse than none.
const VerdictTTL = 2 * time.Hour

// MaxVerdict bounds the value of one worker in BucketVerdicts, in bytes.
const MaxVerdict = 16 << 10

// Limits bound the streams. A field that is zero has its default.
type Limits struct {
	EventBytes   int64         // 1 GiB; the oldest events go first
	EventAge     time.Duration // 24 h
	FindingBytes int64         // a sixteenth of EventBytes, at least 16 MiB
	FindingAge   time.Duration // 30 days
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
	if l.Replicas == 0 {
		l.Replicas = 1
	}
	return l
}

// total is what a server must be allowed to store, so that every bound can be reached.
func (l Limits) total() int64 { return l.EventBytes + l.FindingBytes + 4*bucketBytes + 64<<20 }

// Ensure creates or updates the streams and buckets; running it again changes nothing. Publishers keep their subject; what is stored
// carries the partition that the server computed from cluster and host, so that one host stays in order on one partition.
func Ensure(ctx context.Context, js jetstream.JetStream, limits Limits) error {
	limits = limits.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, ensureLimit)
	defer cancel()
	if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
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
	if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:        event.StreamFindings,
		Description: "Transitions of incidents",
		Subjects:    []string{publishedFindings},
		Retention:   jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage, Compression: jetstream.S2Compression,
		MaxBytes: limits.FindingBytes, MaxAge: limits.FindingAge, MaxMsgSize: MaxPayload, Duplicates: time.Hour, Replicas: limits.Replicas,
	}); err != nil {
		return explain("create stream "+event.StreamFindings, err)
	}
	for _, bucket := range []jetstream.KeyValueConfig{
		{Bucket: BucketRules, Description: "Rule files by name", History: 8},
		{Bucket: BucketSilences, Description: "Silences by id", History: 1},
		{Bucket: BucketVerdicts, Description: "Worker to verdict", History: 1, TTL: VerdictTTL, MaxValueSize: MaxVerdict},
		{Bucket: BucketOutbox, Description: "Incident to message", History: 1},
	} {
		bucket.Storage, bucket.MaxBytes, bucket.Replicas = jetstream.FileStorage, bucketBytes, limits.Replicas
		if _, err := js.CreateOrUpdateKeyValue(ctx, bucket); err != nil {
			return explain("create bucket "+bucket.Bucket, err)
		}
	}
	return nil
}

// JudgeConsumer returns the durable consumer that applies the events of one partition, from the oldest that nobody acknowledged.
func JudgeConsumer(ctx context.Context, js jetstream.JetStream, partition int) (jetstream.Consumer, error) {
	return eventConsumer(ctx, js, "judge", partition)
}

// StoreConsumer returns the durable consumer that inserts the events of one partition. It is apart from the judge's, so that paging
// does not wait for ClickHouse.
func StoreConsumer(ctx context.Context, js jetstream.JetStream, partition int) (jetstream.Consumer, error) {
	return eventConsumer(ctx, js, "store", partition)
}

func eventConsumer(ctx context.Context, js jetstream.JetStream, role string, partition int) (jetstream.Consumer, error) {
	if partition < 0 || partition >= event.PartitionCount {
		return nil, errors.New("consume partition " + strconv.Itoa(partition) + ": there are 0 to " + strconv.Itoa(event.PartitionCount-1))
	}
	ctx, cancel := context.WithTimeout(ctx, ensureLimit)
	defer cancel()
	name := role + "-" + strconv.Itoa(partition)
	consumer, err := js.CreateOrUpdateConsumer(ctx, event.StreamEvents, jetstream.ConsumerConfig{
		Durable:       name,
		FilterSubject: "lowtide.p." + strconv.Itoa(partition) + ".>",
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckAllPolicy, // one acknowledgement for all before it: the only way to reach 92,000 msg/s
		AckWait:       2 * time.Minute,        // twice the 60 s between checkpoints
		MaxDeliver:    -1,
		MaxAckPending: 20000, // more than a partition gets between checkpoints, else the consumer stalls until the next one
	})
	if err != nil {
		return nil, explain("create consumer "+name, err)
	}
	return consumer, nil
}
