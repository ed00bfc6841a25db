package collector

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/spool"
	"lowtide/event"
)

// lane is one queue of the publisher: first what is on disk, then what is in memory, last what still lingers. One goroutine, run, sends
// it and moves it to disk.
type lane struct {
	publisher *Publisher
	name      string
	limit     int // of bytes
	wake      chan struct{}
	disk      *spool.Lane // nil without a spool

	// Under the publisher's lock.
	queue     []*message
	bytes     int  // of queue and drafts
	pinned    bool // the first of the queue is being sent or written, and is not dropped
	away      bool // the last attempt failed
	sequences map[hostName]uint64
	drafts    map[hostName]*draft
	lingering []*draft // as they are due; one that is no longer in drafts is sealed already
	room      []byte   // for the next event
	page      []byte   // for the next draft

	// Of run.
	sending bool
	head    *message // the first on disk, as far as it was read; it may be in flight
	retryAt time.Time
	pause   time.Duration
	pace    pace
	told    bool // that the disk cannot be read
}

// result is what became of an attempt.
type result struct {
	message *message
	ack     *jetstream.PubAck
	err     error
}

func newLane(p *Publisher, name string, limit int) *lane {
	l := &lane{publisher: p, name: name, limit: limit, wake: make(chan struct{}, 1), pause: p.o.RetryMin, sequences: make(map[hostName]uint64), drafts: make(map[hostName]*draft)}
	if p.o.Spool != nil {
		l.disk = p.o.Spool.Lane(name)
	}
	l.pace.rate = float64(p.o.SpoolRate) * messageCost
	l.pace.start(time.Now())
	return l
}

// push queues a message in memory. The caller holds the publisher's lock.
func (l *lane) push(m *message) {
	l.queue = append(l.queue, m)
	l.bytes += len(m.msg.Data)
	l.trim()
	l.call()
}

// call lets run look again.
func (l *lane) call() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// trim drops the oldest messages in memory until they are within the limit. The newest stays, and the one that is pinned.
func (l *lane) trim() {
	first := 0
	if l.pinned {
		first = 1
	}
	dropped := 0
	for l.bytes > l.limit && first+dropped < len(l.queue)-1 {
		l.bytes -= len(l.queue[first+dropped].msg.Data)
		l.publisher.drop(l.queue[first+dropped])
		dropped++
	}
	if dropped > 0 {
		l.queue = append(l.queue[:first], l.queue[first+dropped:]...)
	}
}

// shift takes the first message out of memory. The caller holds the lock.
func (l *lane) shift() {
	l.bytes -= len(l.queue[0].msg.Data)
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.pinned = false
}

// spooled is how many messages wait on disk.
func (l *lane) spooled() uint64 {
	if l.disk == nil {
		return 0
	}
	return l.disk.Stats().Messages
}

// busy says whether a closing publisher has to wait: for what is in memory, and for what is on disk while the broker takes it. The
// caller holds the lock.
func (l *lane) busy() bool {
	return len(l.queue) > 0 || !l.away && l.spooled() > 0
}

// run sends the lane until the context ends; what is left in memory then goes to disk.
func (l *lane) run(ctx context.Context) {
	results := make(chan result, 1) // one message is in flight: whoever brings its result never waits
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := l.ripen(time.Now())
		l.spill(false)
		if !l.sending {
			m, pause := l.next(time.Now())
			if m != nil {
				l.send(ctx, m, results)
			} else if pause > 0 && (wait == 0 || pause < wait) {
				wait = pause
			}
		}
		if wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-ctx.Done():
			if l.sending {
				l.settle(ctx, <-results)
			}
			l.spill(true)
			return
		case r := <-results:
			l.settle(ctx, r)
		case <-l.wake:
		case <-timer.C:
		}
	}
}

func (l *lane) send(ctx context.Context, m *message, results chan<- result) {
	l.sending = true
	if stream, ok := l.publisher.stream.(Sender); ok {
		stream.Send(m.msg, func(ack *jetstream.PubAck, err error) { results <- result{m, ack, err} })
		return
	}
	go func() { // run takes the result, whatever comes
		limited, cancel := context.WithTimeout(ctx, l.publisher.o.AckTimeout)
		defer cancel()
		ack, err := l.publisher.stream.PublishMsg(limited, m.msg)
		results <- result{m, ack, err}
	}()
}

// next returns the message whose turn it is, or how long until then; neither where nothing waits.
func (l *lane) next(now time.Time) (*message, time.Duration) {
	if wait := l.retryAt.Sub(now); wait > 0 {
		return nil, wait
	}
	p := l.publisher
	if l.disk != nil && l.head == nil {
		record, err := l.disk.Head()
		if err != nil {
			if !l.told {
				p.o.Log.Warn("spool cannot be read; trying again", "lane", l.name, "error", err)
			}
			l.told = true
			return nil, p.o.RetryMax
		}
		if l.told = false; record != nil {
			l.head = messageOf(record)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.head != nil {
		cost := costOf(len(l.head.msg.Data))
		if wait := l.pace.delay(cost, now); wait > 0 && !l.away {
			return nil, wait
		}
		l.pace.spend(cost)
		return l.head, 0
	}
	if len(l.queue) == 0 {
		return nil, 0
	}
	l.pinned = true
	return l.queue[0], 0
}

// messageOf is what a former attempt, or a former collector, would have sent.
func messageOf(r *spool.Record) *message {
	msg := nats.NewMsg(r.Subject)
	msg.Header.Set(nats.MsgIdHdr, r.ID)
	msg.Data = r.Data
	cluster, name, _ := event.SplitSubject(r.Subject)
	return &message{host: &event.Host{Cluster: cluster, Name: name}, events: r.Events, msg: msg}
}

// settle takes in what became of an attempt.
func (l *lane) settle(ctx context.Context, r result) {
	l.sending = false
	p := l.publisher
	hopeless := refused(r.err)
	if r.err != nil && !hopeless {
		p.mu.Lock()
		defer p.mu.Unlock()
		l.pinned = false
		if ctx.Err() == nil {
			p.failed(l, r.err)
			l.retryAt = time.Now().Add(l.pause)
			l.pause = min(2*l.pause, p.o.RetryMax)
		}
		p.noteIdle() // nobody waits for a broker that is away when there is a spool
		return
	}
	fromDisk := r.message == l.head
	if fromDisk {
		if err := l.disk.Pop(); err != nil {
			p.o.Log.Warn("spool does not know what was sent; it may be sent again", "lane", l.name, "error", err)
		}
		l.head = nil
	}
	empty := l.disk == nil || l.disk.Empty()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !fromDisk {
		l.shift()
	}
	l.pause = p.o.RetryMin
	if l.away || empty {
		l.pace.start(time.Now())
	}
	if hopeless {
		p.o.Log.Error("broker will never take a message", "bytes", len(r.message.msg.Data), "subject", r.message.msg.Subject, "error", r.err, "hint", "raise max_payload")
		p.drop(r.message)
	} else {
		p.acknowledged(l, r.ack)
	}
	p.noteIdle()
}

// codeTooLarge is what JetStream answers to a message larger than its stream takes.
const codeTooLarge jetstream.ErrorCode = 10054

// refused says whether every further attempt would end the same way, which must not hold up what waits behind.
func refused(err error) bool {
	var answer *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) || errors.As(err, &answer) && answer.ErrorCode == codeTooLarge
}

// spill moves what is in memory to disk, in order: while the broker is away, while anything waits there already, when memory is half
// full because the broker is slow, and at the end. What the disk does not take stays in memory.
func (l *lane) spill(end bool) {
	if l.disk == nil {
		return
	}
	p := l.publisher
	for {
		occupied := l.head != nil || !l.disk.Empty()
		p.mu.Lock()
		if len(l.queue) == 0 || !end && !l.away && !occupied && l.bytes <= l.limit/2 {
			p.noteIdle()
			p.mu.Unlock()
			return
		}
		m, inFlight, away := l.queue[0], l.pinned, l.away
		l.pinned = true
		p.mu.Unlock()
		err := l.disk.Append(&spool.Record{At: time.Now(), Events: m.events, Subject: m.msg.Subject, ID: m.msg.Header.Get(nats.MsgIdHdr), Data: m.msg.Data})
		if err == nil && inFlight { // the disk was empty, so that this is its first one
			if _, err := l.disk.Head(); err != nil {
				p.o.Log.Warn("spool cannot be read; a message may be sent again", "lane", l.name, "error", err)
			}
			l.head = m
		}
		p.mu.Lock()
		switch {
		case err == nil:
			l.shift()
			if !away {
				l.pace.admit(costOf(len(m.msg.Data)))
			}
		case errors.Is(err, spool.ErrTooLarge) && !inFlight:
			l.shift()
			p.drop(m)
		default:
			l.pinned = inFlight
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}
