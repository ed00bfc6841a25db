package backtest

import (
	"hash/fnv"
	"time"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/rules"
)

// Absence is judged by the passing of time, as by the live judges: told every so often, and not for a while after a time in which nobody
// was heard, since the hosts come back one by one.
const (
	tickEvery = 30 * time.Second
	tickGap   = 5 * tickEvery
	tickRest  = 10 * time.Minute
)

// court judges one set of rules: a judge for each partition, as live. It is for one goroutine.
type court struct {
	pack    *rules.Pack
	board   *processor.Board
	judges  map[uint32]*processor.Judge
	docket  *docket
	asked   *uint64
	spent   time.Duration // processor time
	clock   time.Time
	ticked  time.Time
	resting time.Time // until then nobody is missed
}

func newCourt(pack *rules.Pack, d *docket) *court {
	return &court{pack: pack, board: processor.NewBoard(), judges: map[uint32]*processor.Judge{}, docket: d, asked: rules.CountConditions(pack)}
}

// partitionOf puts a host where the broker does: FNV-1a of cluster and name.
func partitionOf(h *event.Host) uint32 {
	sum := fnv.New32a()
	sum.Write([]byte(h.GetCluster() + h.GetName()))
	return sum.Sum32() % event.PartitionCount
}

// hear judges events that follow each other; at is when they were heard.
func (c *court) hear(batch []heard) {
	for _, one := range batch {
		c.pass(one.at)
		n := partitionOf(one.event.Host)
		judge := c.judges[n]
		if judge == nil {
			judge = processor.NewJudgeWith(c.pack, c.board, c.docket.take)
			c.judges[n] = judge
		}
		judge.Apply(one.event)
	}
}

// pass does what the passing of time asks for.
func (c *court) pass(now time.Time) {
	if !now.After(c.clock) {
		return
	}
	if !c.clock.IsZero() && now.Sub(c.clock) > tickGap {
		c.resting = now.Add(tickRest)
	}
	c.clock = now
	if now.Sub(c.ticked) < tickEvery || now.Before(c.resting) {
		return
	}
	c.ticked = now
	for n := range uint32(event.PartitionCount) {
		if judge := c.judges[n]; judge != nil {
			judge.Tick(now)
		}
	}
}

// close ends the ticks that are being put together.
func (c *court) close() {
	for n := range uint32(event.PartitionCount) {
		if judge := c.judges[n]; judge != nil {
			judge.Flush()
		}
	}
}
