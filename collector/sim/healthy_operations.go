package sim

import (
	"fmt"
	"math"
	"time"
)

// healthyOperations is what operators do, and what a card does, that looks like trouble and is none.
func healthyOperations() []script {
	return []script{
		{Scenario{Name: "healthy-adapters", Hours: 24, Planted: "adapters are loaded and dropped, at most eight resident, each a step"}, func(w *world) {
			i := w.calm(profile{spare: w.between(8, 12)})
			a := &i.ranks[0].allocator
			a.adapterBytes = math.Floor(w.between(40, 350)) * mib
			w.every(func() {
				if i.phase == up && w.happens(0.02*w.step.Minutes()) {
					a.adapters = min(8, max(0, a.adapters+float64(w.whole(-1, 2))))
				}
			})
		}},
		{Scenario{Name: "healthy-rollout", Hours: 24, Planted: "rollouts: announced by a mark or only by a new release; drained, ended with SIGTERM or of itself, with a bye"}, func(w *world) {
			i := w.calm(profile{})
			j := w.calm(profile{like: i, release: i.release})
			at := w.between(2, 6)
			for n := range w.whole(1, 3) {
				release, marked := fmt.Sprintf("build-next-%d", n), w.happens(0.6)
				w.at(at, func() { i.replaceWhenUp(release, marked) })
				w.at(at+w.between(0.15, 0.6), func() { j.replaceWhenUp(release, marked) })
				at += w.between(4, 7)
			}
		}},
		{Scenario{Name: "healthy-scale", Hours: 24, Planted: "a replica is added by day and taken away, drained, with a bye"}, func(w *world) {
			i := w.calm(profile{})
			j := w.serve(profile{like: i, release: i.release})
			w.at(w.between(2, 8), j.start)
			w.at(w.between(12, 20), func() {
				j.replaceWhenUp(j.release, false)
				j.pause = 100 * 24 * time.Hour
			})
		}},
		{Scenario{Name: "healthy-cotenants", Hours: 24, Planted: "jobs of others come to the same card and go again; what is left is enough"}, func(w *world) {
			i := w.calm(profile{spare: w.between(16, 26)})
			c, spare := i.ranks[0].card, i.spareBytes()
			var guest *tenant
			until := w.between(0.5, 2)
			w.every(func() {
				if w.hour() < until {
					return
				}
				until = w.hour() + w.between(0.1, 3)
				if guest != nil {
					c.leave(guest)
					guest = nil
				} else {
					guest = c.tenant(math.Floor(w.between(0.05, 0.5)*spare/(2*mib)) * 2 * mib)
				}
			})
		}},
		{Scenario{Name: "healthy-sleep", Hours: 24, Planted: "the engine is put to sleep between its busy times: weights go to host memory and come back"}, func(w *world) {
			i := w.calm(profile{})
			i.ranks[0].heap.limit, i.host.memory = 0, 512*gib
			until := w.between(1.5, 3)
			w.every(func() {
				if w.hour() < until || i.phase != up || !i.sleeping && i.engine.running+i.engine.waiting > 0 {
					return
				}
				until = w.hour() + w.between(0.6, 3)
				i.sleep(!i.sleeping)
			})
		}},
		{Scenario{Name: "healthy-remapped", Hours: 24, Planted: "Xid 63: a row was remapped; nothing stopped"}, func(w *world) {
			i := w.calm(profile{})
			c := i.ranks[0].card
			w.at(w.between(2, 20), func() {
				c.remapped++
				c.corrected += float64(w.whole(1, 20))
				c.xid(0.5, 63, nil, "Row Remapper: New row (0x0000000000c5a2f1) marked for remapping, reset gpu to activate.")
			})
		}},
		{Scenario{Name: "healthy-ecc-corrected", Hours: 24, Planted: "ECC errors that the card corrects, a few an hour"}, func(w *world) {
			i := w.calm(profile{})
			c, perHour := i.ranks[0].card, w.between(0.5, 30)
			c.corrected = float64(w.whole(0, 4000))
			w.every(func() { c.corrected += w.poisson(perHour * w.step.Hours()) })
		}},
	}
}

// replaceWhenUp leaves out a rollout that comes while the instance is not up.
func (i *instance) replaceWhenUp(release string, marked bool) {
	if i.phase == up && !i.draining {
		i.replace(release, marked)
	}
}

// sleep releases the weights and the KV pool, or takes them back.
func (i *instance) sleep(now bool) {
	i.sleeping = now
	for _, r := range i.ranks {
		a := &r.allocator
		a.asleep = now
		if now {
			a.pinned += a.weights
			a.flush(&r.left)
		} else {
			a.pinned -= a.weights
		}
	}
}
