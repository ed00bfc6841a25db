package ownership

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/processor/broker"
)

// view is what this processor sees of all: who lives, who should have which seat, and who has it.
type view struct {
	self    string
	session string
	clock   func() time.Duration
	pace    pace
	log     *slog.Logger
	metrics *Metrics
	again   [2]chan struct{} // to the watches of members and of leases: begin anew

	mu     sync.Mutex
	roster *roster
	places map[string]*place // role.seat
	seen   time.Duration     // when a new heartbeat of our own came back to us
	own    uint64            // its revision
	blind  bool              // none did for long: nothing of the others' silence follows from ours
	asked  time.Duration
}

// place is one seat as it is seen.
type place struct {
	role   string
	seat   int
	owner  string        // who should have it
	poke   chan struct{} // something about it changed
	lease  lease         // who had it last; zero after it was given back
	revise uint64        // the revision of that
}

func newView(o Options, clock func() time.Duration, roles []Role) *view {
	v := &view{
		self: o.Member, clock: clock, pace: o.pace, log: o.Log, metrics: o.Metrics, again: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)},
		roster: newRoster(o.Member, o.Alone, o.pace.expiry), places: make(map[string]*place), blind: true,
	}
	for _, r := range roles {
		for n := range r.Seats {
			v.places[seatKey(r.Name, n)] = &place{role: r.Name, seat: n, poke: make(chan struct{}, 1)}
		}
	}
	return v
}

func seatKey(role string, seat int) string { return role + "." + strconv.Itoa(seat) }

// run looks until ctx ends.
func (v *view) run(ctx context.Context, members, leases jetstream.KeyValue) {
	var watching sync.WaitGroup
	defer watching.Wait()
	for _, w := range []*watch{
		{kv: members, pace: v.pace, log: v.log, again: v.again[0], each: v.heard},
		{kv: leases, pace: v.pace, log: v.log, again: v.again[1], each: v.leased},
	} {
		watching.Go(func() { w.run(ctx) })
	}
	for broker.Wait(ctx, v.pace.beat/4) {
		v.pass()
	}
}

// heard takes a change of the bucket of members.
func (v *view) heard(entry jetstream.KeyValueEntry) {
	name, now := entry.Key(), v.clock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if entry.Operation() != jetstream.KeyValuePut {
		if v.roster.left(name, entry.Revision()) {
			v.log.Info("processor left", "processor", name)
			v.share()
		}
		return
	}
	m, err := decodeMember(entry.Value())
	if err != nil {
		v.log.Warn("heartbeat of another processor is not understood", "processor", name, "error", err)
		return
	}
	if name == v.self && m.Session == v.session && entry.Revision() > v.own {
		v.own, v.seen = entry.Revision(), now
		if v.blind {
			v.blind = false
			v.roster.blink(now)
		}
	}
	before := v.roster.seen[name]
	lived := before != nil && !before.dead
	if v.roster.see(name, entry.Revision(), m, now) {
		if !lived && name != v.self {
			v.log.Info("processor joined", "processor", name, "version", m.Version)
		}
		v.share()
	}
}

// leased takes a change of the bucket of seats.
func (v *view) leased(entry jetstream.KeyValueEntry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.places[entry.Key()]
	if p == nil || entry.Revision() <= p.revise {
		return // of a role that is not ours, or read again
	}
	p.lease, p.revise = lease{}, entry.Revision()
	if entry.Operation() == jetstream.KeyValuePut {
		if l, err := decodeLease(entry.Value()); err == nil {
			p.lease = l
		}
	}
	p.call()
}

// pass lets time pass: the silent are given up, unless it is us who hear nothing.
func (v *view) pass() {
	now := v.clock()
	v.mu.Lock()
	defer v.mu.Unlock()
	if silence := 3 * v.pace.beat; v.blind || now-v.seen > silence {
		v.blind = true
		if now-v.asked > silence+v.pace.request {
			v.asked = now
			for _, again := range v.again { // what befell one may have befallen the other, which is silent by nature
				call(again)
			}
		}
		return
	}
	if died := v.roster.pass(now); len(died) > 0 {
		v.log.Warn("processors fell silent; their seats are taken over", "processors", died, "silence", v.pace.expiry)
		v.share()
	}
}

// share says anew who should have what. The lock is held.
func (v *view) share() {
	v.metrics.meet(v.roster.living())
	for _, p := range v.places {
		if name := owner(v.roster.candidates(p.role, p.seat), p.role, p.seat); name != p.owner {
			p.owner = name
			p.call()
		}
	}
}

func (p *place) call() { call(p.poke) }

// call wakes who listens, or will.
func call(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (v *view) callAll() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range v.places {
		p.call()
	}
}

// place returns what never changes of a seat: where it is called.
func (v *view) place(key string) *place { return v.places[key] }

// ours tells whether this processor should have a seat.
func (v *view) ours(p *place) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.owner == v.self
}

// taken tells whether somebody took a seat, or it was given back, after we had it with this fence.
func (v *view) taken(p *place, fence uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return p.revise > fence
}

// stray returns the revision of a lease in our name, 0 when there is none.
func (v *view) stray(p *place) uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p.lease.Member == v.self && p.lease.Session == v.session {
		return p.revise
	}
	return 0
}

// holds tells whether the holder of a lease may still be at work.
func (v *view) holds(l lease) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.roster.holds(l, v.clock())
}
