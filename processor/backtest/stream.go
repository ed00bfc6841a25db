package backtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

const (
	pull     = 500              // messages at once
	pullWait = 10 * time.Second // for the next of them
)

// stream is the history that the broker still has. It is read by a consumer that nobody else sees, and that leaves nothing behind.
type stream struct {
	js      jetstream.JetStream
	hosts   []string // cluster/name; empty for all
	stderr  io.Writer
	refused int
}

func (s *stream) name() string { return "the stream" }

func (s *stream) look(ctx context.Context, _, _ time.Time) (int, time.Time, error) {
	in, err := s.open(ctx, event.StreamEvents)
	if err != nil {
		return 0, time.Time{}, err
	}
	return len(s.hosts), in.CachedInfo().State.FirstTime.UTC(), nil
}

func (s *stream) open(ctx context.Context, name string) (jetstream.Stream, error) {
	in, err := s.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, &broker.Failure{What: "backtest: this broker has no stream " + name, Remedy: "start `lowtide up`, or `lowtide process` against it", Err: err}
	}
	if err != nil {
		return nil, broker.Explain("open stream "+name, err)
	}
	return in, nil
}

// read visits the messages of a stream from a time to another, as the broker received them.
func (s *stream) read(ctx context.Context, name string, subjects []string, from, to time.Time, visit func(jetstream.Msg, *jetstream.MsgMetadata) error) error {
	in, err := s.open(ctx, name)
	if err != nil {
		return err
	}
	last := in.CachedInfo().State.LastSeq
	consumer, err := s.js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &from})
	if err != nil {
		return broker.Explain("read stream "+name, err)
	}
	if info := consumer.CachedInfo(); info != nil && info.NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(pull))
	if err != nil {
		return broker.Explain("read stream "+name, err)
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next(jetstream.NextMaxWait(pullWait))
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, nats.ErrTimeout):
			return broker.Explain("read stream "+name, fmt.Errorf("nothing came for %s", pullWait))
		case err != nil:
			return broker.Explain("read stream "+name, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read place of message: %w", err)
		}
		if !meta.Timestamp.Before(to) || meta.Sequence.Stream > last {
			return nil
		}
		if err := visit(m, meta); err != nil {
			return err
		}
		if meta.NumPending == 0 || meta.Sequence.Stream == last {
			return nil
		}
	}
}

// lane is a producer's lane, of which a sequence is taken once.
type lane struct{ host, producer, lane string }

func (s *stream) events(ctx context.Context, from, to time.Time, visit func(heard) error) error {
	subjects := []string{"lowtide.p.>"}
	if len(s.hosts) > 0 {
		subjects = nil
		for _, host := range s.hosts {
			subjects = append(subjects, "lowtide.p.*."+strings.ReplaceAll(host, "/", ".")+".>")
		}
	}
	batches, taken := event.NewBatchReader(), map[lane]uint64{}
	err := s.read(ctx, event.StreamEvents, subjects, from, to, func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
		batch, _, err := batches.Decode(m.Headers().Get("Content-Type"), m.Data())
		if err == nil {
			if cluster, host, ok := event.SplitSubject(m.Subject()); !ok || cluster != batch.Host.GetCluster() || host != batch.Host.GetName() {
				err = fmt.Errorf("host %s is not the host of subject %s", event.HostKey(batch.Host), m.Subject())
			}
		}
		if err != nil {
			s.refused++ // as the judges do
			return nil
		}
		if batch.Producer != "" {
			key := lane{event.HostKey(batch.Host), batch.Producer, batch.Lane}
			if batch.Sequence <= taken[key] {
				return nil
			}
			taken[key] = batch.Sequence
		}
		for _, e := range batch.Events {
			if err := visit(heard{e, meta.Timestamp.UTC()}); err != nil {
				return err
			}
		}
		return nil
	})
	if s.refused > 0 {
		fmt.Fprintf(s.stderr, "warning: %d messages of the stream cannot be read, and were left out\n", s.refused)
	}
	return err
}

func (s *stream) findings(ctx context.Context, from, to time.Time, visit func(*event.Finding)) error {
	return s.read(ctx, event.StreamFindings, []string{"lowtide.finding.>"}, from, time.Unix(1<<40, 0), func(m jetstream.Msg, _ *jetstream.MsgMetadata) error {
		f, err := event.UnmarshalFinding(m.Data())
		if err != nil || f.Time.Before(from) || !f.Time.Before(to) || len(s.hosts) > 0 && !slices.Contains(s.hosts, f.Labels["cluster"]+"/"+f.Labels["host"]) {
			return nil // what cannot be read was never announced
		}
		visit(f)
		return nil
	})
}
