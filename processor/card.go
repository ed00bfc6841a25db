package processor

import (
	"slices"
	"strings"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

const (
	episode      = time.Hour       // errors of one trouble of a card come within this time of each other
	afterEffect  = 5 * time.Minute // what the device suffers so soon after a program's error may be owed to that
	memoryOfCard = 24 * time.Hour  // an error that is older, with none after it, is history
	maxCards     = 512             // of one host, instances of divided ones counted
)

// cardIDs are the variables of a card, found once.
var cardIDs = struct {
	first, last, count, application, device                                        variable.ID
	uncorrected, corrected, eccFirst, rows, pending, utilization, cluster, host    variable.ID
	now, level, growth, low, high, z, early, steady, isLevel, filling, step, ratio variable.ID
}{
	variable.Must("xid.first"), variable.Must("xid.last"), variable.Must("xid.count"), variable.Must("xid.application"), variable.Must("symptom.device"),
	variable.Must("ecc.uncorrected_delta"), variable.Must("ecc.corrected_delta"), variable.Must("ecc.first"), variable.Must("remap.rows_delta"),
	variable.Must("remap.pending"), variable.Must("utilization.now"), variable.Must("cluster"), variable.Must("host"),
	variable.Must("orphan.now"), variable.Must("orphan.level_bytes"), variable.Must("orphan.growth"), variable.Must("orphan.growth_low"),
	variable.Must("orphan.growth_high"), variable.Must("orphan.z"), variable.Must("orphan.early"), variable.Must("orphan.steady"),
	variable.Must("orphan.level"), variable.Must("orphan.filling"), variable.Must("orphan.step"), variable.Must("orphan.ratio"),
}

// card is one device, or one instance of a divided one.
type card struct {
	key, uuid string
	home      *host
	users     []*watched
	sample    *variable.Sample
	answers   answers
	heard     time.Duration // of the host's time
	related   []string
	relatedAt int

	tick                 time.Time // that is being put together
	open                 bool
	gpu                  *event.Gpu // of this tick; nil while only its processes were told
	sum                  float64    // of the memory of its processes
	hidden               bool       // one of them did not tell
	faults               history
	corrected, uncorrect counter
	rows                 counter
	orphan               orphan
	version              int // of orphan's variables; grows when one changes
}

func (h *host) card(uuid string) *card {
	c := h.cards[uuid]
	if c == nil {
		c = &card{key: h.key + "/" + uuid, uuid: uuid, home: h, sample: variable.NewSample(), relatedAt: -1}
		c.sample.SetString(cardIDs.cluster, h.name.cluster)
		c.sample.SetString(cardIDs.host, h.name.name)
		if len(h.cards) < maxCards { // beyond that somebody makes names up, and nothing is remembered
			h.cards[uuid] = c
		}
	}
	c.heard = h.elapsed
	return c
}

func (h *host) sortedCards() []*card {
	all := make([]*card, 0, len(h.cards))
	for _, c := range h.cards {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *card) int { return strings.Compare(a.key, b.key) })
	return all
}

// sweepCards forgets cards of which nothing was heard for hours, and on which nothing runs.
func (j *Judge) sweepCards(h *host) {
	for _, c := range h.sortedCards() {
		if len(c.users) == 0 && h.elapsed-c.heard > forget && len(j.incidents.Open(c.key)) == 0 {
			delete(h.cards, c.uuid)
		}
	}
}

// device takes what the card says of itself in the tick that is open.
func (c *card) device(at time.Time, g *event.Gpu) {
	if c.begin(at) {
		c.gpu = g
	}
}

// process takes what one process holds of it.
func (c *card) process(at time.Time, p *event.GpuProcess) {
	if !c.begin(at) {
		return
	}
	if p.UsedBytes == nil {
		c.hidden = true
		return
	}
	c.sum += float64(*p.UsedBytes)
}

// begin opens the tick of a moment. It returns false for what is late, unless the host's clock was set back.
func (c *card) begin(at time.Time) bool {
	if c.open && at.Equal(c.tick) {
		return true
	}
	if d := c.tick.Sub(at); d >= 0 && d < setBack {
		return false
	}
	c.tick, c.open, c.gpu, c.sum, c.hidden = at, true, nil, 0, false
	return true
}

// fault takes an error of the device, as it comes.
func (c *card) fault(at time.Time, x *event.Xid) {
	c.faults.observe(at, x, c.uncorrect.rise > 0)
	c.tellFaults(at)
}

// closeCard ends the card's open tick once something of another moment comes; zero ends it whatever it is.
func (j *Judge) closeCard(c *card, next time.Time) {
	if !c.open || next.Equal(c.tick) || next.Before(c.tick) && !next.IsZero() && c.tick.Sub(next) < setBack {
		return
	}
	c.open = false
	if c.gpu == nil {
		return
	}
	c.close()
	j.judgeCard(c, c.tick)
}

// close computes the card's variables at the end of a tick.
func (c *card) close() {
	g, s, at := c.gpu, c.sample, c.tick
	c.corrected.observe(g.EccCorrectedTotal)
	before := c.uncorrect.rise
	c.uncorrect.observe(g.EccUncorrectedTotal)
	if c.uncorrect.rise > before {
		c.uncorrect.at = at
	}
	c.rows.observe(g.RemappedRows)
	if c.uncorrect.rise > 0 && !within(at, c.uncorrect.at, memoryOfCard) {
		c.uncorrect.rise, c.corrected.rise, c.rows.rise = 0, 0, 0
	}
	c.corrected.tell(s, cardIDs.corrected)
	c.uncorrect.tell(s, cardIDs.uncorrected)
	c.rows.tell(s, cardIDs.rows)
	if g.RemapPending != nil {
		s.SetBool(cardIDs.pending, *g.RemapPending)
	} else {
		s.Unset(cardIDs.pending)
	}
	if g.Utilization != nil {
		s.SetNumber(cardIDs.utilization, *g.Utilization)
	} else {
		s.Unset(cardIDs.utilization)
	}
	c.tellFaults(at)
	c.closeOrphan(at)
}

// tellFaults sets the card's errors. Where the card is read, none is a known answer: else no incident would ever end.
func (c *card) tellFaults(at time.Time) {
	s, f := c.sample, &c.faults
	f.age(at)
	recent := f.times.within(at, pairing)
	s.SetNumber(cardIDs.count, float64(recent))
	if f.first == 0 {
		s.Unset(cardIDs.first)
		s.Unset(cardIDs.last)
		s.SetBool(cardIDs.application, false)
		s.SetBool(cardIDs.device, false)
		if c.uncorrect.known {
			s.SetBool(cardIDs.eccFirst, c.uncorrect.rise > 0)
		}
		return
	}
	application := event.ApplicationXid(f.first)
	s.SetNumber(cardIDs.first, float64(f.first))
	s.SetNumber(cardIDs.last, float64(f.last))
	s.SetBool(cardIDs.application, application)
	s.SetBool(cardIDs.device, !application && recent > 0)
	if c.uncorrect.known {
		s.SetBool(cardIDs.eccFirst, f.afterECC)
	}
}

// history is the errors of one trouble of a card, in their order: the first one counts, since others follow from it.
type history struct {
	first, last uint64 // codes; zero when there is none
	times       moments
	afterECC    bool // uncorrected errors had been counted before the first
}

func (f *history) observe(at time.Time, x *event.Xid, ecc bool) {
	code := event.CauseXid(x)
	if code == 0 || event.InformationalXid(code) {
		return
	}
	switch {
	case f.first == 0, !within(at, f.times.newest(), episode),
		event.ApplicationXid(f.first) && !event.ApplicationXid(code) && !within(at, f.times.newest(), afterEffect):
		f.first, f.afterECC = code, ecc
	}
	f.last = code
	f.times.add(at)
}

func (f *history) age(at time.Time) {
	if f.first != 0 && !within(at, f.times.newest(), memoryOfCard) {
		*f = history{}
	}
}

// counter is one of a card's totals since it is watched; one that falls was reset.
type counter struct {
	last  uint64
	rise  uint64
	known bool
	at    time.Time // of the newest rise
}

func (c *counter) observe(total *uint64) {
	if total == nil {
		return
	}
	if c.known && *total > c.last {
		c.rise += *total - c.last
	}
	c.last, c.known = *total, true
}

func (c *counter) tell(s *variable.Sample, id variable.ID) {
	if c.known {
		s.SetNumber(id, float64(c.rise))
	}
}

// judgeCard asks the rules about the card.
func (j *Judge) judgeCard(c *card, at time.Time) {
	v := view{kind: "gpu", subject: c.key, key: c.key, at: at, sample: c.sample, host: c.home}
	if users := present(c.users, at); len(users) == 1 {
		v.w = users[0] // only where it is nobody else's
	}
	v.related = c.relatives(j)
	j.ask(j.perCard, &c.answers, v)
	c.sample.Settle()
}

// relatives are the slots of those that use the card: what the device did explains what they suffer.
func (c *card) relatives(j *Judge) []string {
	if c.relatedAt == j.epoch {
		return c.related
	}
	c.related, c.relatedAt = nil, j.epoch
	for _, w := range c.users {
		if !slices.Contains(c.related, w.Slot) {
			c.related = append(c.related, w.Slot)
		}
	}
	return c.related
}
