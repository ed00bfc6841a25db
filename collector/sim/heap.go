package sim

import (
	"math"
	"time"
)

// heap is the host side of one process: anonymous memory with a garbage collector's saw-tooth, a warm-up that ends, descriptors by
// connections, threads.
type heap struct {
	start     float64       // bytes once everything is imported
	warm      float64       // bytes that warm-up adds
	warmTime  time.Duration // time constant
	records   float64       // bytes by which new longest requests add a little, ever more rarely
	saw       float64       // height of the saw-tooth, bytes
	sawTime   time.Duration // of one tooth
	perSeq    float64       // bytes for a running request
	noise     wander
	shmem     float64
	baseFds   float64
	fdsLimit  float64
	threads   float64
	keepAlive wander // idle connections
	limit     float64
	others    float64 // bytes of other processes in the cgroup

	phase, tooth, warmed, handled float64
	cpu                           float64
	anon, fds, sockets, lively    float64
}

func (h *heap) step(c chance, w work, left *[allPools]float64, loaded float64, dt time.Duration) {
	if w.finished > 0 {
		if h.warm-h.warmed > mib {
			h.warmed += (h.warm - h.warmed) * (1 - math.Exp(-float64(dt)/float64(h.warmTime)))
		}
		h.handled += w.finished
	}
	if h.tooth == 0 {
		h.tooth = c.between(0.7, 1.2)
	}
	pace := 0.05
	if w.finished > 0 {
		pace = 1
	}
	if h.phase += pace * float64(dt) / float64(h.sawTime); h.phase >= 1 {
		h.phase, h.tooth = 0, c.between(0.7, 1.2)
	}
	h.anon = h.start*math.Min(1, 0.1+loaded) + h.warmed + h.records*math.Log1p(h.handled/50) + h.saw*h.tooth*h.phase + w.running*h.perSeq +
		math.Max(0, h.noise.step(c, dt)+2*h.noise.sigma) + left[inAnon]
	h.anon = math.Floor(h.anon/4096) * 4096
	h.sockets = c.poisson(0.3) + math.Floor(left[inSockets])
	h.fds = math.Floor(h.baseFds + w.running + w.waiting + math.Max(0, h.keepAlive.step(c, dt)+2*h.keepAlive.sigma) + left[inFds] + left[inSockets])
	h.fds = math.Min(h.fds, h.fdsLimit)
	h.lively = h.threads + math.Floor(left[inThreads])
	if c.happens(0.3) {
		h.lively++
	}
	h.cpu += dt.Seconds() * (0.04 + 0.01*w.running)
}

func (h *heap) restart() {
	h.phase, h.tooth, h.warmed, h.handled, h.cpu = 0, 0, 0, 0, 0
}
