package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/bench"
	"lowtide/processor/broker"
	"lowtide/rules"
	"lowtide/sink"
)

// The fleet of the stages: enough of it that no cache holds it all, and few enough that it is measured in seconds.
const (
	stageHosts   = 64
	stageWorkers = 8
	stageMost    = 5 * time.Minute // of all of them
	blockTicks   = 8               // ticks of the stage fleet in a block: about as many rows as the store puts into one
)

// stages measures each stage alone, one after another in this process while nothing else of the pipeline works.
func (r *benchRun) stages(ctx context.Context) error {
	ctx, cancel := within(ctx, stageMost, "the stages alone")
	defer cancel()
	data := filepath.Join(r.Data, "stages")
	server, err := broker.Start(ctx, broker.Options{StoreDir: data, Listen: "127.0.0.1:0", Token: benchToken, MaxBytes: benchBudget, Log: r.log})
	if err != nil {
		return err
	}
	defer server.Close()
	conn, err := server.Connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("open jetstream: %w", err)
	}
	if err := broker.Ensure(ctx, js, server.Limits()); err != nil {
		return err
	}
	s := &stageRun{benchRun: r, clock: map[string]*stopwatch{}}
	if err := s.inMemory(ctx); err != nil {
		return err
	}
	if err := s.throughBroker(ctx, js); err != nil {
		return err
	}
	if err := s.notify(ctx, js); err != nil {
		return err
	}
	if r.NoStore {
		return nil
	}
	return s.intoClickHouse(ctx)
}

// stopwatch adds up what a stage takes.
type stopwatch struct {
	wall, cpu, engine time.Duration
	done              int
}

type stageRun struct {
	*benchRun
	clock    map[string]*stopwatch
	messages []sink.Message // decoded, of the last blocks
	encoded  []*nats.Msg
	samples  int // in encoded
}

// time runs a piece of a stage that is of so many units.
func (s *stageRun) time(stage string, units int, do func() error) error {
	w := s.clock[stage]
	if w == nil {
		w = new(stopwatch)
		s.clock[stage] = w
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s alone: %w", stage, err)
	}
	w.wall += time.Since(began)
	after, err := s.cpu()
	if err != nil {
		return err
	}
	w.cpu += after.own - before.own
	w.engine += after.engine - before.engine
	w.done += units
	return nil
}

type spent struct{ own, engine time.Duration }

func (s *stageRun) cpu() (spent, error) {
	own, err := bench.OwnCPU()
	if err != nil {
		return spent{}, err
	}
	out := spent{own: own}
	if s.engine != nil {
		u, err := bench.ReadUsage("/proc", s.engine.ChildPID())
		if err != nil {
			return spent{}, err
		}
		out.engine = u.CPU
	}
	return out, nil
}

func (s *stageRun) result(stage, unit, note string) bench.Stage {
	w := s.clock[stage]
	out := bench.Stage{Name: stage, Unit: unit, Note: note}
	if w != nil && w.done > 0 {
		out.PerSecond = float64(w.done) / w.wall.Seconds()
		out.Million = w.cpu.Seconds() * 1e6 / float64(w.done)
		out.Engine = w.engine.Seconds() * 1e6 / float64(w.done)
	}
	return out
}

// inMemory generates, encodes, decodes, judges and joins tick after tick, each a stage of one goroutine.
func (s *stageRun) inMemory(ctx context.Context) error {
	machines := make([]*sim.Machine, stageHosts)
	for n := range machines {
		var err error
		if machines[n], err = sim.NewMachine(sim.MachineOptions{Number: n, Workers: stageWorkers, Seed: s.Seed, Start: time.Now().Add(-benchPast).Truncate(time.Second)}); err != nil {
			return err
		}
	}
	pack, err := rules.Builtin()
	if err != nil {
		return fmt.Errorf("load rules: %w", err)
	}
	reader := event.NewBatchReader()
	judge := processor.NewJudge(pack, func(*event.Finding) {})
	const samples = stageHosts * stageWorkers
	began, sequence := time.Now(), uint64(0)
	for tick := 0; ; tick++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if tick%blockTicks == 0 {
			s.messages, s.encoded, s.samples = s.messages[:0], s.encoded[:0], 0
		}
		var batches []*event.Batch
		if err := s.time("generate", samples, func() error {
			for _, m := range machines {
				batches = append(batches, batchesOf(m.Tick(), &sequence)...)
			}
			return nil
		}); err != nil {
			return err
		}
		first := len(s.encoded)
		if err := s.time("encode", samples, func() error {
			for _, b := range batches {
				msg := nats.NewMsg(event.SubjectFor(b.Host.Cluster, b.Host.Name, b.Source))
				msg.Header.Set(nats.MsgIdHdr, event.MessageID(event.HostKey(b.Host), b.Producer, b.Lane, b.Sequence))
				var err error
				if msg.Data, err = event.EncodeBatch(b); err != nil {
					return err
				}
				s.encoded = append(s.encoded, msg)
			}
			return nil
		}); err != nil {
			return err
		}
		s.samples += samples
		if err := s.time("decode", samples, func() error {
			for _, m := range s.encoded[first:] {
				b, _, err := reader.Decode("", m.Data)
				if err != nil {
					return err
				}
				s.messages = append(s.messages, sink.Message{Sequence: uint64(len(s.messages)), Time: time.Now(), Subject: m.Subject, Batch: b})
			}
			return nil
		}); err != nil {
			return err
		}
		if err := s.time("judge", samples, func() error {
			for _, m := range s.messages[first:] {
				for _, e := range m.Batch.Events {
					judge.Apply(e)
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if tick%blockTicks == blockTicks-1 {
			if err := s.time("join", s.samples, func() error {
				if rows := sink.Join(sink.Block{Token: "x", Messages: s.messages}); len(rows) == 0 {
					return errors.New("no rows")
				}
				return nil
			}); err != nil {
				return err
			}
			if time.Since(began) > 4*s.stageTime {
				break // the last block is whole
			}
		}
	}
	const unit = "worker-samples, one goroutine"
	s.benchRun.result.Stages = append(s.benchRun.result.Stages, s.result("generate", unit, "simulated hosts"), s.result("encode", unit, "event.EncodeBatch, message id"),
		s.result("decode", unit, "event.BatchReader"), s.result("judge", unit, "processor.Judge, rules included"), s.result("join", unit, "sink.Join"))
	return nil
}

// batchesOf makes a message of each lane, as collectors do.
func batchesOf(events []*event.Event, sequence *uint64) []*event.Batch {
	byLane := map[string]*event.Batch{}
	var out []*event.Batch
	for _, e := range events {
		lane := event.Lane(e)
		b := byLane[lane]
		if b == nil {
			*sequence++
			b = &event.Batch{Schema: event.Schema, Host: e.Host, Source: event.AllSources, Producer: "stages", Lane: lane, Sequence: *sequence}
			byLane[lane] = b
			out = append(out, b)
		}
		b.Events = append(b.Events, e)
	}
	return out
}

// throughBroker publishes the last block again and again with ids of its own, and reads it back by partition.
func (s *stageRun) throughBroker(ctx context.Context, js jetstream.JetStream) error {
	const out = 64 // messages in flight: as many hosts, each of which waits for its own
	round := 0
	send := func(publish func(*nats.Msg) error) error {
		round++
		for i, m := range s.encoded {
			again := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: nats.Header{nats.MsgIdHdr: []string{m.Header.Get(nats.MsgIdHdr) + "-" + strconv.Itoa(round) + "-" + strconv.Itoa(i)}}}
			if err := publish(again); err != nil {
				return err
			}
		}
		return nil
	}
	for began := time.Now(); time.Since(began) < s.stageTime; {
		if err := s.time("publish", s.samples, func() error {
			var flying sync.WaitGroup
			slots := make(chan struct{}, out)
			faults := make(chan error, out)
			err := send(func(m *nats.Msg) error {
				select {
				case slots <- struct{}{}:
				case err := <-faults:
					return err
				}
				flying.Go(func() {
					if _, err := js.PublishMsg(ctx, m); err != nil {
						select {
						case faults <- err:
						default:
						}
					}
					<-slots
				})
				return nil
			})
			flying.Wait()
			return err
		}); err != nil {
			return err
		}
	}
	async, err := jetstream.New(js.Conn(), jetstream.WithPublishAsyncMaxPending(4096))
	if err != nil {
		return fmt.Errorf("open jetstream: %w", err)
	}
	for began := time.Now(); time.Since(began) < s.stageTime; {
		if err := s.time("raw publish", len(s.encoded), func() error {
			if err := send(func(m *nats.Msg) error { _, err := async.PublishMsgAsync(m); return err }); err != nil {
				return err
			}
			select {
			case <-async.PublishAsyncComplete():
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}); err != nil {
			return err
		}
	}
	perMessage := float64(s.samples) / float64(len(s.encoded))
	for _, stage := range []struct {
		name, consumer string
		units          float64 // of a message
		decode         bool
	}{{"raw consume", "ceiling", 1, false}, {"read and decode", "reader", perMessage, true}} {
		if err := s.consume(ctx, js, stage.name, stage.consumer, stage.units, stage.decode); err != nil {
			return err
		}
	}
	size := 0
	for _, m := range s.encoded {
		size += len(m.Data)
	}
	note := fmt.Sprintf("messages of %d bytes, of which one is %.2f worker-samples", size/len(s.encoded), perMessage)
	s.benchRun.result.Stages = append(s.benchRun.result.Stages, s.result("publish", "worker-samples, 64 in flight", "encoded before; in process"), s.result("read and decode", "worker-samples, 64 consumers", "AckAll after each pull"))
	s.benchRun.result.Ceilings = append(s.benchRun.result.Ceilings, s.result("JetStream in", "", ""), s.result("JetStream out", "", ""))
	for i, name := range []string{"raw publish", "raw consume"} {
		c := s.result(name, "messages", note)
		c.Name = []string{"JetStream in", "JetStream out"}[i]
		s.benchRun.result.Ceilings[len(s.benchRun.result.Ceilings)-2+i] = c
	}
	return nil
}

// fetchedAtOnce keeps what all partitions ask for at once, messages of 8 KiB, below the 64 MiB behind which the broker gives a client up as too slow.
const fetchedAtOnce = 64

// consume reads the whole stream over a consumer for each partition.
func (s *stageRun) consume(ctx context.Context, js jetstream.JetStream, stage, name string, units float64, decode bool) error {
	consumers := make([]jetstream.Consumer, event.PartitionCount)
	left := make([]uint64, event.PartitionCount)
	total := uint64(0)
	for p := range consumers {
		c, err := js.CreateConsumer(ctx, event.StreamEvents, jetstream.ConsumerConfig{Name: name + "-" + strconv.Itoa(p), FilterSubject: "lowtide.p." + strconv.Itoa(p) + ".>", AckPolicy: jetstream.AckAllPolicy, MaxAckPending: 20000})
		if err != nil {
			return fmt.Errorf("%s alone: %w", stage, err)
		}
		consumers[p], left[p] = c, c.CachedInfo().NumPending
		total += left[p]
	}
	return s.time(stage, int(float64(total)*units), func() error {
		var reading sync.WaitGroup
		faults := make([]error, len(consumers))
		for p, c := range consumers {
			reading.Go(func() {
				reader := event.NewBatchReader()
				for left[p] > 0 && faults[p] == nil {
					messages, err := c.Fetch(int(min(fetchedAtOnce, left[p])), jetstream.FetchMaxWait(30*time.Second))
					if err != nil {
						faults[p] = err
						return
					}
					var last jetstream.Msg
					for m := range messages.Messages() {
						if last = m; decode {
							if _, _, err := reader.Decode("", m.Data()); err != nil {
								faults[p] = err
							}
						}
						left[p]--
					}
					if last == nil {
						faults[p] = errors.Join(errors.New("nothing came"), messages.Error())
						return
					}
					faults[p] = errors.Join(faults[p], last.Ack())
				}
			})
		}
		reading.Wait()
		return errors.Join(faults...)
	})
}
