package broker

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The key-value buckets.
const (
	BucketRules    = "LOWTIDE_RULES"
	BucketSilences = "LOWTIDE_SILENCES"
	BucketActions  = "LOWTIDE_ACTIONS"  // incident → what people did about it
	BucketVerdicts = "LOWTIDE_VERDICTS" // worker → what a router should avoid; read-only advice
	BucketOutbox   = "LOWTIDE_OUTBOX"   // incident → where its message stands
	BucketMembers  = "LOWTIDE_MEMBERS"  // processor → its roles, while its heart beats
	BucketSeats    = "LOWTIDE_SEATS"    // role.seat → who has it
	BucketState    = "LOWTIDE_STATE"    // state.<partition> → blob, last sequence, fence
	BucketBlocks   = "LOWTIDE_BLOCKS"   // block.<seat> → the bounds of the block that is being stored
	BucketPeers    = "LOWTIDE_PEERS"    // partition → its share of the board
	ObjectsState   = "LOWTIDE_BLOBS"    // the object store of saved states
)

const bucketBytes = 16 << 20

// VerdictTTL is how long a verdict stands that nobody renews: advice that is old is worse than none.
const VerdictTTL = 2 * time.Hour

// MaxVerdict bounds the value of one worker in BucketVerdicts, in bytes.
const MaxVerdict = 16 << 10

// MaxSilence bounds one silence, and MaxActions what people did about one incident, in bytes.
const (
	MaxSilence = 16 << 10
	MaxActions = 320 << 10
)

// ActionBytes bounds BucketActions, in bytes.
const ActionBytes = bucketBytes

// MaxMember bounds what a processor says of itself in BucketMembers, and a lease in BucketSeats, in bytes.
const MaxMember = 4 << 10

// MemberTTL is after how long the last word of a processor that said no goodbye is swept away. Nobody is judged dead by it: that is
// seen from the silence, and much sooner.
const MemberTTL = 2 * time.Minute

// BlobTTL is how long a saved state is kept that nobody renews or deletes: one that was written by a processor that died before it
// could say so. It is long, because what a partition learned in weeks is worth more than its bytes.
const BlobTTL = 30 * 24 * time.Hour

func buckets() []jetstream.KeyValueConfig {
	return []jetstream.KeyValueConfig{
		{Bucket: BucketRules, Description: "The pushed rules, and what each processor made of them", History: 8, MaxBytes: bucketBytes},
		{Bucket: BucketSilences, Description: "Silences by id", History: 1, MaxBytes: bucketBytes, MaxValueSize: MaxSilence},
		// No end for these: what people said of verdicts is what rules are judged by. The notifier sweeps what nobody touched for long.
		{Bucket: BucketActions, Description: "Incident to what people did about it", History: 1, MaxBytes: ActionBytes, MaxValueSize: MaxActions},
		{Bucket: BucketVerdicts, Description: "Worker to verdict", History: 1, MaxBytes: bucketBytes, TTL: VerdictTTL, MaxValueSize: MaxVerdict},
		{Bucket: BucketOutbox, Description: "Incident to message", History: 1, MaxBytes: 4 * bucketBytes},
		{Bucket: BucketMembers, Description: "Processors whose hearts beat", History: 1, MaxBytes: 4 << 20, TTL: MemberTTL, MaxValueSize: MaxMember},
		// No end for these: a lease ends with its owner, and the bucket's revisions are the fences, which must only grow.
		{Bucket: BucketSeats, Description: "Seat to its owner", History: 1, MaxBytes: 4 << 20, MaxValueSize: MaxMember},
		{Bucket: BucketState, Description: "Partition to its saved state", History: 1, MaxBytes: bucketBytes},
		{Bucket: BucketBlocks, Description: "Seat of the store to the bounds of its block", History: 1, MaxBytes: 4 * bucketBytes},
		{Bucket: BucketPeers, Description: "Partition to its share of the board", History: 1, MaxBytes: 4 * bucketBytes},
	}
}

func ensureBuckets(ctx context.Context, js jetstream.JetStream, limits Limits) error {
	for _, bucket := range buckets() {
		bucket.Storage, bucket.Replicas = jetstream.FileStorage, limits.Replicas
		if err := persist(ctx, func(ctx context.Context) error {
			_, err := js.CreateOrUpdateKeyValue(ctx, bucket)
			return err
		}); err != nil {
			return explain("create bucket "+bucket.Bucket, err)
		}
	}
	states := jetstream.ObjectStoreConfig{
		Bucket: ObjectsState, Description: "Saved states of partitions", TTL: BlobTTL, MaxBytes: limits.StateBytes,
		Storage: jetstream.FileStorage, Compression: true, Replicas: limits.Replicas,
	}
	if err := persist(ctx, func(ctx context.Context) error {
		_, err := js.CreateOrUpdateObjectStore(ctx, states)
		return err
	}); err != nil {
		return explain("create object store "+ObjectsState, err)
	}
	return nil
}
