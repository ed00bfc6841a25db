package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

const (
	retryFirst   = 250 * time.Millisecond
	retryMost    = 15 * time.Second
	retryAfter   = time.Second      // when the broker failed
	stalledAfter = 6                // silences of idleAfter, while the broker says that something waits
	idleAfter    = 5 * time.Second  // without a message, until it is written down that the last block is stored
	marksEvery   = 30 * time.Second // what came since is read again at a start
	confirmEvery = 20 * time.Second
	advanceEvery = 10 * time.Minute
	partingLimit = 5 * time.Second // for the last words of a seat that is given up
)

var (
	errStalled = errors.New("the broker says that messages wait and gives none; the reader is made anew")
	// A stream that lost its tail gives the same sequences out again.
	errRewound = errors.New("the stream ends before what is stored of it")
	errOther   = errors.New("the planned block has other messages by now")
)

// run stores one seat. Whatever fails, the broker's entry is read again and says where to go on, so that there is one way to recover.
type run struct {
	owner    *Storer
	store    Store
	log      *slog.Logger
	number   int
	fence    uint64
	source   source
	bucket   jetstream.KeyValue
	ledger   *ledger
	book     markBook
	marks    *marks
	ahead    bool       // the marks know messages that are not stored: they must not be saved
	saved    time.Time  // when the marks were
	stored   uint64     // ledger.plan.Stored, or the last of its block once that is in
	waiting  []Message  // of the block that is being stored: memory is kept from one to the next
	advanced time.Time  // when the entry of an idle seat was last written
	fillAt   time.Time  // when the rollups are to be filled next
	filling  chan error // where the end of the step that is being filled is told; nil when none is
	fillTold bool       // that they are not
	gauge    *gauge
}

func newRun(s *Storer, seat int, fence uint64) *run {
	r := &run{owner: s, store: s.store, log: s.log.With("seat", seatName(seat)), number: seat, fence: fence, source: newSource(s.js, seat, s.shelf)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seats[seat] == nil {
		s.seats[seat] = &gauge{}
	}
	r.gauge = s.seats[seat]
	return r
}

// serve takes the seat's entry over, finishes the block that was planned, and goes on from there until ctx ends or something fails.
func (r *run) serve(ctx context.Context) (ended error) {
	if err := r.open(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx) // also of the step that is being filled, which parting waits for
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.watch(ctx)
	}()
	defer func() {
		stop()
		<-watched
		r.part(ended)
	}()
	if err := r.recover(ctx); err != nil {
		return err
	}
	r.fillAt = time.Time{} // what another one left
	if err := r.fill(ctx); err != nil {
		return err
	}
	if r.filling == nil {
		r.fillAt = r.owner.now().Add(r.owner.fillEvery)
	}
	in, err := r.source.read(ctx, r.stored+1)
	if err != nil {
		return err
	}
	defer in.stop()
	if r.number == eventsSeat { // from here on what is read is what the judges read
		r.owner.shelf.Wanted(true)
		defer r.owner.shelf.Wanted(false)
	}
	r.gauge.works()
	silences := 0
	for ctx.Err() == nil {
		block, b, err := r.gather(ctx, in)
		if err != nil {
			return err
		}
		if b == nil {
			if err := r.advance(ctx); err != nil {
				return err
			}
			if silences++; silences >= stalledAfter && r.gauge.waits() {
				return errStalled
			}
			continue
		}
		silences = 0
		next := r.ledger.plan
		next.Stored, next.Block = r.stored, b
		if b.Count == 0 { // all of it was published before
			next.Stored, next.Block = b.Last, nil
		} else if r.number != findingsSeat {
			next.number(b, r.owner.now())
			block.Number = b.Number
		}
		if err := r.ledger.write(ctx, next); err != nil {
			return err
		}
		if b.Count > 0 {
			if err := r.insert(ctx, block); err != nil {
				return err
			}
		}
		r.settled(b.Last)
		r.marks.stored, r.ahead = b.Last, false
		if err := r.saveMarks(ctx, marksEvery); err != nil {
			return err
		}
		if err := r.fill(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) open(ctx context.Context) error {
	if _, err := r.source.look(ctx); err != nil {
		return err
	}
	consumer, err := r.source.consumer(ctx, r.number)
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, brokerLimit)
	defer cancel()
	if r.bucket, err = r.owner.js.KeyValue(opening, broker.BucketBlocks); err != nil {
		return fmt.Errorf("open bucket %s: %w", broker.BucketBlocks, err)
	}
	// Where there is no entry the consumer tells: an earlier version stored up to its acknowledgements.
	begin := func() (uint64, error) {
		c := consumer.CachedInfo()
		return max(c.AckFloor.Stream, max(c.Config.OptStartSeq, 1)-1), nil
	}
	r.ledger, err = openLedger(ctx, r.bucket, "block."+r.source.durable, r.source.identity, r.fence, begin, r.owner.now)
	if err != nil {
		return err
	}
	if r.fence == 0 {
		r.fence = r.ledger.plan.Fence // who came after has a higher one
	}
	r.stored = r.ledger.plan.Stored
	// Only now, when nobody else stores any more: what was read before may be older than what is stored.
	info, err := r.source.look(ctx)
	if err != nil {
		return err
	}
	if last := info.State.LastSeq; last < r.stored {
		if err := r.rewind(ctx, last); err != nil {
			return err
		}
	}
	r.gauge.with(func() { r.gauge.storedTo, r.gauge.first, r.gauge.clear = r.stored, info.State.FirstSeq, 0 })
	r.book = markBook{bucket: r.bucket, key: "marks." + r.source.durable}
	if r.marks, err = r.book.read(ctx, r.source.identity); errors.Is(err, ErrMarks) {
		r.log.Error("what was published twice before this start cannot be told", "error", err)
		err = nil
	}
	r.saved, r.ahead = r.owner.now(), false
	return err
}

// rewind begins again where the stream ends, under tokens that were not used before.
func (r *run) rewind(ctx context.Context, last uint64) error {
	r.log.Error("the stream has other messages than those that were stored or planned, as a broker that lost its end would; what is there now is stored", "stored", r.stored, "from", last+1)
	next := r.ledger.plan
	next.Stored, next.Block, next.Epoch = last, nil, next.Epoch+1
	if err := r.ledger.write(ctx, next); err != nil {
		return err
	}
	r.stored = last
	return nil
}

// recover stores the block that was planned, built from the same messages, and brings the marks up to it.
func (r *run) recover(ctx context.Context) error {
	if b := r.ledger.plan.Block; b != nil {
		block, err := r.rebuild(ctx, b)
		if errors.Is(err, errOther) {
			// What the broker now has under these sequences was not planned, and goes in under tokens of its own: rather twice than never.
			return errors.Join(err, r.rewind(ctx, r.stored))
		}
		if err != nil {
			return err
		}
		if len(block.Messages) > 0 {
			if err := r.insert(ctx, block); err != nil {
				return err
			}
		}
		r.settled(b.Last)
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	if r.marks.stored < r.stored {
		if err := r.source.again(ctx, r.marks.stored+1, r.stored, func(m Message) { r.marks.take(&m) }); err != nil {
			return err
		}
		r.marks.stored = r.stored
	}
	return nil
}

// rebuild reads the messages of a planned block again. Some may be gone: their loss is counted, and the rest goes under the same token, as
// whatever is in under it already has them all.
func (r *run) rebuild(ctx context.Context, b *bounds) (Block, error) {
	block := Block{Token: r.token(b), Number: b.Number, Messages: r.waiting[:0]}
	again := make(map[uint64]bool, len(b.Again))
	for _, sequence := range b.Again {
		again[sequence] = true
	}
	sum := uint64(0)
	err := r.source.again(ctx, b.First, b.Last, func(m Message) {
		if !again[m.Sequence] {
			block.Messages = append(block.Messages, m)
			sum = sumOf(sum, m.Sequence)
		}
	})
	if err != nil {
		return Block{}, fmt.Errorf("rebuild block %d-%d: %w", b.First, b.Last, err)
	}
	if missing := b.Count - len(block.Messages); missing > 0 {
		r.gauge.lose(uint64(missing))
		r.log.Error("messages fell out of the stream before their block was known to be stored", "block", block.Token, "lost", missing)
	} else if sum != b.Sum {
		return Block{}, fmt.Errorf("rebuild block %d-%d: %w: %d with checksum %x, planned were %d with %x", b.First, b.Last, errOther, len(block.Messages), sum, b.Count, b.Sum)
	}
	if len(block.Messages) > 0 {
		r.gauge.holds(block.Messages[0].Time)
	}
	return block, nil
}

func (r *run) token(b *bounds) string {
	return fmt.Sprintf("%s:%s:%d:%d-%d", r.source.identity, r.source.durable, r.ledger.plan.Epoch, b.First, b.Last)
}

// gather reads until a bound of the block is reached, or the linger is over after its first message. No bounds mean that nothing came for a while.
func (r *run) gather(ctx context.Context, in *reader) (Block, *bounds, error) {
	wait, stop := context.WithCancel(ctx)
	defer stop()
	over := time.AfterFunc(idleAfter, stop)
	defer over.Stop()
	block, b := Block{Messages: r.waiting[:0]}, (*bounds)(nil)
	bytes, lost := 0, uint64(0)
	for (b == nil || b.Events < blockEvents) && bytes < blockBytes && (b == nil || b.Count+len(b.Again) < blockMessages) {
		raw, meta, err := in.next(wait)
		if err != nil && wait.Err() != nil && ctx.Err() == nil {
			break
		}
		if err != nil {
			return block, nil, err
		}
		if b == nil {
			if meta.Sequence.Stream <= r.stored {
				return block, nil, errors.Join(errRewound, r.rewind(ctx, meta.Sequence.Stream-1))
			}
			over.Reset(r.linger())
			b = &bounds{First: meta.Sequence.Stream, Last: r.stored}
			r.gauge.holds(meta.Timestamp)
		}
		m, err := r.source.decoder.read(ctx, raw)
		if err != nil {
			return block, nil, err
		}
		last := b.Last
		b.Last = m.Sequence
		r.ahead = true
		fresh, missing, before := r.marks.take(&m)
		if r.number == findingsSeat { // which has every message of its stream
			missing, before.stream = m.Sequence-last-1, last
		}
		if !fresh {
			b.Again = append(b.Again, m.Sequence)
			continue
		}
		if missing > 0 && before.stream+1 < r.gauge.begins() { // else the collector lost it, and says so
			lost += missing
		}
		b.Count++
		b.Sum = sumOf(b.Sum, m.Sequence)
		block.Messages = append(block.Messages, m)
		b.Events += len(m.Batch.GetEvents()) + 1
		bytes += len(raw.Data())
	}
	r.waiting = block.Messages[:0]
	if lost > 0 {
		r.gauge.lose(lost)
		r.log.Error("messages fell out of the stream before they were stored", "lost", lost, "before", b.Last)
	}
	if b != nil {
		block.Token = r.token(b)
		r.gauge.repeated(len(b.Again))
	}
	return block, b, nil
}

// linger is how long a block of this seat waits to be filled.
func (r *run) linger() time.Duration {
	if r.number == findingsSeat {
		return min(r.owner.linger, findingLinger)
	}
	return r.owner.linger
}

// settled notes that everything up to a sequence is in the store. The broker learns it with the next block, or from settle.
func (r *run) settled(last uint64) {
	clear(r.waiting[:cap(r.waiting)])
	r.stored = last
	r.gauge.stored(last)
}

// settle tells the broker that the planned block is stored, so that it is not inserted again after the tables forgot its token.
func (r *run) settle(ctx context.Context) error {
	if r.ledger.plan.Block == nil || r.stored < r.ledger.plan.Block.Last {
		return nil
	}
	next := r.ledger.plan
	next.Stored, next.Block = r.stored, nil
	return r.ledger.write(ctx, next)
}

// saveMarks writes the marks when the last time is long enough ago.
func (r *run) saveMarks(ctx context.Context, every time.Duration) error {
	now := r.owner.now()
	if now.Sub(r.saved) < every || r.ahead || r.marks.stored != r.stored {
		return nil
	}
	evicted := r.marks.evicted
	r.marks.prune(now)
	if r.marks.evicted > evicted {
		r.log.Warn("more producers and findings than can be remembered; one that is published again after minutes may be stored twice", "remembered", maxMarks, "forgotten", r.marks.evicted)
	}
	err := r.book.write(ctx, r.marks, r.source.identity)
	if errors.Is(err, ErrFenced) {
		// A read may have given an old revision. Whose the seat is, the plan decides.
		if err := r.ledger.write(ctx, r.ledger.plan); err != nil {
			return err
		}
		_, err = r.book.read(ctx, r.source.identity)
	}
	r.saved = now
	return err
}

// part leaves the entry as the next owner should find it. What it cannot write costs that owner a little work only. It is told how serving ended.
func (r *run) part(ended error) {
	ctx, cancel := context.WithTimeout(context.Background(), partingLimit)
	defer cancel()
	err := ended
	if !errors.Is(ended, ErrFenced) { // else the broker need not be asked whose the seat is
		err = r.settle(ctx)
	}
	if err == nil {
		err = r.saveMarks(ctx, 0)
	}
	if err != nil {
		cancel() // whoever has the seat by now fills the rollups
	}
	if err := errors.Join(err, r.finish(ctx)); err != nil {
		r.log.Debug("seat left without a last word", "error", err)
	}
}

// advance passes over what belongs to others, so that an idle seat does not look as if the stream had lost what it never had. It is
// written down rarely.
func (r *run) advance(ctx context.Context) error {
	if err := r.settle(ctx); err != nil {
		return err
	}
	if err := r.fill(ctx); err != nil {
		return err
	}
	var clear uint64
	r.gauge.with(func() { clear = r.gauge.clear })
	if clear <= r.stored {
		return nil
	}
	r.settled(clear)
	r.marks.stored = clear
	if r.owner.now().Sub(r.advanced) < advanceEvery {
		return nil
	}
	r.advanced = r.owner.now()
	next := r.ledger.plan
	next.Stored = r.stored
	return r.ledger.write(ctx, next)
}
