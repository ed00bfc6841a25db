package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// StoreSeats is how many seats storing has: one for the events, and one for the findings.
const StoreSeats = 2

const (
	eventsSeat = iota
	findingsSeat
)

// Store keeps rows. InsertRows returns nil only when every row is kept, or was before under the same token; after any error the caller
// calls it again with the same rows. It is called by several goroutines at once.
type Store interface {
	InsertRows(ctx context.Context, token string, rows Rows) error
}

// The bounds of a block, and how long one waits to be filled. A block makes a part of each table and rollup, which costs ClickHouse about
// 0.2 s of processor time now and in merges, however few rows are in it: few and large ones are several times cheaper.
const (
	blockEvents   = 400_000  // about 80,000 rows of worker_samples
	blockBytes    = 32 << 20 // of payload, usually 33,000 rows
	blockMessages = 20_000
	blockLinger   = 10 * time.Second
	findingLinger = 2 * time.Second // findings are few, and asked for at once
)

// Storer stores the streams, each seat by one owner at a time. It is a prometheus.Collector.
//
// What is stored is told by the seat's entry in the bucket LOWTIDE_BLOCKS, not by the acknowledgements of a consumer: an entry is
// written by compare-and-set, so that of two who think a seat is theirs one stops, while a consumer gives what it has to whoever asks.
// The durable consumers store-events and `store` of the findings follow the entry, for everybody to see what waits.
type Storer struct {
	js    jetstream.JetStream
	store Store
	log   *slog.Logger
	shelf *event.Shelf

	linger    time.Duration
	fillEvery time.Duration
	now       func() time.Time

	mu    sync.Mutex
	seats map[int]*gauge // also of seats that were left
}

// NewStorer prepares and calls nothing yet. A nil log discards.
func NewStorer(js jetstream.JetStream, store Store, log *slog.Logger) *Storer {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Storer{js: js, store: store, log: log, linger: blockLinger, fillEvery: fillEvery, now: time.Now, seats: make(map[int]*gauge)}
}

// Share takes from a shelf what the judges of the same process have decoded. It is called before Run.
func (s *Storer) Share(shelf *event.Shelf) { s.shelf = shelf }

// Run stores one seat (0 to StoreSeats-1) until ctx ends, and returns nil then. ErrFenced means that another owner has it. While the
// store or the broker is away it waits, and says so once. A fence of 0 takes the seat from whoever had it before.
func (s *Storer) Run(ctx context.Context, seat int, fence uint64) error {
	if seat < 0 || seat >= StoreSeats {
		return fmt.Errorf("store seat %d: there are 0 to %d", seat, StoreSeats-1)
	}
	r := newRun(s, seat, fence)
	r.gauge.enter()
	defer r.gauge.leave()
	told := false
	for ctx.Err() == nil {
		err := r.serve(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrFenced):
			return fmt.Errorf("store seat %d: %w", seat, err)
		case !told:
			r.log.Warn("cannot store, trying again; events wait in the stream", "error", err)
			told = true
		}
		r.gauge.broken(err)
		pause(ctx, retryAfter) // its error is ctx's
	}
	return nil
}

// Stored returns up to which sequence of their stream this process has stored the events, or did when it stored them last; 0 before that.
func (s *Storer) Stored() (sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.seats[eventsSeat]; g != nil {
		g.with(func() { sequence = g.storedTo })
	}
	return sequence
}

// Ready says why what is published now would not be stored soon; nil when it is.
func (s *Storer) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var faults []error
	for seat := range StoreSeats {
		if g := s.seats[seat]; g != nil {
			if err := g.ready(s.now()); err != nil {
				faults = append(faults, fmt.Errorf("store seat %s: %w", seatName(seat), err))
			}
		}
	}
	return errors.Join(faults...)
}

func seatName(seat int) string {
	if seat == findingsSeat {
		return "findings"
	}
	return "events"
}

// messageReader reads messages that follow each other; it remembers what stands in all of them.
type messageReader struct {
	batches *event.BatchReader
	shelf   *event.Shelf // what the judges of this process decoded of them; nil without
}

// read reads a message of either stream. What cannot be read becomes Refused, with its reason; an error means that the message came
// from no stream.
func (r messageReader) read(ctx context.Context, raw jetstream.Msg) (Message, error) {
	meta, err := raw.Metadata()
	if err != nil {
		return Message{}, fmt.Errorf("read place of message: %w", err)
	}
	finding, sequence := meta.Stream == event.StreamFindings, meta.Sequence.Stream
	if partition, ok := event.PartitionOf(raw.Subject()); ok {
		if batch, ok := r.shelf.Take(ctx, partition, sequence, meta.Timestamp); ok {
			return Message{Sequence: sequence, Time: meta.Timestamp, Subject: raw.Subject(), Batch: batch}, nil
		}
	}
	m := r.decode(finding, raw.Subject(), raw.Headers().Get("Content-Type"), raw.Data())
	m.Sequence, m.Time = sequence, meta.Timestamp
	return m, nil
}

func (r messageReader) decode(finding bool, subject, contentType string, data []byte) Message {
	m := Message{Subject: subject}
	refuse := func(reason string) Message {
		m.Batch, m.Finding, m.Refused, m.Data = nil, nil, reason, data
		return m
	}
	var err error
	if finding {
		if m.Finding, err = event.UnmarshalFinding(data); err != nil {
			return refuse(err.Error())
		}
		return m
	}
	if m.Batch, _, err = r.batches.Decode(contentType, data); err != nil {
		return refuse(err.Error())
	}
	if cluster, host, ok := event.SplitSubject(subject); !ok || cluster != m.Batch.Host.Cluster || host != m.Batch.Host.Name {
		return refuse("host " + event.HostKey(m.Batch.Host) + " is not the host of subject " + subject)
	}
	return m
}
