package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// chance draws everything that is left to chance; the same seed and stream give the same draws.
type chance struct{ *rand.Rand }

func newChance(seed, stream uint64) chance { return chance{rand.New(rand.NewPCG(seed, stream))} }

func (c chance) between(low, high float64) float64 { return low + (high-low)*c.Float64() }

// spread draws between two positive bounds, as likely in each factor of two.
func (c chance) spread(low, high float64) float64 {
	return low * math.Exp(c.Float64()*math.Log(high/low))
}

func (c chance) whole(low, high int) int { return low + c.IntN(high-low+1) }

func (c chance) happens(p float64) bool { return c.Float64() < p }

// poisson draws a count; above 30 the normal distribution stands in for it.
func (c chance) poisson(mean float64) float64 {
	switch {
	case mean <= 0:
		return 0
	case mean > 30:
		return math.Max(0, math.Round(mean+math.Sqrt(mean)*c.NormFloat64()))
	}
	n, p, limit := 0.0, c.Float64(), math.Exp(-mean)
	for p > limit {
		p *= c.Float64()
		n++
	}
	return n
}

// part draws how many of n things happen, each with probability p.
func (c chance) part(n, p float64) float64 {
	switch {
	case n <= 0 || p <= 0:
		return 0
	case p >= 1:
		return n
	case n <= 12:
		k := 0.0
		for range int(n) {
			if c.Float64() < p {
				k++
			}
		}
		return k
	case n*p < 10:
		return math.Min(n, c.poisson(n*p))
	case n*(1-p) < 10:
		return n - math.Min(n, c.poisson(n*(1-p)))
	}
	return math.Min(n, math.Max(0, math.Round(n*p+math.Sqrt(n*p*(1-p))*c.NormFloat64())))
}

// wander is noise that remembers: an autoregressive process of order one around zero (facts of trend detection, 6: quiet levels
// are not independent).
type wander struct {
	value float64
	sigma float64       // of the values
	keeps time.Duration // after which a deviation has fallen to 1/e

	dt         time.Duration // that rho and fresh are for
	rho, fresh float64
}

func (w *wander) step(c chance, dt time.Duration) float64 {
	if w.sigma == 0 {
		return 0
	}
	if dt != w.dt {
		w.dt, w.rho = dt, math.Exp(-float64(dt)/float64(w.keeps))
		w.fresh = math.Sqrt(1 - w.rho*w.rho)
	}
	w.value = w.rho*w.value + w.fresh*w.sigma*c.NormFloat64()
	return w.value
}
