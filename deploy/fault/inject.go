package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"lowtide/event"
)

// inject lets the faults of the plan happen, each at its time, and returns when all have healed.
func (w *world) inject(ctx context.Context, told func(string)) error {
	began := time.Now()
	var faults sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, f := range w.plan.Faults {
		faults.Go(func() {
			if f.Kind == ClockJump || !pause(ctx, f.At-time.Since(began)) {
				return // a clock has jumped in the recordings
			}
			told(fmt.Sprintf("%6.2fs %s begins", time.Since(began).Seconds(), f.Kind))
			err := w.happen(ctx, f)
			told(fmt.Sprintf("%6.2fs %s is over", time.Since(began).Seconds(), f.Kind))
			if err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("%s: %w", f.Kind, err))
				mu.Unlock()
			}
		})
	}
	faults.Wait()
	return errors.Join(errs...)
}

// happen does one fault and heals it. Faults of one process wait for each other.
func (w *world) happen(ctx context.Context, f Fault) error {
	processor := w.processors[f.Target%len(w.processors)]
	collector := w.collectors[f.Target%len(w.collectors)]
	node := w.nodes[f.Target%len(w.nodes)]
	hold := func(c *child) func() { c.turn.Lock(); return c.turn.Unlock }
	switch f.Kind {
	case KillProcessor:
		defer hold(processor.child)()
		processor.kill()
		pause(ctx, f.For)
		return processor.start()
	case KillEngine:
		defer hold(w.engine)()
		w.engine.kill()
		pause(ctx, f.For)
		return w.engine.start()
	case KillBroker:
		defer hold(node.child)()
		node.kill()
		pause(ctx, f.For)
		return node.start()
	case KillCollector:
		defer hold(collector.child)()
		w.broken(collector)
		err := collector.keepSpool(w.folder)
		pause(ctx, f.For)
		return errors.Join(err, w.play(collector))
	case StopProcessor:
		defer hold(processor.child)()
		processor.signal(syscall.SIGSTOP)
		pause(ctx, f.For)
		processor.signal(syscall.SIGCONT)
	case CutCollector:
		collector.proxy.cut(f.For > time.Second)
		pause(ctx, f.For)
		collector.proxy.heal()
	case CutProcessor:
		processor.broker.cut(f.For > time.Second)
		pause(ctx, f.For)
		processor.broker.heal()
	case SlowCollector:
		collector.proxy.slow(300 * time.Millisecond)
		pause(ctx, f.For)
		collector.proxy.heal()
	case SlowProcessor:
		processor.broker.slow(150 * time.Millisecond)
		pause(ctx, f.For)
		processor.broker.heal()
	case HalfOpenCollector:
		collector.proxy.strand()
	case HalfOpenProcessor:
		processor.broker.strand()
	case StoreSlow, StoreError, StoreLost, StoreParts:
		for _, p := range w.processors {
			p.store.set(f.Kind)
		}
		pause(ctx, f.For)
		for _, p := range w.processors {
			p.store.set("")
		}
	case SlackLimit, SlackError, SlackLost, SlackHang:
		w.slack.set(f.Kind)
		pause(ctx, f.For)
		w.slack.set("")
	case Repeat:
		return w.repeat(ctx, f)
	case DiskBroker:
		return node.fillUp(ctx, f.For)
	case DiskSpool:
		return w.fillSpool(ctx, collector, f.For)
	default:
		return fmt.Errorf("fault %s is not known", f.Kind)
	}
	return nil
}

// fillUp fills a server's disk. Once there is room again somebody starts the server anew, since it gives JetStream up when a write fails.
func (n *node) fillUp(ctx context.Context, d time.Duration) error {
	n.turn.Lock()
	defer n.turn.Unlock()
	if err := n.disk.fill(); err != nil {
		return err
	}
	pause(ctx, d)
	err := n.disk.free()
	n.kill()
	return errors.Join(err, n.start())
}

// repeats is how many messages are published again.
const repeats = 20

// repeat publishes messages that the stream holds once more, without the id by which the broker would know them, as a collector does
// that sends from its spool after the broker's window for duplicates. While the broker is away nothing is repeated.
func (w *world) repeat(ctx context.Context, f Fault) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, js, err := w.dial()
	if err != nil {
		return nil
	}
	defer conn.Close()
	stream, err := js.Stream(ctx, event.StreamEvents)
	if err != nil {
		return nil
	}
	collector, err := w.dialAs("collector")
	if err != nil {
		return nil
	}
	defer collector.Close()
	last := stream.CachedInfo().State.LastSeq
	for i := range min(last, repeats) {
		m, err := stream.GetMsg(ctx, 1+(uint64(f.At)+i*7)%last)
		if err != nil {
			return nil
		}
		parts := strings.SplitN(m.Subject, ".", 4) // lowtide.p.PARTITION.CLUSTER.HOST.SOURCE, which was lowtide.event.CLUSTER.HOST.SOURCE
		if len(parts) == 4 {
			if err := collector.Publish("lowtide.event."+parts[3], m.Data); err != nil {
				return nil
			}
		}
	}
	_ = collector.FlushWithContext(ctx)
	return nil
}

// fillSpool fills the disk of a collector's spool while it cannot reach the broker.
func (w *world) fillSpool(ctx context.Context, c *playing, d time.Duration) error {
	if c.disk == nil {
		c = w.collectors[0] // which has a spool
	}
	c.turn.Lock()
	defer c.turn.Unlock()
	c.proxy.cut(true)
	defer c.proxy.heal()
	if err := c.disk.fill(); err != nil {
		return err
	}
	pause(ctx, d)
	return c.disk.free()
}
