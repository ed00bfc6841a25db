package sim

import "lowtide/event"

// lateness makes a recording arrive as a bad network delivers it: some events late, some out of order, some twice.
type lateness struct {
	late, twice float64 // parts of all events
	ticks       int     // most by which an event is late
	waiting     []delayed
	send        func(*event.Event)
}

type delayed struct {
	ticks int
	event *event.Event
}

// disturb puts the network between the hosts and who listens.
func (w *world) disturb(late, twice float64, ticks int) {
	n := &lateness{late: late, twice: twice, ticks: ticks}
	w.network = n
	w.every(func() {
		due := n.waiting
		n.waiting = nil
		for _, d := range due {
			if d.ticks--; d.ticks > 0 {
				n.waiting = append(n.waiting, d)
				continue
			}
			n.send(d.event)
		}
	})
}

func (n *lateness) pass(w *world, e *event.Event) {
	if w.happens(n.late) {
		n.waiting = append(n.waiting, delayed{w.whole(1, n.ticks), e})
		return
	}
	n.send(e)
	if w.happens(n.twice) {
		n.waiting = append(n.waiting, delayed{w.whole(1, n.ticks), e})
	}
}

// flushLate delivers what is still on its way.
func (w *world) flushLate() {
	if w.network == nil {
		return
	}
	for _, d := range w.network.waiting {
		w.network.send(d.event)
	}
	w.network.waiting = nil
}
