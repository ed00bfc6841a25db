package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// partitions returns those that run here, in order.
func (all *Judges) partitions() []*partition {
	all.mu.Lock()
	defer all.mu.Unlock()
	some := make([]*partition, 0, len(all.running))
	for _, p := range all.running {
		some = append(some, p)
	}
	slices.SortFunc(some, func(a, b *partition) int { return cmp.Compare(a.number, b.number) })
	return some
}

// stand returns where the streams stood when somebody last asked.
func (all *Judges) stand() standing {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.stood
}

// findings returns a place in the stream of findings behind which everything lies that is announced from now on.
func (all *Judges) findings() uint64 { return all.stand().findings }

// watch looks at the streams, the consumers, the others' shares of the board and forgotten blobs, until ctx ends. It is the only one
// that asks the broker for what is counted.
func (all *Judges) watch(ctx context.Context) {
	log := all.options.Log
	told := map[string]bool{}
	try := func(what string, do func(context.Context) error) {
		err := do(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && !told[what]:
			log.Warn("cannot "+what+", trying again", "error", err)
			told[what] = true
		case err == nil:
			told[what] = false
		}
	}
	var shared, swept, shown time.Time
	tick := time.NewTicker(all.pace.look)
	defer tick.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		try("look at the streams", all.look)
		if now.Sub(shared) >= all.pace.share {
			shared = now
			try("read what other processors say of their workers", all.readShares)
		}
		if now.Sub(swept) >= all.pace.sweep {
			swept = now
			try("sweep saved states", func(ctx context.Context) error {
				n, err := all.archive.sweep(ctx, orphanAge)
				if n > 0 {
					log.Info("saved states that nobody names were deleted", "messages", n)
				}
				return err
			})
		}
		if now.Sub(shown) >= all.pace.show {
			shown = now
			try("look at the consumers", all.examine)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// look asks where the streams stand.
func (all *Judges) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	findings, err := all.options.JS.Stream(ctx, event.StreamFindings)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", event.StreamFindings, err)
	}
	asked := time.Now()
	events, err := all.options.JS.Stream(ctx, event.StreamEvents)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", event.StreamEvents, err)
	}
	state := events.CachedInfo().State
	all.mu.Lock()
	defer all.mu.Unlock()
	all.stood = standing{asked: asked, first: state.FirstSeq, last: state.LastSeq, at: state.LastTime, findings: findings.CachedInfo().State.LastSeq}
	return nil
}

// examine lets the durable consumers show what is saved, and asks how much waits behind it.
func (all *Judges) examine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*lookWait)
	defer cancel()
	some := all.partitions()
	stands, err := all.consumers(ctx)
	if err != nil {
		return err
	}
	moved := false
	for _, p := range some {
		acknowledged := p.gauge.read().acknowledged
		info := stands[broker.JudgeName(p.number)]
		if acknowledged == 0 || info != nil && info.AckFloor.Stream == acknowledged {
			continue // it has just come here, or nothing is new
		}
		if err := broker.Acknowledge(ctx, all.options.JS, p.number, acknowledged); err != nil {
			return err
		}
		moved = true
	}
	if moved {
		if stands, err = all.consumers(ctx); err != nil {
			return err
		}
	}
	for _, p := range some {
		if info := stands[broker.JudgeName(p.number)]; info != nil {
			if err := all.examineOne(ctx, p, info); err != nil {
				return err
			}
		}
	}
	return nil
}

// consumers returns all of the event stream, by name.
func (all *Judges) consumers(ctx context.Context) (map[string]*jetstream.ConsumerInfo, error) {
	stream, err := all.options.JS.Stream(ctx, event.StreamEvents)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", event.StreamEvents, err)
	}
	stands := make(map[string]*jetstream.ConsumerInfo)
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		stands[info.Name] = info
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("read consumers of %s: %w", event.StreamEvents, err)
	}
	return stands, nil
}

func (all *Judges) examineOne(ctx context.Context, p *partition, info *jetstream.ConsumerInfo) error {
	f := far{asked: time.Now(), pending: info.NumPending + uint64(info.NumAckPending), floor: info.AckFloor.Stream}
	if f.pending > 0 {
		f.first = all.stand().first
		if f.oldest = p.gauge.read().oldest; f.oldest.IsZero() { // it has judged none of them
			stream, err := all.options.JS.Stream(ctx, event.StreamEvents)
			if err != nil {
				return fmt.Errorf("read stream %s: %w", event.StreamEvents, err)
			}
			oldest, err := stream.GetMsg(ctx, max(f.floor+1, f.first), jetstream.WithGetMsgSubject(p.subjects()))
			if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
				return fmt.Errorf("read the oldest event of partition %d: %w", p.number, err)
			}
			if oldest != nil {
				f.oldest = oldest.Time
			}
		}
	}
	p.gauge.see(f)
	return nil
}

// publishShare puts a partition's share of the board where other processors read it. It is advice: what fails is made good by the next.
func (all *Judges) publishShare(ctx context.Context, partition int, share []byte) {
	if len(share) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, archiveWait)
	defer cancel()
	if _, err := all.shares.Put(ctx, strconv.Itoa(partition), share); err != nil {
		all.options.Log.Debug("share of the board not published", "partition", partition, "error", err)
	}
}

// readShares takes the shares of all partitions onto the board, which knows whose words are newer than those.
func (all *Judges) readShares(ctx context.Context) (failed error) {
	ctx, cancel := context.WithTimeout(ctx, 2*lookWait)
	defer cancel()
	watcher, err := all.shares.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("read shares of the board: %w", err)
	}
	defer func() { _ = watcher.Stop() }() // it was read to its end, or the broker is away
	for {
		select {
		case one, open := <-watcher.Updates():
			if !open || one == nil {
				return failed
			}
			if one.Operation() != jetstream.KeyValuePut {
				continue
			}
			if err := all.board.Take(one.Value()); err != nil {
				failed = errors.Join(failed, fmt.Errorf("share of partition %s: %w", one.Key(), err)) // of another build, most likely
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
