package sim

import (
	"math"
	"time"
)

// pool is a place where something can stay behind.
type pool uint8

const (
	inLive     pool = iota // tensors
	inAwaiting             // freed blocks that another stream still holds
	inGraphs               // private pools of CUDA graphs
	inOutside              // allocations of the process that PyTorch does not know
	inAnon                 // host memory
	inPinned               // page-locked host memory
	inFds
	inSockets // half-closed; each is also a descriptor
	inThreads
	inKV     // tokens whose blocks nothing frees
	inUnfit  // pieces of segments that are in use and too small for anything
	allPools // how many there are
)

// growth is one thing that stays behind, with the work or the time that leaves it. Amounts are bytes, tokens or counts.
type growth struct {
	into       pool
	perHour    float64
	perRequest float64 // finished ones
	perAbort   float64
	lump       float64       // comes in lumps of about this; 0 comes evenly
	from       time.Duration // since the world's start
	until      time.Duration // 0 is for ever
	cap        float64       // nothing more stays once as much has; 0 has no end
	tau        time.Duration // instead of the rates: fills up to cap with this time constant while there is work

	kept float64
}

// step returns what stayed behind in one tick.
func (g *growth) step(c chance, w work, since, dt time.Duration) float64 {
	if since < g.from || g.until > 0 && since >= g.until {
		return 0
	}
	mean := g.perHour*dt.Hours() + g.perRequest*w.finished + g.perAbort*w.aborted
	if g.tau > 0 {
		if w.finished == 0 {
			return 0
		}
		if mean = (g.cap - g.kept) * (1 - math.Exp(-float64(dt)/float64(g.tau))); g.kept > 0.985*g.cap {
			mean = g.cap - g.kept // it has an end
		}
	}
	if mean <= 0 {
		return 0
	}
	amount := mean * c.between(0.8, 1.2)
	if g.lump > 0 {
		if amount = c.poisson(mean/g.lump) * g.lump; g.lump > 1 {
			amount *= c.between(0.85, 1.15)
		}
	}
	if g.cap > 0 {
		amount = math.Min(amount, g.cap-g.kept)
	}
	g.kept += amount
	return amount
}
