// Package ownership decides which of several processors does what: heartbeats in one bucket say who lives, rendezvous hashing over the
// living says who should have a seat, and a lease in another bucket, taken by compare-and-set, says who has it. It never compares the
// clocks of two machines, and it refuses to trust itself: every work gets a fence, a number that grows with every change of its
// seat's owner, with which what the work writes can be refused when it comes too late.
package ownership

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// Work does what a seat is for until ctx ends, and then saves what it has to and returns; it has seven seconds for that before somebody
// else begins. When the broker is not reached (ErrSilent) it has a second and a half. An error that is ErrLost says that the seat has another owner,
// and the seat is tried again later, with a higher fence; any other error, while ctx goes on, ends Run. Fences are revisions of the
// bucket LOWTIDE_SEATS: whoever deletes that bucket has to delete what was written with fences from it.
type Work func(ctx context.Context, seat int, fence uint64) error

// Role is a kind of work with its seats, each of which one processor has at a time. Name is a word of letters, digits and hyphens.
type Role struct {
	Name  string
	Seats int
	Work  Work
}

var (
	// ErrLost says that a seat is not ours any more. A work that finds a higher fence than its own returns an error that wraps it, such
	// as one made by fmt.Errorf("state has a newer owner: %w", ownership.ErrLost).
	ErrLost = errors.New("seat has another owner")

	// ErrSilent is the cause (context.Cause) for which works end while the broker is not reached: nothing can be saved there then.
	ErrSilent = errors.New("the broker took no heartbeat for too long")

	// ErrTaken says that another living processor has the same name.
	ErrTaken = errors.New("another processor has this name")
)

// Options of Run. JS is required.
type Options struct {
	JS      jetstream.JetStream
	Member  string // name of this processor, unique among the living: letters, digits, hyphens, underscores; drawn when empty
	Version string // told to the others
	Alone   bool   // the broker is our own: who else left traces there is dead, and seats are taken at once
	Log     *slog.Logger
	Metrics *Metrics // nil: not counted

	pace pace // zero: paceOfProduction
	wall func() time.Time
}

// pace has the times of the protocol. Each is measured on one machine's monotonic clock.
type pace struct {
	beat     time.Duration // between two heartbeats
	letGo    time.Duration // after the last heartbeat that the broker took, works are told to stop …
	expiry   time.Duration // … before others, who saw it no earlier, may take the seats
	settle   time.Duration // from the first heartbeat to the first seat, so that processors that start together share at once
	handover time.Duration // what a work has for its end before its seat is given away all the same
	reread   time.Duration // how often the buckets are read as a whole, should a watcher have gone silent
	retry    time.Duration // before a seat is tried again whose work lost it; doubled up to eight times
	request  time.Duration // what one request may take
}

// One beat a second lets the broker stall for three and a half seconds, such as in a slow fsync, before works stop; six seconds of
// silence and the restoring of state are under the ten that a take-over may last.
var paceOfProduction = pace{
	beat: time.Second, letGo: 4500 * time.Millisecond, expiry: 6 * time.Second, settle: time.Second,
	handover: 7 * time.Second, reread: 30 * time.Second, retry: time.Second, request: 2 * time.Second,
}

// Run does the work of the seats that fall to this processor until ctx ends: then works are ended, seats given back and the others
// told, and it returns nil. It returns the first error of a work that is neither of ctx nor ErrLost, and an error that is ErrTaken when
// another living processor has the same name. It returns only after every work has. While the broker is away nothing is worked at, and
// it waits.
func Run(ctx context.Context, o Options, roles ...Role) error {
	o, err := o.complete(roles)
	if err != nil {
		return err
	}
	members, err := bucket(ctx, o, broker.BucketMembers)
	if err != nil {
		return err
	}
	leases, err := bucket(ctx, o, broker.BucketSeats)
	if err != nil {
		return err
	}
	clock := monotonic()
	v := newView(o, clock, roles)
	h := newHeart(o, clock, members, v, roles)

	asked := ctx
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// What keeps a seat ours goes on until the last one is given back.
	behind, rest := context.WithCancel(context.WithoutCancel(ctx))
	defer rest()
	var keeping, working, given sync.WaitGroup
	var kept atomic.Int32
	if err := h.join(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	keeping.Go(func() {
		if err := h.run(behind); err != nil {
			stop(err)
		}
	})
	keeping.Go(func() { v.run(behind, members, leases) })
	for _, role := range roles {
		for number := range role.Seats {
			s := newSeat(o, clock, role, number, h, v, leases)
			given.Add(1)
			working.Go(func() {
				if err := s.run(ctx, func(ok bool) {
					if !ok {
						kept.Add(1)
					}
					given.Done()
				}); err != nil {
					stop(err)
				}
			})
		}
	}
	<-ctx.Done()
	h.leave()
	given.Wait()
	rest()
	keeping.Wait()
	if n := kept.Load(); n > 0 {
		o.Log.Warn("seats were not given back; others take them after a silence", "seats", n, "silence", o.pace.expiry)
	}
	h.goodbye()
	working.Wait()
	if asked.Err() != nil {
		return nil
	}
	return context.Cause(ctx) // it may be like that of a context, as when a work's request took too long
}

func (o Options) complete(roles []Role) (Options, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Member == "" {
		o.Member = strings.ToLower(rand.Text()[:12])
	}
	if !isName(o.Member) {
		return o, fmt.Errorf("name of processor %q: use 1 to %d letters, digits, hyphens and underscores", o.Member, maxName)
	}
	if len(roles) == 0 || len(roles) > maxRoles {
		return o, fmt.Errorf("run seats: %d roles, there can be 1 to %d", len(roles), maxRoles)
	}
	seen := make(map[string]bool)
	for _, r := range roles {
		if !isName(r.Name) || seen[r.Name] || r.Seats < 1 || r.Seats > maxSeats || r.Work == nil {
			return o, fmt.Errorf("run seats: role %q with %d seats: a name once, 1 to %d seats and their work are needed", r.Name, r.Seats, maxSeats)
		}
		seen[r.Name] = true
	}
	if o.pace == (pace{}) {
		o.pace = paceOfProduction
	}
	if o.wall == nil {
		o.wall = time.Now
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	for _, r := range roles {
		o.Metrics.begin(r.Name)
	}
	o.Log = o.Log.With("member", o.Member)
	return o, nil
}

func bucket(ctx context.Context, o Options, name string) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*o.pace.request)
	defer cancel()
	kv, err := o.JS.KeyValue(ctx, name)
	if err != nil {
		return nil, broker.Explain("open bucket "+name, err)
	}
	return kv, nil
}

// monotonic returns a clock that only runs on, whatever is done to the machine's time.
func monotonic() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}
