package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lowtide/processor/broker"
)

const (
	restEvery = 10 * time.Minute // how often it is saved how far a silent partition was looked through
	firstWait = 30 * time.Second // for how long what an idle moment brought is kept back until it is saved
	lastWait  = 5 * time.Second  // for the end of the work
)

// saving is what of a partition was saved, and what is being.
type saving struct {
	hold    *hold
	running chan outcome // of the checkpoint that is under way; nil when none is
	cancel  context.CancelFunc
	saved   uint64    // the newest event of the newest saved state
	through uint64    // and how far it looked
	fresh   time.Time // when nothing was unsaved last
	rested  time.Time // when it was saved last
	due     time.Time // of the next
	unsaved int       // events applied since the last state was taken
	floor   uint64    // what followed from unsaved events lies behind it in the findings' stream
	next    uint64    // the floor of the next checkpoint
	told    bool      // that it cannot be saved

	oldest  time.Time // broker's time of the oldest event that is not saved; zero: there is none
	younger time.Time // and of the oldest that the state under way does not hold

	count int
	took  time.Duration // the last
	bytes int
}

// hear takes note of an event that is not saved. Of one that was seen to before this process began nobody is late.
func (s *saving) hear(at time.Time, before bool) {
	s.unsaved++
	if before {
		return
	}
	if s.younger.IsZero() {
		s.younger = at
	}
	if s.oldest.IsZero() {
		s.oldest = at
	}
}

// outcome is how a checkpoint ended.
type outcome struct {
	image image
	took  time.Duration
	err   error
}

// image turns the partition into what is saved of it. It is called between two events.
func (p *partition) image() (image, error) {
	judge, err := p.judge.Save()
	if err != nil {
		return image{}, fmt.Errorf("save judge of partition %d: %w", p.number, err)
	}
	state, err := encodeEnvelope(p.ledger(), judge)
	if err != nil {
		return image{}, err
	}
	share, err := p.judge.Share()
	if err != nil {
		return image{}, err
	}
	s := image{state: state, sequence: p.applied, through: max(p.applied, p.reading.through), findings: p.saving.floor, stream: p.stream.CachedInfo().Created, at: p.now(), share: share}
	p.saving.unsaved, p.saving.younger = 0, time.Time{}
	p.saving.due = p.now().Add(p.pace.save)
	// One checkpoint later, so that it holds for a processor too that believes a while longer that it has the partition.
	p.saving.floor, p.saving.next = max(p.saving.floor, p.saving.next), p.all.findings()
	return s, nil
}

// start saves the state while events go on, unless that is under way.
func (p *partition) start(ctx context.Context) {
	if p.saving.running != nil {
		return
	}
	s, err := p.image()
	if err != nil {
		p.unsaved(err)
		return
	}
	// The end of the work does not cut it off: what is half uploaded would be left behind.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uploadWait)
	running := make(chan outcome, 1)
	p.saving.running, p.saving.cancel = running, cancel
	go func() { // settle or drop waits for it
		defer cancel()
		running <- p.upload(ctx, s)
	}()
}

// drop ends the checkpoint that is under way, and waits for its end.
func (p *partition) drop() {
	if p.saving.running != nil {
		p.saving.cancel()
		<-p.saving.running
		p.saving.running = nil
	}
}

func (p *partition) upload(ctx context.Context, s image) outcome {
	began := p.now()
	err := p.saving.hold.save(ctx, s)
	if err == nil {
		p.all.publishShare(ctx, p.number, s.share)
	}
	return outcome{image: s, took: p.now().Sub(began), err: err}
}

// settle takes the end of a checkpoint. What is saved is acknowledged by whoever looks at the consumers, a few seconds later.
func (p *partition) settle(done outcome) error {
	p.saving.running = nil
	if done.err != nil {
		if errors.Is(done.err, ErrFenced) {
			return done.err
		}
		p.unsaved(done.err)
		return nil
	}
	if p.saving.told {
		p.log.Info("saving again")
	}
	s := &p.saving
	s.told, s.saved, s.through, s.took, s.bytes = false, done.image.sequence, done.image.through, done.took, len(done.image.state)
	s.fresh, s.rested, s.count = done.image.at, done.image.at, s.count+1
	s.oldest = s.younger
	p.announce.verified = p.now()
	return nil
}

func (p *partition) unsaved(err error) {
	if !p.saving.told {
		p.log.Warn("state not saved, trying again", "error", err)
	}
	p.saving.told = true
	p.saving.due = p.now().Add(min(p.pace.save, 10*retryAfter))
}

// saveNow saves the state and waits for it.
func (p *partition) saveNow(ctx context.Context) error {
	if p.saving.running != nil {
		select {
		case done := <-p.saving.running:
			if err := p.settle(done); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s, err := p.image()
	if err != nil {
		return err
	}
	done := p.upload(ctx, s)
	if err := p.settle(done); err != nil {
		return err
	}
	return done.err
}

// stale says that the newest saved state is not what the partition is now.
func (p *partition) stale() bool {
	return p.applied != p.saving.saved || p.saving.unsaved > 0 || len(p.findings) > 0
}

// keep does what is due between two messages.
func (p *partition) keep(ctx context.Context) error {
	if err := p.swap(ctx); err != nil {
		return err
	}
	if p.saving.running != nil {
		select {
		case done := <-p.saving.running:
			if err := p.settle(done); err != nil {
				return err
			}
		default:
		}
	}
	now := p.now()
	stale := p.stale()
	if !stale && p.saving.running == nil {
		if now.Sub(p.saving.rested) >= restEvery && p.reading.through > p.saving.through {
			stale = true
		} else {
			p.saving.fresh = now
		}
	}
	if stale && !now.Before(p.saving.due) {
		p.start(ctx)
	}
	if now.Sub(p.reading.heard) >= p.pace.idle {
		if err := p.idle(ctx); err != nil {
			return err
		}
	}
	if p.applied >= p.reading.target {
		p.reading.caught = true
	}
	if p.announce.known != nil && max(p.applied, p.reading.through) >= p.announce.until {
		p.announce.known = nil
	}
	p.advise(ctx)
	p.measure()
	return nil
}

// finish saves the state for who comes next, as far as the broker answers, and ends.
func (p *partition) finish(ctx context.Context) error {
	if !p.js.Conn().IsConnected() {
		p.drop()
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWait)
	defer cancel()
	if p.saving.running != nil {
		select {
		case done := <-p.saving.running:
			if err := p.settle(done); err != nil {
				return err
			}
		case <-ctx.Done():
			p.drop()
			return nil
		}
	}
	if err := p.publish(ctx); errors.Is(err, ErrFenced) {
		return err
	}
	if p.stale() {
		if err := p.saveNow(ctx); err != nil {
			if errors.Is(err, ErrFenced) {
				return err
			}
			p.log.Warn("last state not saved; whoever takes the partition over reads what came since the one before", "error", err)
			return nil
		}
	}
	if through := p.acknowledged(); through > 0 {
		if err := broker.Acknowledge(ctx, p.js, p.number, through); err != nil {
			p.log.Debug("the consumer stays where it is", "error", err)
		}
	}
	return nil
}

// acknowledged is up to where nothing has to be judged again; the durable consumer shows it.
func (p *partition) acknowledged() uint64 { return max(p.saving.saved, p.reading.past) }

// keepBack saves what an idle moment brought before it is announced: it followed from the time, not from an event, and would not follow again in
// the same way when the events are read again. When it cannot be saved for a while it is announced all the same.
func (p *partition) keepBack(ctx context.Context) error {
	until := p.now().Add(firstWait)
	for {
		err := p.saveNow(ctx)
		if err == nil || errors.Is(err, ErrFenced) || ctx.Err() != nil {
			return err
		}
		p.unsaved(err)
		if p.now().After(until) {
			return nil
		}
		broker.Wait(ctx, retryAfter)
	}
}
