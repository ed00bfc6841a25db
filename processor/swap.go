package processor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"lowtide/event"
	"lowtide/rules"
)

// ruling is by which rules a partition judges; other goroutines ask it.
type ruling struct {
	mu     sync.Mutex
	asked  *rules.Pack // the newest set that the partition was to judge by
	failed error       // why it judges by the one before all the same
	swaps  int
	took   time.Duration // the last, from the event before to when the next could be judged
}

// Adopt makes a set of rules the one that is judged by: each partition takes it over between two events, within a second or two, and keeps what
// it knows; RestoreJudge says what becomes of open incidents. What was saved under other rules, here or by who had the partition before, is read in the same
// way. A partition that cannot take it over goes on by the rules that it has.
func (all *Judges) Adopt(pack *rules.Pack) { all.pack.Store(pack) }

// Adopted returns how many of the partitions that run here do not judge by a set yet that was given to Adopt, and whether one never will: then
// an error says which, and why.
func (all *Judges) Adopted(pack *rules.Pack) (behind int, failed error) {
	for _, p := range all.partitions() {
		r := &p.ruling
		r.mu.Lock()
		switch {
		case r.asked != pack:
			behind++
		case r.failed != nil && failed == nil:
			failed = fmt.Errorf("partition %d goes on by the rules that it had: %w", p.number, r.failed)
		}
		r.mu.Unlock()
	}
	return behind, failed
}

// swap takes over the rules that Adopt was given last. Events wait meanwhile, and nothing is lost. What follows from the change itself, such
// as the end of an incident whose rule is gone, follows from no event: it is saved before it is announced.
func (p *partition) swap(ctx context.Context) error {
	pack := p.all.pack.Load()
	if pack == nil || pack == p.ruling.asked { // written by this goroutine alone
		return nil
	}
	began := p.now()
	told, err := p.takeOver(pack)
	p.ruling.mu.Lock()
	p.ruling.asked, p.ruling.failed = pack, err
	if err == nil {
		p.ruling.swaps, p.ruling.took = p.ruling.swaps+1, p.now().Sub(began)
	}
	p.ruling.mu.Unlock()
	if err != nil {
		p.log.Error("the new rules are not judged by; going on with those of before", "error", err)
		return nil
	}
	p.saving.unsaved++ // a state of the new rules is another one
	if !told {
		// Soon, so that little is judged twice by different rules should this processor die; and not all partitions at once.
		if due := p.now().Add(p.pace.save / 6 * time.Duration(p.number) / event.PartitionCount); due.Before(p.saving.due) {
			p.saving.due = due
		}
		return nil
	}
	if err := p.keepBack(ctx); err != nil {
		return err
	}
	return p.publishAll(ctx)
}

// takeOver replaces the judge by one of other rules that knows the same; after an error it is the same judge. It says whether anything is to be
// announced because of it.
func (p *partition) takeOver(pack *rules.Pack) (told bool, err error) {
	parts, err := p.judge.write()
	if err != nil {
		return false, err
	}
	before := len(p.findings)
	next, err := readJudge(pack, p.board, p.emit, parts)
	if err != nil {
		return false, fmt.Errorf("restore judge: %w", err)
	}
	p.judge.Leave() // what it told the board is the word of its successor by now
	p.hire(next)
	return len(p.findings) > before, nil
}
