package processor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/rules"
)

// Options of NewJudges and Run. JS and Pack are required.
type Options struct {
	JS         jetstream.JetStream
	Pack       *rules.Pack // until Adopt is given another
	Log        *slog.Logger
	Partitions int          // that Run judges; 0 is all of them
	Evidence   *Asker       // nil: no host is asked for evidence
	Labels     Labels       // that are added to what is watched; none in commands that only look
	Shelf      *event.Shelf // where the store finds what is decoded; nil without one
}

// pace is how often a partition does what it does.
type pace struct {
	beat  time.Duration // between two looks at what is due
	save  time.Duration // between two checkpoints
	idle  time.Duration // without a delivery, until the stream itself is looked at
	stall time.Duration // without one although there is something
	look  time.Duration // between two looks at the streams
	show  time.Duration // and at the durable consumers, which are many
	share time.Duration // between two readings of the others' shares of the board
	sweep time.Duration // between two sweeps of blobs
}

func usual() pace {
	return pace{beat: time.Second, save: time.Minute, idle: 10 * time.Second, stall: 15 * time.Second, look: 10 * time.Second, show: 30 * time.Second, share: time.Minute, sweep: time.Hour}
}

// readyAge is how old what was saved last may be of a partition that is well.
const readyAge = 5 * time.Minute

// Judges are the partitions that one process judges, and what they share: the board on which workers of one model are compared,
// the advice to routers, and the archive of saved states. It is a prometheus.Collector.
type Judges struct {
	options  Options
	pace     pace
	board    *Board
	verdicts *Verdicts
	archive  *archive
	shares   jetstream.KeyValue
	pack     atomic.Pointer[rules.Pack] // that is to be judged by
	abrupt   atomic.Bool                // tests: partitions end as if the process had been killed

	mu      sync.Mutex
	running map[int]*partition
	stood   standing
	feed    *feed              // of those that run
	quit    context.CancelFunc // of the goroutines that read and look, which run while a partition does
	looked  chan struct{}      // closed when it has ended
}

// standing is where the streams stood when somebody last asked.
type standing struct {
	asked       time.Time
	first, last uint64
	at          time.Time // broker's time of the newest event, of whatever partition
	findings    uint64
}

// NewJudges opens what the partitions share. broker.Ensure must have made it.
func NewJudges(ctx context.Context, o Options) (*Judges, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	verdicts, err := OpenVerdicts(ctx, o.JS, time.Now)
	if err != nil {
		return nil, err
	}
	archive, err := openArchive(ctx, o.JS)
	if err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(ctx, archiveWait)
	defer cancel()
	shares, err := o.JS.KeyValue(opening, broker.BucketPeers)
	if err != nil {
		return nil, broker.Explain("open bucket "+broker.BucketPeers, err)
	}
	all := &Judges{options: o, pace: usual(), board: NewBoard(), verdicts: verdicts, archive: archive, shares: shares, running: make(map[int]*partition)}
	all.pack.Store(o.Pack)
	return all, nil
}

// Run judges one partition until ctx ends, and returns nil then, after its state was saved for who comes next. The fence grows with
// every owner of the partition; 0 stands for the one after that of the last. The error wraps ErrFenced when a later owner has claimed
// the partition: nothing was acknowledged since.
func (all *Judges) Run(ctx context.Context, number int, fence uint64) error {
	if number < 0 || number >= event.PartitionCount {
		return fmt.Errorf("judge partition %d: there are 0 to %d", number, event.PartitionCount-1)
	}
	o := all.options
	o.Pack = all.pack.Load()
	p := newPartition(number, o, all.board, all.verdicts)
	p.all, p.pace = all, all.pace
	if err := all.enter(ctx, p); err != nil {
		return err
	}
	defer all.leave(p)
	o.Shelf.Judged(number, true)
	defer o.Shelf.Judged(number, false)
	defer func() { p.judge.Leave() }()
	err := p.begin(ctx, fence)
	if err == nil && ctx.Err() == nil {
		// Spread over the time between two checkpoints, so that not all partitions upload at once.
		if p.saving.due.IsZero() {
			p.saving.due = p.now().Add(p.pace.save * time.Duration(number%event.PartitionCount+1) / event.PartitionCount)
		}
		if p.saving.fresh.IsZero() {
			p.saving.fresh = p.now() // nothing is saved; from now on it is late
		}
		p.measure()
		err = p.follow(ctx)
		if err == nil && !all.abrupt.Load() {
			return p.finish(ctx)
		}
	}
	p.drop()
	return err
}

// enter makes a partition one of those that run; the first starts the goroutines that read the events and look at the streams.
func (all *Judges) enter(ctx context.Context, p *partition) error {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.running[p.number] != nil {
		return fmt.Errorf("judge partition %d: this process judges it already", p.number)
	}
	if len(all.running) == 0 {
		looking, quit := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan struct{}) // its own: all partitions may come back while the last one's end is waited for
		all.quit, all.looked = quit, ended
		f := newFeed(all.options.JS, all.options.Log)
		all.feed = f
		go func() {
			defer close(ended)
			var feeding sync.WaitGroup
			feeding.Go(func() { f.run(looking) })
			all.watch(looking)
			feeding.Wait()
		}()
	}
	p.feed = all.feed
	all.running[p.number] = p
	return nil
}

// leave ends a partition; the last waits for the goroutines that read and look.
func (all *Judges) leave(p *partition) {
	all.mu.Lock()
	delete(all.running, p.number)
	last, ended := len(all.running) == 0, all.looked
	if last {
		all.quit()
	}
	all.mu.Unlock()
	if last {
		<-ended
	}
}

// Ready returns nil when every partition that is judged here has caught up, and what was saved of it is not older than five minutes;
// else which is not.
func (all *Judges) Ready() error {
	now := time.Now()
	var failed []error
	for _, p := range all.partitions() {
		g := p.gauge.read()
		switch {
		case !g.caught:
			failed = append(failed, fmt.Errorf("partition %d is catching up", p.number))
		case now.Sub(g.fresh) > readyAge:
			failed = append(failed, fmt.Errorf("partition %d was saved %s ago", p.number, now.Sub(g.fresh).Round(time.Second)))
		}
	}
	return errors.Join(failed...)
}

// Run judges all partitions until ctx ends, each in its own goroutine, as their only owner. A message is acknowledged after the
// findings it caused are stored and the state that holds it is saved.
func Run(ctx context.Context, o Options) error {
	all, err := NewJudges(ctx, o)
	if err != nil {
		return err
	}
	return all.runAll(ctx)
}

func (all *Judges) runAll(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	partitions := all.options.Partitions
	if partitions == 0 {
		partitions = event.PartitionCount
	}
	var running sync.WaitGroup
	for p := range partitions {
		running.Go(func() {
			if err := all.Run(ctx, p, 0); err != nil {
				stop(fmt.Errorf("judge partition %d: %w", p, err))
			}
		})
	}
	if all.options.Evidence != nil {
		running.Go(func() { all.options.Evidence.Run(ctx) })
	}
	running.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
