package notifier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// The outbox is swept while the notifier runs: a bucket that is full refuses what is new, and people would hear of nothing more. What is
// over and told goes after keepFor; when the bucket fills, the oldest of it goes at once, until the bucket is half empty. What is open,
// or has still to be told, stays.
const (
	sweepEvery = time.Hour
	sweepAgain = time.Minute     // least time between two sweeps of a bucket that refuses
	sweepMost  = 1000            // records that one sweep removes; the next one goes on
	unkeptFor  = 5 * time.Minute // after which a finding that was refused and never came again is no longer counted
	unkeptMost = 1024            // incidents whose findings are refused that are remembered
)

// errCodeFull is what the broker answers when a bucket has no room.
const errCodeFull jetstream.ErrorCode = 10077

func noRoom(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == errCodeFull
}

// refusal is a finding that the outbox could not keep.
type refusal struct {
	since, last time.Time
	err         error
}

// kept notes whether the finding of an incident could be kept.
func (d *desk) kept(incident string, err error) {
	key := keyOf(incident)
	if err == nil {
		delete(d.unkept, key)
		return
	}
	d.full = d.full || noRoom(err)
	one, known := d.unkept[key]
	if !known && len(d.unkept) >= unkeptMost {
		return
	}
	if !known {
		one.since = d.o.Now()
	}
	one.last, one.err = d.o.Now(), err
	d.unkept[key] = one
}

// failing returns since when findings cannot be kept, by the desk's clock, how many incidents they are of, and why; zero when all are kept.
func (d *desk) failing() (since time.Time, incidents int, err error) {
	for key, one := range d.unkept {
		if d.o.Now().Sub(one.last) > unkeptFor {
			delete(d.unkept, key)
			continue
		}
		incidents++
		if since.IsZero() || one.since.Before(since) {
			since, err = one.since, one.err
		}
	}
	return since, incidents, err
}

// sweep makes room in the outbox when that is due, and returns how long until it is due again.
func (d *desk) sweep(ctx context.Context) time.Duration {
	now := d.o.Now()
	due := d.sweepAt
	if again := d.swept.Add(sweepAgain); d.full && again.Before(due) {
		due = again
	}
	if left := due.Sub(now); left > 0 {
		return left
	}
	call, cancel := d.call(ctx)
	defer cancel()
	n, err := d.clear(call)
	if n > 0 {
		d.o.Log.Info("forgot incidents that are over", "incidents", n)
	}
	wait := sweepEvery
	switch {
	case err != nil:
		d.o.Log.Warn("sweep the outbox", "error", err)
		wait = sweepAgain
	case d.full && n == 0:
		d.o.Log.Error("the outbox is full of incidents that are open or untold: people are not told of new ones", "bucket", Bucket)
		wait = sweepAgain
	case n >= sweepMost:
		wait = d.o.Backoff
	default:
		d.full = false
	}
	d.swept, d.sweepAt = now, now.Add(wait)
	return wait
}

// passed is a record that may go.
type passed struct {
	key      string
	revision uint64
	bytes    int
	at       time.Time
}

// clear removes what is over, and says how many records it were. Homes that still name what has a card of its own are told that it left.
func (d *desk) clear(ctx context.Context) (removed int, err error) {
	status, err := d.box.kv.Status(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for the size of bucket %s: %w", Bucket, err)
	}
	limit, size := int64(0), int64(status.Bytes())
	if s, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		limit = s.Config().MaxBytes
	}
	var over []passed
	alone := map[string]bool{} // incidents with a message of their own
	var homes []string
	if err := d.box.all(ctx, func(r *record, err error) {
		if err != nil {
			return // said when the notifier started
		}
		id := r.history.Latest.Incident
		if r.storm == "" && !r.digest() && r.toldOf() {
			alone[id] = true
		}
		face := r.face()
		switch {
		case face.State != event.Resolved:
			if len(r.members) > 0 {
				homes = append(homes, id)
			}
		case d.pending[keyOf(id)] != nil, d.storms[r.routed()] == id, d.due(r):
		case d.o.Now().Sub(face.Time) <= keepFor && len(d.o.silences.Covering(face, d.o.Now())) > 0: // it may be told when the silence ends
		default:
			over = append(over, passed{keyOf(id), r.revision, r.size, face.Time})
		}
	}); err != nil {
		return 0, err
	}
	for _, id := range homes {
		if err := d.dismiss(ctx, id, alone); err != nil {
			return 0, err
		}
	}
	slices.SortFunc(over, func(a, b passed) int { return a.at.Compare(b.at) })
	crowded := limit > 0 && (d.full || size >= limit/4*3)
	for _, one := range over {
		if removed >= sweepMost || d.o.Now().Sub(one.at) <= keepFor && !(crowded && size > limit/2) {
			break
		}
		err := d.box.kv.Delete(ctx, one.key, jetstream.LastRevision(one.revision))
		switch {
		case errors.Is(err, jetstream.ErrKeyExists): // it was written meanwhile, so it lives on
			continue
		case err != nil:
			return removed, fmt.Errorf("remove outbox record %q: %w", one.key, err)
		}
		size -= int64(one.bytes)
		removed++
	}
	if removed > 0 { // the marks of what was removed fill the bucket too
		if err := d.box.kv.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(-1)); err != nil {
			return removed, fmt.Errorf("clear bucket %s: %w", Bucket, err)
		}
	}
	return removed, nil
}

// toldOf says that a message of its own tells about the record.
func (r *record) toldOf() bool {
	for _, delivery := range r.deliveries {
		if delivery.Status == told {
			return true
		}
	}
	return false
}

// dismiss takes those that have a message of their own out of what a home tells about, which a crash may have left there.
func (d *desk) dismiss(ctx context.Context, id string, alone map[string]bool) error {
	e, err := d.home(ctx, id)
	if err != nil || e == nil {
		return err
	}
	for incident := range e.record.members {
		if alone[incident] {
			if err := d.leave(ctx, e, incident); err != nil {
				return err
			}
		}
	}
	return nil
}
