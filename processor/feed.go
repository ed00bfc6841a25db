package processor

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

const (
	feedMost   = 32 << 20               // bytes that wait in all queues, until no more are read; a sixteenth in one, until the partition has to read by itself
	feedPull   = 1000                   // messages of a pull
	feedBytes  = 2 * broker.MaxPayload  // and their bytes, since a message may have a megabyte
	feedBeat   = 5 * time.Second        // between two signs of life of a pull; after two that miss it is made anew
	feedSettle = 250 * time.Millisecond // partitions that come within it share a consumer
	feedLinger = time.Second            // for which a partition that left is read in vain: others may leave too
	slowAfter  = 2 * time.Second        // without taking anything a partition does not hold up the others
)

// feed reads the events of all partitions that run here, in the order of the stream, by one consumer, and hands them out. One is five to ten times
// cheaper than a durable one for each partition (BenchmarkReading): the broker looks at a message once, not for each consumer, and has no state
// to write. It acknowledges nothing: where a partition stands is in its saved state. When partitions come and go it is made anew behind the
// last message that was handed out, so that the others miss nothing and read nothing twice; one that comes reads by itself up to there.
type feed struct {
	js   jetstream.JetStream
	log  *slog.Logger
	now  func() time.Time
	kick chan struct{} // somebody came to an idle feed
	room chan struct{} // something was taken
	most int           // bytes in all queues

	delivered uint64 // the consumer's own number of its newest delivery; of run alone

	mu       sync.Mutex
	queues   [event.PartitionCount]*queue
	begun    bool
	position uint64             // all up to here was handed out
	held     int                // bytes in queues
	opened   time.Time          // when the consumer was made
	due      time.Time          // when it is to be made anew; zero: it is not
	timer    *time.Timer        // until then
	anew     context.CancelFunc // ends the reading of the present one; nil while there is none
}

// queue is what a partition was given and has not taken yet.
type queue struct {
	number  int
	ready   chan struct{} // there is something, or from changed
	letters []letter
	bytes   int
	from    uint64 // the consumer hands out all of the partition from here on; 0: it does not know of it yet
	open    bool   // what comes is put here; not behind a gap, which the partition fills by itself
	taken   time.Time
}

func newFeed(js jetstream.JetStream, log *slog.Logger) *feed {
	return &feed{js: js, log: log, now: time.Now, kick: make(chan struct{}, 1), room: make(chan struct{}, 1), most: feedMost}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is told already
	}
}

// join makes a partition one of those that are read. From where on, take says.
func (f *feed) join(number int) *queue {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := &queue{number: number, ready: make(chan struct{}, 1), taken: f.now()}
	f.queues[number] = q
	f.soon(0)
	return q
}

// leave ends it.
func (f *feed) leave(q *queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clear(q)
	if f.queues[q.number] == q {
		f.queues[q.number] = nil
		f.soon(feedLinger)
	}
}

// renew makes the consumer anew, which has stalled or may be gone.
func (f *feed) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.soon(0)
}

// soon makes the consumer anew after a while. f.mu is held.
func (f *feed) soon(wait time.Duration) {
	now := f.now()
	at := now.Add(wait)
	if settled := f.opened.Add(feedSettle); settled.After(at) {
		at = settled
	}
	if !f.due.IsZero() && !at.Before(f.due) {
		return
	}
	f.due = at
	if f.timer != nil {
		f.timer.Stop()
	}
	f.timer = time.AfterFunc(at.Sub(now), func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.anew != nil {
			f.anew()
		}
		wake(f.kick)
	})
}

// clear forgets what a partition was given: it reads it by itself. f.mu is held.
func (f *feed) clear(q *queue) {
	f.held -= q.bytes
	q.letters, q.bytes, q.open = nil, 0, false
	wake(f.room)
}

// take returns what a partition was given since it took last, and from where on it is given everything: what is older, and not among what it
// took before, it has to read itself.
func (f *feed) take(q *queue) (some []letter, from uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	some, from = q.letters, q.from
	q.letters, q.taken = nil, f.now()
	if q.bytes > 0 {
		f.held -= q.bytes
		q.bytes = 0
		wake(f.room)
	}
	if !q.open && q.from > 0 { // the next time
		q.open, q.from = true, f.position+1
		wake(q.ready)
	}
	return some, from
}

// skip has a partition, which could not read what is older, given nothing that it took and all that is still to come.
func (f *feed) skip(q *queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clear(q)
	wake(q.ready)
}

// seen returns up to where a partition that has nothing to take was given everything, 0 when that is not known, as while it has still to read what
// is older than what it is given: it has from whole on. And whether it has something to take.
func (f *feed) seen(q *queue, whole uint64) (position uint64, waiting bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if waiting = len(q.letters) > 0; q.open && q.from <= whole && !waiting {
		position = f.position
	}
	return position, waiting
}

// run reads until ctx ends.
func (f *feed) run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	status := f.js.Conn().StatusChanged(nats.CONNECTED)
	defer f.js.Conn().RemoveStatusListener(status)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case _, more := <-status:
				if !more {
					return
				}
				f.renew() // a broker that was away has forgotten the consumer
			}
		}
	})
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.timer != nil {
			f.timer.Stop()
		}
	}()
	for told := false; ctx.Err() == nil; {
		began := f.now()
		err := f.serve(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			told = false
		default:
			if !told || f.now().Sub(began) > time.Minute {
				f.log.Warn("cannot read events, trying again", "error", err)
				told = true
			}
			broker.Wait(ctx, retryAfter)
		}
	}
}

// serve makes a consumer, when there are partitions, and hands out what it delivers, until it is to be made anew.
func (f *feed) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	consumer, err := f.open(ctx, cancel)
	if ctx.Err() != nil {
		return nil // it is to be made anew already
	}
	if err != nil {
		return err
	}
	if consumer == nil {
		select {
		case <-f.kick:
		case <-ctx.Done():
		}
		return nil
	}
	defer func() {
		f.mu.Lock()
		f.anew = nil
		f.mu.Unlock()
		if f.js.Conn().IsConnected() {
			leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = f.js.DeleteConsumer(leave, event.StreamEvents, consumer.CachedInfo().Name) // it goes by itself when nobody reads
		}
	}()
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(feedPull, feedBytes), jetstream.PullExpiry(6*feedBeat), jetstream.PullHeartbeat(feedBeat))
	if err != nil {
		return fmt.Errorf("read stream %s: %w", event.StreamEvents, err)
	}
	defer messages.Stop()
	f.delivered = 0
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err == nil {
			err = f.hand(ctx, m)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read stream %s: %w", event.StreamEvents, err)
		}
	}
}

// open makes a consumer for the partitions that are here by now, which delivers what was not handed out; nil when there are none.
func (f *feed) open(ctx context.Context, anew context.CancelFunc) (jetstream.Consumer, error) {
	f.mu.Lock()
	f.due, f.opened, f.anew = time.Time{}, f.now(), anew
	config := jetstream.ConsumerConfig{Name: broker.ReaderPrefix + rand.Text(), DeliverPolicy: jetstream.DeliverByStartSequencePolicy, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute}
	some := make([]*queue, 0, len(f.queues))
	for _, q := range f.queues {
		if q != nil {
			some = append(some, q)
			config.FilterSubjects = append(config.FilterSubjects, broker.PartitionSubjects(q.number))
		}
	}
	position, begun := f.position, f.begun
	f.mu.Unlock()
	if len(some) == 0 {
		return nil, nil
	}
	if len(some) == len(f.queues) {
		config.FilterSubjects = nil // the broker need not compare
	}
	opening, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	stream, err := f.js.Stream(opening, event.StreamEvents)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", event.StreamEvents, err)
	}
	if last := stream.CachedInfo().State.LastSeq; !begun || position > last { // a stream that lost its newest messages goes on behind what is left
		position = last
	}
	config.OptStartSeq = position + 1
	consumer, err := f.js.CreateConsumer(opening, event.StreamEvents, config)
	if err != nil {
		return nil, fmt.Errorf("read stream %s from %d: %w", event.StreamEvents, position+1, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun, f.position = true, position
	for _, q := range some {
		if q.from == 0 {
			q.open, q.from = true, position+1
			wake(q.ready)
		}
	}
	return consumer, nil
}

// hand gives a message to its partition. While the queues are full it waits.
func (f *feed) hand(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("read metadata: %w", err)
	}
	if meta.Sequence.Consumer != f.delivered+1 {
		return errShort
	}
	f.delivered = meta.Sequence.Consumer
	l := letterOf(m, meta)
	number, ok := event.PartitionOf(l.subject)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.position = l.sequence
	if !ok { // none of the partitions would be given it by a consumer of its own
		return nil
	}
	q := f.queues[number]
	if q == nil || !q.open {
		return nil
	}
	q.letters = append(q.letters, l)
	q.bytes += len(l.data)
	f.held += len(l.data)
	q.open = q.bytes < f.most/16
	wake(q.ready)
	for slow := false; f.held >= f.most && ctx.Err() == nil; {
		if slow {
			for _, q := range f.queues {
				if q != nil && q.bytes > 0 && f.now().Sub(q.taken) >= slowAfter {
					f.clear(q)
					wake(q.ready)
				}
			}
		}
		f.mu.Unlock()
		slow = f.patience(ctx)
		f.mu.Lock()
	}
	return nil
}

// patience waits until something is taken, and says whether that took long.
func (f *feed) patience(ctx context.Context) (long bool) {
	timer := time.NewTimer(slowAfter)
	defer timer.Stop()
	select {
	case <-f.room:
	case <-ctx.Done():
	case <-timer.C:
		return true
	}
	return false
}
