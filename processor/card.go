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
	index     *int64 // nil until the card tells it
	wholly    *card  // whole's answer, and of which layout
	wholeAt   int
	home      *host
	kept      bool // in the host's cards
	users     []*watched
	sample    *variable.Sample
	answers   answers
	heard     time.Duration // of the host's time
	related   []string
	relatedAt int

	tick                 time.Time // that is being put together
	open                 bool
	gpu                  *event.Gpu // of this tick; nil while only its processes were told
	before               *event.Gpu // whose errors are in the sample
	sum                  float64    // of the memory of its processes
	hidden               bool       // one of them did not tell
	faults               history
	corrected, uncorrect counter
	rows                 counter
	orphan               orphan
	version              int // of orphan's variables; grows when one changes
}

func (h *host) card(uuid string) *card {
	for i := range h.near.all {
		if one := &h.near.all[i]; one.uuid == uuid && one.is != nil {
			one.is.heard = h.elapsed
			return one.is
		}
	}
	c := h.cards[uuid]
	if c == nil {
		c = &card{key: h.key + "/" + uuid, uuid: uuid, home: h, sample: variable.NewSample(), relatedAt: -1, wholeAt: -1}
		c.sample.SetString(cardIDs.cluster, h.name.cluster)
		c.sample.SetString(cardIDs.host, h.name.name)
		h.label(c.sample)
		if len(h.cards) < maxCards { // beyond that somebody makes names up, and nothing is remembered
			h.cards[uuid], c.kept = c, true
			h.layout++
		}
	}
	c.heard = h.elapsed
	if c.kept {
		h.near.add(c)
	}
	return c
}

// nearest are the cards of the newest events of devices; a host tells of all of them in turn.
type nearest struct {
	all [8]struct {
		uuid string
		is   *card
	}
	next uint8
}

func (n *nearest) add(c *card) {
	one := &n.all[n.next%uint8(len(n.all))]
	one.uuid, one.is = c.uuid, c
	n.next++
}

// card returns a card of the worker's host that is remembered, nil for another one.
func (w *watched) card(uuid string) *card {
	if len(w.cards) > 0 && w.cards[0].uuid == uuid && w.cards[0].kept {
		return w.cards[0] // most workers have one
	}
	return w.home.cards[uuid]
}

func (h *host) sortedCards() []*card {
	all := make([]*card, 0, len(h.cards))
	for _, c := range h.cards {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *card) int { return strings.Compare(a.key, b.key) })
	return all
}

// place takes over where the card is, which tells whose part an instance is.
func (c *card) place(g *event.Gpu) {
	if g.Index != nil && (c.index == nil || *c.index != *g.Index) {
		c.index = g.Index
		c.home.layout++
	}
}

const part = "MIG-" // begins the name of an instance of a divided card

// whole is the card that this one is an instance of: the one that its name tells, the one of its index, else the only one there
// is. Nil for a whole card, and where nobody knows.
func (c *card) whole() *card {
	if !strings.HasPrefix(c.uuid, part) {
		return nil
	}
	if c.wholeAt != c.home.layout {
		c.wholly, c.wholeAt = c.findWhole(), c.home.layout
	}
	return c.wholly
}

func (c *card) findWhole() *card {
	name, _, _ := strings.Cut(strings.TrimPrefix(c.uuid, part), "/")
	if named := c.home.cards[name]; named != nil {
		return named
	}
	if c.index == nil {
		return c.home.onlyCard()
	}
	var found *card
	for _, other := range c.home.cards {
		if !strings.HasPrefix(other.uuid, part) && other.index != nil && *other.index == *c.index && (found == nil || other.uuid < found.uuid) {
			found = other
		}
	}
	return found
}

// onlyCard returns the card of a host that has one; nil where it has more, or none that is known.
func (h *host) onlyCard() (only *card) {
	for _, c := range h.cards {
		if strings.HasPrefix(c.uuid, part) {
			continue
		}
		if only != nil {
			return nil
		}
		only = c
	}
	return only
}

// faulty finds the card that an error is of. The kernel names the bus address only; where there is one card, that is enough.
func (h *host) faulty(x *event.Xid) *card {
	if x.GpuUuid != "" {
		return h.card(x.GpuUuid)
	}
	return h.onlyCard()
}

// onlyCardOf returns the card of a process that uses one.
func (h *host) onlyCardOf(who *event.Worker) *card {
	if len(who.GpuUuids) != 1 {
		return nil
	}
	return h.cards[who.GpuUuids[0]]
}

// everyone uses the card, or an instance of it.
func (c *card) everyone() []*watched {
	if strings.HasPrefix(c.uuid, part) {
		return c.users
	}
	all := c.users
	for _, other := range c.home.sortedParts() {
		if other.whole() == c {
			all = append(slices.Clip(all), other.users...)
		}
	}
	return all
}

func (h *host) sortedParts() []*card {
	var all []*card
	for _, c := range h.cards {
		if strings.HasPrefix(c.uuid, part) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *card) int { return strings.Compare(a.key, b.key) })
	return all
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
	if d := event.Ago(c.tick, at); d >= 0 && d < setBack {
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
	if !c.open || next.Equal(c.tick) || next.Before(c.tick) && !next.IsZero() && event.Ago(c.tick, next) < setBack {
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
	at := c.tick
	g, s := c.gpu, c.sample
	if !c.calm() {
		c.before = g
		c.closeErrors(at)
	}
	if g.Utilization != nil {
		s.SetNumber(cardIDs.utilization, *g.Utilization)
	} else {
		s.Unset(cardIDs.utilization)
	}
	c.closeOrphan(at)
}

// closeErrors computes what the card's counters say.
func (c *card) closeErrors(at time.Time) {
	g, s := c.gpu, c.sample
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
	c.tellFaults(at)
}

// calm says that the card tells of the errors that it told of in the tick before, and that nothing is wrong with it that would age.
func (c *card) calm() bool {
	a, b := c.before, c.gpu
	return a != nil && c.faults.first == 0 && c.uncorrect.rise == 0 && equal(a.EccCorrectedTotal, b.EccCorrectedTotal) && equal(a.EccUncorrectedTotal, b.EccUncorrectedTotal) &&
		equal(a.RemappedRows, b.RemappedRows) && equal(a.RemapPending, b.RemapPending)
}

// equal compares what may not have been read.
func equal[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

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
	if j.unmoved(j.perCard, &c.answers, c.sample, c.key) {
		c.sample.Settle()
		return
	}
	v := view{kind: "gpu", subject: c.key, key: c.key, at: at, sample: c.sample, host: c.home}
	if users := present(c.users, at); len(users) == 1 {
		v.w = users[0] // only where it is nobody else's
	}
	v.related = c.relatives(j)
	j.ask(j.perCard, &c.answers, &v)
	c.sample.Settle()
}
