package ownership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// seat is the life of one seat in this processor: waiting for it to fall to us, having it, giving it back.
type seat struct {
	role    Role
	number  int
	name    string
	session string
	pace    pace
	clock   func() time.Duration
	wall    func() time.Time
	log     *slog.Logger
	metrics *Metrics
	heart   *heart
	view    *view
	place   *place
	key     string
	kv      jetstream.KeyValue
	retry   time.Duration
}

// errMoved is a reason for which a work is ended, beside ErrLost, ErrSilent and that Run ends; errHeld one for which none begins.
var (
	errMoved = errors.New("seat moves to another processor")
	errHeld  = errors.New("seat is held")
)

func newSeat(o Options, clock func() time.Duration, role Role, number int, h *heart, v *view, kv jetstream.KeyValue) *seat {
	key := seatKey(role.Name, number)
	return &seat{
		role: role, number: number, name: o.Member, session: v.session, pace: o.pace, clock: clock, wall: o.wall, log: o.Log.With("role", role.Name, "seat", number),
		metrics: o.Metrics, heart: h, view: v, place: v.place(key), key: key, kv: kv, retry: o.pace.retry,
	}
}

// run returns when ctx ends, or with the error of a work that ends all. It calls given once, when the seat is given back or could not be,
// which may be before it returns.
func (s *seat) run(ctx context.Context, given func(ok bool)) error {
	var once sync.Once
	gave := func(ok bool) { once.Do(func() { given(ok) }) }
	defer gave(true)
	shortest := s.pace.beat / 4
	for pause := shortest; ; pause = min(2*pause, 2*s.pace.beat) {
		life := s.heart.alive()
		switch ours := s.view.ours(s.place); {
		case life == nil:
			pause = shortest
		case ours:
			fence, err := s.take(ctx)
			if err == nil {
				if err := s.have(ctx, life, fence, gave); err != nil {
					return err
				}
				pause = shortest
			} else if !errors.Is(err, errHeld) && ctx.Err() == nil {
				s.log.Warn("cannot take a seat, trying again", "error", err)
			}
		default:
			if revision := s.view.stray(s.place); revision != 0 {
				s.giveBack(revision) // an answer got lost, or a request came late: it says that we have what we have not
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.place.poke:
			timer.Stop()
			pause = shortest
		case <-timer.C:
		}
	}
}

// take makes the lease ours and returns its revision. Whoever else has it and lives makes it errHeld.
func (s *seat) take(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.pace.request)
	defer cancel()
	text, err := encode(lease{Member: s.name, Session: s.session, Since: s.wall().UTC()})
	if err != nil {
		return 0, fmt.Errorf("write lease %s: %w", s.key, err)
	}
	entry, err := s.kv.Get(ctx, s.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		revision, err := s.kv.Create(ctx, s.key, text)
		return revision, s.won(err)
	}
	if err != nil {
		return 0, broker.Explain("read lease "+s.key, err)
	}
	before, err := decodeLease(entry.Value())
	if err != nil {
		s.log.Warn("a lease that nobody can have written is replaced", "error", err)
	} else if s.view.holds(before) {
		return 0, errHeld
	}
	revision, err := s.kv.Update(ctx, s.key, text, entry.Revision())
	if err = s.won(err); err == nil && before.Member != "" && before.Member != s.name {
		s.metrics.takenOver(s.role.Name)
		s.log.Debug("seat taken over", "from", before.Member, "fence", revision)
	}
	return revision, err
}

// won tells a race that was lost from a broker that does not answer.
func (s *seat) won(err error) error {
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return errHeld
	}
	return broker.Explain("take lease "+s.key, err)
}

// have works until the seat goes elsewhere, life or ctx ends. Its error is one that ends Run.
func (s *seat) have(ctx, life context.Context, fence uint64, gave func(ok bool)) error {
	work, stop := context.WithCancelCause(life)
	defer stop(nil)
	s.log.Debug("seat taken", "fence", fence)
	s.metrics.hold(s.role.Name, 1)
	defer s.metrics.hold(s.role.Name, -1)
	began, done := s.clock(), make(chan error, 1)
	go func() { done <- s.role.Work(work, s.number, fence) }()
	for {
		select {
		case err := <-done:
			if work.Err() != nil {
				s.ended(err)
				return nil // the broker is away, and so would be the lease
			}
			s.giveBack(fence)
			return s.gaveUp(ctx, err, s.clock()-began)
		case <-life.Done():
			s.end(done, func() {}) // what is ours in the bucket others take, or we again
			return nil
		case <-ctx.Done():
			stop(context.Cause(ctx))
			s.end(done, func() { gave(s.release(fence) == nil) })
			return nil
		case <-s.place.poke:
		}
		switch {
		case s.view.taken(s.place, fence):
			s.metrics.lose(s.role.Name)
			s.log.Warn("seat was taken while it was ours", "fence", fence)
			stop(ErrLost)
			s.end(done, func() {})
			return nil
		case !s.view.ours(s.place):
			stop(errMoved)
			s.end(done, func() { s.giveBack(fence) })
			return nil
		}
	}
}

// end waits for a work that was told to end. The seat is given away when it did, or has taken too long: then its fence keeps it from
// doing harm.
func (s *seat) end(done <-chan error, give func()) {
	timer := time.NewTimer(s.pace.handover)
	defer timer.Stop()
	select {
	case err := <-done:
		s.ended(err)
		give()
	case <-timer.C:
		s.log.Error("work does not end; its seat is given away all the same", "limit", s.pace.handover)
		give()
		s.ended(<-done)
	}
}

// ended tells of a work that could not end well. No reason to end the others.
func (s *seat) ended(err error) {
	for _, expected := range []error{nil, context.Canceled, ErrLost, errMoved, ErrSilent} {
		if errors.Is(err, expected) {
			return
		}
	}
	s.log.Warn("work ended with an error", "error", err)
}

// gaveUp is about a work that ended by itself.
func (s *seat) gaveUp(ctx context.Context, err error, lasted time.Duration) error {
	switch {
	case err == nil:
		s.log.Warn("work ended by itself, trying it again", "after", s.retry)
	case errors.Is(err, ErrLost):
		s.metrics.lose(s.role.Name)
		s.log.Warn("seat was lost, trying it again", "error", err, "after", s.retry)
	default:
		return fmt.Errorf("%s %d: %w", s.role.Name, s.number, err)
	}
	if lasted > 8*s.pace.retry {
		s.retry = s.pace.retry
	}
	broker.Wait(ctx, s.retry)
	s.retry = min(2*s.retry, 8*s.pace.retry)
	return nil
}

// release gives a lease back, if it is still the one of that revision. When that fails it ends with our heartbeat.
func (s *seat) release(revision uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.pace.request)
	defer cancel()
	err := s.kv.Delete(ctx, s.key, jetstream.LastRevision(revision))
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return nil
	}
	return err
}

func (s *seat) giveBack(revision uint64) {
	if err := s.release(revision); err != nil {
		s.log.Warn("seat was not given back, trying again", "error", err)
	}
}
