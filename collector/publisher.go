package collector

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/spool"
	"lowtide/collector/status"
	"lowtide/event"
)

// publisherSource is the name under which the publisher reports what it had to drop.
const publisherSource = "publisher"

// linger is longer than what the sources of a host need for a tick, and too short for anybody to wait for.
const linger = 100 * time.Millisecond

// Stream is the part of jetstream.JetStream that the publisher uses. A nil error means that the message is stored.
type Stream interface {
	PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error)
}

// Sender is a Stream that can send without a goroutine for each message. Send does not block on the network, and calls done once and from
// anywhere, within the time in which it expects an acknowledgement; a nil error means that the message is stored.
type Sender interface {
	Stream
	Send(msg *nats.Msg, done func(*jetstream.PubAck, error))
}

// PublisherOptions bound what is kept while the broker is away and how often it is tried again.
type PublisherOptions struct {
	Spool      *spool.Spool  // where messages wait while the broker is away; nil keeps them in memory. The publisher does not close it
	SpoolRate  int           // messages a second and lane that are sent from the spool on top of those that are new; 32 when zero
	MaxBytes   int           // of samples that wait in memory; 64 MiB when zero, with a spool 16 MiB. Urgent events have a quarter of it for themselves
	Linger     time.Duration // how long samples wait for others of their host, to share a message; 100 ms when zero, not at all when negative
	AckTimeout time.Duration // for one PubAck; 5 s when zero
	RetryMin   time.Duration // pause after the first failure, doubled up to RetryMax; 100 ms when zero
	RetryMax   time.Duration // 2 s when zero
	Log        *slog.Logger  // nil discards
}

// Stats count messages since the publisher started.
type Stats struct {
	Sent, Duplicates, Dropped uint64
	PendingMessages           int // in memory, those that are still being written included
	PendingBytes              int
	Away                      bool // the last attempt of a lane failed
}

// Publisher sends what the sources saw, grouped by host and lane: each lane first-in-first-out, one message in flight, the urgent lane
// never behind samples, and neither waits for the other. Samples linger, so that those which several sources read of a host at a tick are
// one message: what a message costs the broker and its readers is the same however much is in it. Urgent events never linger. A message
// counts as sent only on its PubAck; until then the same bytes are published again under the same Nats-Msg-Id.
//
// When a PubAck does not come, what waits goes to the spool, and what is new behind it, until the spool has been sent at a bounded rate:
// a fleet that comes back must not drown the broker. A message is on disk milliseconds after it was sealed; one that was being sent when the
// broker went stays in memory up to AckTimeout. What a former collector left in the spool is sent first, under its own producer and ids.
// What fits neither on disk nor into memory is dropped oldest first, counted, and reported by a `source` event named "publisher" with
// status `lost`.
type Publisher struct {
	stream   Stream
	o        PublisherOptions
	producer string
	cancel   context.CancelFunc
	lanes    sync.WaitGroup
	samples  *lane
	urgent   *lane

	mu      sync.Mutex
	lost    map[string]*loss // by host, not yet reported
	stats   Stats
	closing bool          // nothing lingers any more
	idle    chan struct{} // closed when a closing publisher has nothing left to do
}

type message struct {
	host   *event.Host
	events int
	msg    *nats.Msg
}

type loss struct {
	host     *event.Host
	messages uint64
}

// NewPublisher starts the two lanes. Close ends them.
func NewPublisher(stream Stream, o PublisherOptions) *Publisher {
	if o.MaxBytes <= 0 {
		if o.MaxBytes = 64 << 20; o.Spool != nil {
			o.MaxBytes = 16 << 20
		}
	}
	if o.SpoolRate <= 0 {
		o.SpoolRate = spoolRate
	}
	if o.Linger == 0 {
		o.Linger = linger
	}
	if o.AckTimeout <= 0 {
		o.AckTimeout = 5 * time.Second
	}
	if o.RetryMin <= 0 {
		o.RetryMin = 100 * time.Millisecond
	}
	if o.RetryMax <= 0 {
		o.RetryMax = max(2*time.Second, o.RetryMin)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	// Drawn anew at each start: a reused id would be dropped by the server as a duplicate, silently.
	var draw [8]byte
	rand.Read(draw[:]) // never fails, by its contract
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{
		stream: stream, o: o, producer: hex.EncodeToString(draw[:]), cancel: cancel,
		lost: make(map[string]*loss), idle: make(chan struct{}),
	}
	p.samples, p.urgent = newLane(p, event.LaneSamples, o.MaxBytes), newLane(p, event.LaneUrgent, o.MaxBytes/4)
	p.lanes.Go(func() { p.samples.run(ctx) })
	p.lanes.Go(func() { p.urgent.run(ctx) })
	return p
}

// Producer returns the token drawn at the start, a part of every message id.
func (p *Publisher) Producer() string { return p.producer }

// Publish encodes the events and queues them. It does not wait for the broker; the error says which events could not be encoded, and
// are left out, or that the publisher is closed.
func (p *Publisher) Publish(source string, events []*event.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return errors.New("publish events: the publisher is closed")
	}
	now, token := time.Now(), event.Token(source)
	var faults []error
	for _, e := range events {
		l := p.samples
		if event.Lane(e) == event.LaneUrgent {
			l = p.urgent
		}
		if err := l.add(token, e, now); err != nil {
			faults = append(faults, fmt.Errorf("%s of %s at %s: %w", e.Body(), source, e.At().Format(time.RFC3339), err))
		}
	}
	p.release()
	if n := len(faults); n > 0 {
		return fmt.Errorf("encode events: %d of %d are left out: %w", n, len(events), errors.Join(faults[:min(n, maxFaults)]...))
	}
	return nil
}

// maxFaults are named in one error.
const maxFaults = 8

// release seals what must not linger. The caller holds the lock.
func (p *Publisher) release() {
	p.urgent.flush()
	if p.o.Linger < 0 || p.closing || p.samples.bytes > p.samples.limit {
		p.samples.flush()
	}
}

// Ready says whether at least half of the room for samples is free and nothing waits on disk: a source that plays the past waits for it.
func (p *Publisher) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.samples.bytes < p.samples.limit/2 && p.samples.spooled() == 0
}

// Stats returns the counts so far.
func (p *Publisher) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.PendingMessages = len(p.samples.queue) + len(p.samples.drafts) + len(p.urgent.queue)
	s.PendingBytes = p.samples.bytes + p.urgent.bytes
	s.Away = p.samples.away || p.urgent.away
	return s
}

// Well returns why nothing is published now: the broker does not acknowledge. Nothing is lost by that while there is room to wait.
func (p *Publisher) Well() error {
	if s := p.Stats(); s.Away {
		return fmt.Errorf("the broker does not acknowledge; %d messages wait in memory, others in the spool", s.PendingMessages)
	}
	return nil
}

// Close sends what lingers and what is queued, as long as the context lasts, and ends the lanes. With a spool it does not wait for a broker that is away:
// what is left is on disk and the next collector's to send. The error says how many messages were left in memory, and are lost.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closing {
		p.closing = true
		p.release()
		p.noteIdle()
	}
	p.mu.Unlock()
	select {
	case <-p.idle:
	case <-ctx.Done():
	}
	p.cancel()
	p.lanes.Wait()
	if left := p.samples.spooled() + p.urgent.spooled(); left > 0 {
		p.o.Log.Info("messages wait in the spool for the next start", "messages", left)
	}
	if s := p.Stats(); s.PendingMessages > 0 {
		return fmt.Errorf("close publisher: %d messages were not acknowledged: %w", s.PendingMessages, context.Cause(ctx))
	}
	return nil
}

// noteIdle tells Close that both lanes have nothing left to do. The caller holds the lock.
func (p *Publisher) noteIdle() {
	if !p.closing || p.samples.busy() || p.urgent.busy() {
		return
	}
	select {
	case <-p.idle:
	default:
		close(p.idle)
	}
}

// drop counts a message that is given up and says so once per outage.
func (p *Publisher) drop(m *message) {
	if len(p.lost) == 0 {
		p.o.Log.Warn("messages are dropped", "total_before", p.stats.Dropped, "hint", "the broker is away and the backlog is full, or a message is too large")
	}
	p.stats.Dropped++
	key := event.HostKey(m.host)
	if p.lost[key] == nil {
		p.lost[key] = &loss{host: m.host}
	}
	p.lost[key].messages++
}

// failed notes that an attempt of a lane ended without an acknowledgement. The caller holds the lock.
func (p *Publisher) failed(l *lane, err error) {
	if !p.samples.away && !p.urgent.away {
		where := "in memory"
		if p.o.Spool != nil {
			where = "on disk"
		}
		if errors.Is(err, nats.ErrHeadersNotSupported) { // what the client says before it has met a server
			err = errors.New("it has not been reached yet")
		}
		p.o.Log.Warn("broker does not acknowledge; keeping events "+where+" and trying again", "lane", l.name, "error", err)
	}
	l.away = true
}

// acknowledged counts a message that is stored. The caller holds the lock.
func (p *Publisher) acknowledged(l *lane, ack *jetstream.PubAck) {
	p.stats.Sent++
	if ack != nil && ack.Duplicate {
		p.stats.Duplicates++
	}
	if l.away {
		l.away = false
		p.o.Log.Info("broker is back", "lane", l.name, "pending", uint64(len(l.queue))+l.spooled(), "dropped", p.stats.Dropped)
	}
	p.report()
}

// report queues a `source` event for every host that lost messages, as far as there is room: a report into a full backlog would cost
// another message. The broker is there, or it would not be called.
func (p *Publisher) report() {
	for key, l := range p.lost {
		if p.samples.bytes > p.samples.limit/2 {
			break
		}
		delete(p.lost, key)
		e := &event.Event{Time: timestamppb.Now(), Host: l.host, Source: &event.SourceStatus{Name: publisherSource, Status: status.Lost,
			Error: fmt.Sprintf("%d messages dropped: the broker was away and the backlog full, or they were too large", l.messages)}}
		if err := p.samples.add(publisherSource, e, time.Now()); err != nil {
			p.o.Log.Error("loss is not reported", "host", key, "error", err)
		}
	}
	p.release()
}
