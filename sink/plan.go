package sink

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/ownership"
)

var (
	// ErrFenced says that somebody else stores this seat by now, or did with a higher fence. Nothing was planned or acknowledged.
	ErrFenced = fmt.Errorf("another processor stores this seat: %w", ownership.ErrLost)
	// ErrPlan says that the entry of a seat in the broker cannot be read.
	ErrPlan = errors.New("plan of a block cannot be read")
)

// Limits of a plan that is read back.
const (
	planVersion = 1
	maxPlan     = 1 << 20 // bytes
	maxReason   = 300     // bytes of the store's reason
	maxSplits   = 256     // pieces that a refused block is taken apart into, for each table
	brokerLimit = 10 * time.Second
)

// plan is what the broker keeps of a seat: up to where all is stored, and the bounds of the block that is being stored. It is written before
// the first row is inserted, so that after a crash the same block is built again and carries the same token.
type plan struct {
	Version int     `json:"version"`
	Stream  string  `json:"stream"` // its name and when it was made: a stream made anew counts from 1 again
	Fence   uint64  `json:"fence"`
	Owner   string  `json:"owner"`           // drawn at each start
	Epoch   int     `json:"epoch,omitempty"` // how often the stream lost its tail and gave sequences out again
	Stored  uint64  `json:"stored"`          // sequence: this seat's messages up to here are in the store
	Block   *bounds `json:"block,omitempty"`

	Number   uint64 `json:"number,omitempty"`   // of the newest block
	Filled   uint64 `json:"filled,omitempty"`   // the rollups have all blocks up to this number
	Unfilled []step `json:"unfilled,omitempty"` // and these not, in their order, the planned block among them
}

// bounds say which messages of the stream make a block.
type bounds struct {
	First  uint64   `json:"first"` // sequences
	Last   uint64   `json:"last"`
	Number uint64   `json:"number,omitempty"` // that its rows carry
	Count  int      `json:"count"`            // messages
	Events int      `json:"events,omitempty"` // in them
	Sum    uint64   `json:"sum"`              // of their sequences
	Again  []uint64 `json:"again,omitempty"`  // sequences between that were published before and stand in an earlier block
	Pieces []piece  `json:"pieces,omitempty"` // that the store refused as a whole, in the order in which they were tried
}

// piece is a run of rows of one table, from one row up to but without another.
type piece struct {
	Table  string `json:"table"`
	From   int    `json:"from"`
	To     int    `json:"to"`
	Reason string `json:"reason,omitempty"` // of a single row, which is kept with it
}

// sumOf is a checksum over sequences in their order (FNV-1a, by whole numbers).
func sumOf(sum, sequence uint64) uint64 {
	if sum == 0 {
		sum = 14695981039346656037
	}
	return (sum ^ sequence) * 1099511628211
}

// decodePlan reads an entry; what it returns holds together.
func decodePlan(text []byte) (plan, error) {
	if len(text) > maxPlan {
		return plan{}, fmt.Errorf("%w: %d bytes, the limit is %d", ErrPlan, len(text), maxPlan)
	}
	var p plan
	if err := json.Unmarshal(text, &p); err != nil {
		return plan{}, fmt.Errorf("%w: %w", ErrPlan, err)
	}
	if p.Version != planVersion {
		return plan{}, fmt.Errorf("%w: version %d, this program reads %d", ErrPlan, p.Version, planVersion)
	}
	before := p.Filled
	for _, one := range p.Unfilled {
		if one.To <= before || one.To > p.Number || one.Events < 0 || len(p.Unfilled) > maxSteps {
			return plan{}, fmt.Errorf("%w: rollups lack %d steps, one up to block %d after %d, the newest is %d", ErrPlan, len(p.Unfilled), one.To, before, p.Number)
		}
		before = one.To
	}
	b := p.Block
	if b == nil {
		return p, nil
	}
	switch {
	case b.First <= p.Stored || b.Last < b.First:
		return plan{}, fmt.Errorf("%w: block %d-%d after %d", ErrPlan, b.First, b.Last, p.Stored)
	case b.Count <= 0 || b.Count > blockMessages || uint64(b.Count) > b.Last-b.First+1:
		return plan{}, fmt.Errorf("%w: %d messages in %d-%d", ErrPlan, b.Count, b.First, b.Last)
	case len(b.Again) > blockMessages || !slices.IsSorted(b.Again) || len(b.Again) > 0 && (b.Again[0] < b.First || b.Again[len(b.Again)-1] > b.Last):
		return plan{}, fmt.Errorf("%w: sequences published before are not within %d-%d", ErrPlan, b.First, b.Last)
	case len(b.Pieces) > 6*maxSplits:
		return plan{}, fmt.Errorf("%w: %d pieces", ErrPlan, len(b.Pieces))
	}
	for _, one := range b.Pieces {
		if one.From < 0 || one.To <= one.From || one.Table == "" {
			return plan{}, fmt.Errorf("%w: piece %d-%d of table %q", ErrPlan, one.From, one.To, one.Table)
		}
	}
	return p, nil
}

// ledger is the plan of one seat as the broker has it. Each write names the revision that it follows, so that of two who think the seat is
// theirs only one goes on.
type ledger struct {
	bucket    jetstream.KeyValue
	key       string
	plan      plan
	revision  uint64
	confirmed time.Time // when the broker last said that the entry is ours
	now       func() time.Time
}

// openLedger takes the entry of a seat over. A fence of 0 means that no one hands fences out: it follows the one before. begin is
// where a seat without an entry begins: all before it is stored.
func openLedger(ctx context.Context, bucket jetstream.KeyValue, key, stream string, fence uint64, begin func() (uint64, error), now func() time.Time) (*ledger, error) {
	var draw [8]byte
	rand.Read(draw[:]) // never fails, by its contract
	l := &ledger{bucket: bucket, key: key, now: now}
	for attempt := 0; ; attempt++ {
		before, revision, err := readPlan(ctx, bucket, key)
		if err != nil {
			return nil, err
		}
		if before.Stream != stream {
			before = plan{Number: before.Number, Filled: before.Filled, Unfilled: before.Unfilled} // what is stored stays
			if before.Stored, err = begin(); err != nil {
				return nil, err
			}
		}
		if fence != 0 && before.Fence > fence {
			return nil, fmt.Errorf("%w: fence %d, ours is %d", ErrFenced, before.Fence, fence)
		}
		next := before
		next.Version, next.Stream, next.Fence, next.Owner = planVersion, stream, fence, hex.EncodeToString(draw[:])
		if fence == 0 {
			next.Fence = before.Fence + 1
		}
		l.revision = revision
		err = l.write(ctx, next)
		// A reader behind the leader gives an old revision; that is no rival yet.
		if errors.Is(err, ErrFenced) && attempt < 5 {
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return nil, err
			}
			continue
		}
		return l, err
	}
}

func readPlan(ctx context.Context, bucket jetstream.KeyValue, key string) (plan, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerLimit)
	defer cancel()
	entry, err := bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return plan{}, 0, nil
	}
	if err != nil {
		return plan{}, 0, fmt.Errorf("read %s: %w", key, err)
	}
	p, err := decodePlan(entry.Value())
	if err != nil {
		return plan{}, 0, fmt.Errorf("read %s: %w\nhint: it was written by another version, which must run until its block is stored", key, err)
	}
	return p, entry.Revision(), nil
}

// write makes p the entry. ErrFenced means that somebody else wrote since.
func (l *ledger) write(ctx context.Context, p plan) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write %s: %w", l.key, err)
	}
	revision, err := put(ctx, l.bucket, l.key, text, l.revision)
	if err != nil {
		return err
	}
	l.plan, l.revision, l.confirmed = p, revision, l.now()
	return nil
}

// confirm asks the broker whether the entry is still ours, when it last said so a while ago: who was stopped for long must not go on
// inserting what somebody else stored and the tables' memory of tokens may have forgotten.
func (l *ledger) confirm(ctx context.Context) error {
	if l.now().Sub(l.confirmed) < confirmEvery {
		return nil
	}
	return l.write(ctx, l.plan)
}

// put writes a value that follows a revision, 0 meaning none. A write whose answer was lost may have happened: then the value is there.
func put(ctx context.Context, bucket jetstream.KeyValue, key string, value []byte, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerLimit)
	defer cancel()
	next, err := bucket.Update(ctx, key, value, revision)
	if err == nil {
		return next, nil
	}
	var api *jetstream.APIError
	if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return 0, fmt.Errorf("write %s after revision %s: %w", key, strconv.FormatUint(revision, 10), ErrFenced)
	}
	return 0, fmt.Errorf("write %s: %w", key, err)
}

// pause waits, or returns the error of the context that ended first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
