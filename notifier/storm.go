package notifier

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lowtide/event"
)

// When many incidents are new at once, a message for each would arrive over minutes, a second apart, and bury the first. From stormAt
// that wait they are told in one message, the digest, which is edited as more come and as they end. It is a record of the outbox like
// that of an incident, so that it is posted, healed after a crash and kept up to date by the same code.
const (
	stormAt    = 10               // first news that wait: ten seconds of messages
	stormQuiet = 10 * time.Minute // after which a storm without a new incident is over: the next one has a message of its own
	stormPace  = 10               // least time between two edits of a digest, in intervals of its medium
	stormMost  = 2000             // members of one message; the next one begins another
	stormBytes = maxRecord / 2    // of a record from which on another one is begun
	maxName    = 256              // bytes of a member's class, release and host
	stormShown = 20               // incidents that a digest names
	stormID    = "storm-"
	stormClass = "storm"
)

// member is what a message says of one of the incidents that it tells about.
type member struct {
	Class    string    `json:"class"`
	State    string    `json:"state"`
	Severity string    `json:"severity"`
	Subject  string    `json:"subject"` // the slot, where there is one
	Release  string    `json:"release,omitempty"`
	Host     string    `json:"host,omitempty"`
	Masked   int       `json:"masked,omitzero"`
	First    time.Time `json:"first"`
}

func memberOf(h History) member {
	f := h.Latest
	return member{Class: event.Shorten(f.Class, maxName), State: f.State, Severity: f.Severity, Subject: clip(cmp.Or(f.Slot, f.Subject.Key), 160), Release: event.Shorten(f.Release, maxName),
		Host: event.Shorten(hostOf(f), maxName), Masked: f.MaskedRestarts, First: h.First.Time}
}

// bytes is about what the member takes in the bucket.
func (m member) bytes(incident string) int {
	return len(incident) + len(m.Class) + len(m.Subject) + len(m.Release) + len(m.Host) + 192
}

// filled says that the record tells about as many as it may.
func (r *record) filled() bool { return len(r.members) >= stormMost || r.size >= stormBytes }

// weather takes a record that was found at the start as the storm that goes on, if it is one.
func (d *desk) weather(r *record) {
	if !r.digest() || d.o.Now().Sub(r.joined) > stormQuiet || r.filled() {
		return
	}
	d.storms[r.routed()] = r.history.Latest.Incident
}

// shelter keeps the message up to date that tells about an incident beside others, and lets a new one join its like, or else the storm
// that goes on. An incident that becomes a page once its storm is over, or while its like are silenced, gets a message of its own.
func (d *desk) shelter(ctx context.Context, r *record) error {
	if r.digest() {
		return nil
	}
	if r.storm != "" {
		e, err := d.home(ctx, r.storm)
		switch {
		case err != nil:
			return err
		case e == nil: // it was forgotten, long after it ended
			r.storm = ""
			return nil
		}
		was := e.record.members[r.history.Latest.Incident]
		over := e.record.digest() && d.storms[e.record.routed()] != r.storm || !e.record.digest() && d.look(e.record).now.Silenced != ""
		if r.history.Latest.Severity == event.Page && was.Severity != event.Page && over {
			if err := d.leave(ctx, e, r.history.Latest.Incident); err != nil {
				return err
			}
			r.storm = "" // last: a crash in between leaves it with nobody, and its finding, which comes again, comes here again
			return nil
		}
		return d.join(ctx, e, r)
	}
	if !d.news(r) {
		return nil
	}
	if joined, err := d.accompany(ctx, r); joined || err != nil {
		return err
	}
	routed := d.wanted(r)
	id := d.storms[routed]
	if id == "" || r.members != nil {
		return nil
	}
	e, err := d.home(ctx, id)
	if err != nil {
		return err
	}
	if e == nil || d.o.Now().Sub(e.record.joined) > stormQuiet || e.record.filled() {
		delete(d.storms, routed)
		return nil
	}
	r.storm = id
	return d.join(ctx, e, r)
}

// news says that nobody was told of the incident yet, and that it is to be told.
func (d *desk) news(r *record) bool {
	for _, delivery := range r.deliveries {
		if delivery.Status != untold {
			return false
		}
	}
	s := d.look(r)
	for _, out := range d.outlets {
		if step, _ := d.decide(r, s, out); step == Post {
			return true
		}
	}
	return false
}

// gather makes a digest of the first news that wait, when they are many and go to the same places.
func (d *desk) gather(ctx context.Context) error {
	waiting := map[string][]*entry{}
	for _, e := range d.pending {
		if e.record.members == nil && !e.stale && !e.unsaved && d.news(e.record) {
			routed := d.wanted(e.record)
			waiting[routed] = append(waiting[routed], e)
		}
	}
	for _, routed := range slices.Sorted(maps.Keys(waiting)) {
		if len(waiting[routed]) < stormAt {
			continue
		}
		if err := d.digest(ctx, routed, waiting[routed]); err != nil {
			return err
		}
	}
	return nil
}

func (d *desk) digest(ctx context.Context, routed string, waiting []*entry) error {
	slices.SortFunc(waiting, func(a, b *entry) int {
		return cmp.Or(a.since.Compare(b.since), strings.Compare(a.record.history.Latest.Incident, b.record.history.Latest.Incident))
	})
	id := stormID + waiting[0].record.history.Latest.Incident // the same after a crash in the middle of this
	storm, err := d.box.load(ctx, id)
	if err != nil {
		return err
	}
	if storm.members == nil {
		storm.members = map[string]member{}
	}
	size := storm.size
	for i, e := range waiting {
		incident, m := e.record.history.Latest.Incident, memberOf(e.record.history)
		if size += m.bytes(incident); i > 0 && (size > stormBytes || len(storm.members) >= stormMost) {
			waiting = waiting[:i] // the others wait for the next one
			break
		}
		storm.members[incident] = m
	}
	storm.joined = d.o.Now()
	storm.outputs = strings.Split(routed, ",")
	storm.retell(id)
	if err := d.box.save(ctx, storm); err != nil {
		return err
	}
	d.storms[routed] = id
	d.put(storm)
	d.o.Log.Warn("a storm: new incidents are told in one message", "incidents", len(waiting), "digest", id)
	for _, e := range waiting {
		e.record.storm = id
		e.seen = nil
		if err := d.box.save(ctx, e.record); err != nil {
			e.record.storm, e.stale = "", true // it stays on the desk: told twice is better than not at all
			return err
		}
		d.unlead(e.record)
		delete(d.pending, keyOf(e.record.history.Latest.Incident))
	}
	return nil
}

// home returns the entry of the record whose message tells about others, from the bucket when it is not on the desk; nil when there is
// no such record.
func (d *desk) home(ctx context.Context, id string) (*entry, error) {
	if e := d.pending[keyOf(id)]; e != nil {
		if e.stale {
			if err := d.reload(ctx, e); err != nil {
				return nil, err
			}
		}
		return e, nil
	}
	r, err := d.box.load(ctx, id)
	if err != nil || r.history.Latest == nil {
		return nil, err
	}
	return &entry{record: r, since: d.o.Now()}, nil
}

// adopt finishes what a crash cut off: what a digest names already gets no message of its own.
func (d *desk) adopt(ctx context.Context) error {
	for _, routed := range slices.Sorted(maps.Keys(d.storms)) {
		storm, err := d.home(ctx, d.storms[routed])
		if err != nil {
			return err
		}
		for key, e := range d.pending {
			r := e.record
			if _, named := storm.record.members[r.history.Latest.Incident]; !named || !d.news(r) {
				continue
			}
			r.storm, e.seen = d.storms[routed], nil
			if err := d.box.save(ctx, r); err != nil {
				return err
			}
			delete(d.pending, key)
		}
	}
	return nil
}

// join writes what is known of an incident into the record whose message tells about it.
func (d *desk) join(ctx context.Context, e *entry, r *record) error {
	incident, id := r.history.Latest.Incident, e.record.history.Latest.Incident
	was, known := e.record.members[incident]
	joined, history := e.record.joined, e.record.history
	now := memberOf(r.history)
	if now == was {
		return nil
	}
	if e.record.members == nil {
		e.record.members = map[string]member{}
	}
	e.record.members[incident] = now
	if !known {
		e.record.joined = d.o.Now()
	}
	if e.record.digest() {
		e.record.retell(id)
	}
	e.seen = nil
	if err := d.box.save(ctx, e.record); err != nil {
		if e.record.joined, e.record.history = joined, history; known {
			e.record.members[incident] = was
		} else {
			delete(e.record.members, incident)
		}
		e.stale = true
		return err
	}
	e.unsaved = false
	d.follow(e.record)
	if d.due(e.record) {
		d.pending[keyOf(id)] = e
	}
	return nil
}

// retell gives a digest the finding that its members make together: open while one of them is, as severe as the worst of these.
func (r *record) retell(id string) {
	f := &event.Finding{Incident: id, ID: fmt.Sprintf("%s/%d", id, r.revision), Class: stormClass, State: event.Resolved, Severity: event.Ticket}
	first := time.Time{}
	for _, m := range r.members {
		if first.IsZero() || m.First.Before(first) {
			first = m.First
		}
		if m.State == event.Resolved {
			continue
		}
		f.State = event.Suspected
		if m.Severity == event.Page {
			f.Severity = event.Page
		}
	}
	f.Time = first
	if !r.joined.IsZero() {
		f.Time = r.joined
	}
	r.history.Latest = f
	if r.history.First == nil {
		opening := *f
		opening.Time = first
		r.history.First = &opening
	}
	if f.State != event.Resolved {
		r.history.Case = f
	}
}

// stormCard counts the incidents of a digest by class, and names the worst.
func stormCard(r *record) Card {
	f := r.history.Latest
	type group struct {
		class    string
		all      int
		open     int
		pages    int
		releases map[string]int
		hosts    map[string]bool
	}
	groups := map[string]*group{}
	ids := make([]string, 0, len(r.members))
	open, pages := 0, 0
	for id, m := range r.members {
		ids = append(ids, id)
		g := groups[m.Class]
		if g == nil {
			g = &group{class: m.Class, releases: map[string]int{}, hosts: map[string]bool{}}
			groups[m.Class] = g
		}
		g.all++
		if m.Release != "" {
			g.releases[m.Release]++
		}
		g.hosts[m.Host] = true
		if m.State == event.Resolved {
			continue
		}
		open++
		g.open++
		if m.Severity == event.Page {
			pages++
			g.pages++
		}
	}
	c := Card{Incident: f.Incident, Class: f.Class, State: f.State, Severity: f.Severity, FirstSeen: r.history.First.Time, Changed: f.Time, Finding: f,
		Title:   fmt.Sprintf("storm of %d incidents · %d open, %d of them pages", len(r.members), open, pages),
		Summary: "Many incidents began at once. They are told here instead of one by one; each is in the store, and one that becomes a page later gets a message of its own."}
	classes := make([]*group, 0, len(groups))
	for _, g := range groups {
		classes = append(classes, g)
	}
	slices.SortFunc(classes, func(a, b *group) int { return cmp.Or(b.pages-a.pages, b.all-a.all, strings.Compare(a.class, b.class)) })
	for _, g := range classes {
		value := fmt.Sprintf("%d, %d open, %d pages, on %d hosts", g.all, g.open, g.pages, len(g.hosts))
		if release, n := most(g.releases); n > 0 {
			value += fmt.Sprintf("; %d of release %s", n, release)
		}
		c.Where = append(c.Where, Line{g.class, value})
	}
	slices.SortFunc(ids, func(a, b string) int {
		x, y := r.members[a], r.members[b]
		return cmp.Or(worst(x)-worst(y), x.First.Compare(y.First), strings.Compare(a, b))
	})
	for i, id := range ids {
		if i == stormShown {
			c.Evidence = append(c.Evidence, Line{"and more", fmt.Sprintf("%d incidents", len(ids)-i)})
			break
		}
		m := r.members[id]
		c.Evidence = append(c.Evidence, Line{m.Class, m.Subject + ", " + m.Severity + " " + m.State})
	}
	c.Next = []string{fmt.Sprintf(`lowtide sql "SELECT time, class, severity, state, subject_key, summary FROM incidents FINAL WHERE onset >= '%s' OR time >= '%s' ORDER BY severity, class, time"`,
		c.FirstSeen.UTC().Format(time.DateTime), c.FirstSeen.UTC().Format(time.DateTime))}
	return c
}

// worst orders members: open pages, open tickets, what is over.
func worst(m member) int {
	switch {
	case m.State == event.Resolved:
		return 2
	case m.Severity == event.Page:
		return 0
	}
	return 1
}

func most(of map[string]int) (name string, n int) {
	for one, count := range of {
		if count > n || count == n && one < name {
			name, n = one, count
		}
	}
	return name, n
}
