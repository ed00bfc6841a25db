package sim

import (
	"math"
	"time"
)

// arrivals is the demand on one instance: Poisson around a rate that swings with the hour of the day, comes in bursts that drain,
// and wanders.
type arrivals struct {
	rate     float64       // requests per second while demand is at its usual height
	burst    time.Duration // mean length of a busy phase; zero never pauses
	pause    time.Duration // mean length of the quiet after it, draining included
	depth    float64       // of the day's swing: 0 none, 1 down to nothing at night
	peakHour float64       // of the day's swing
	nights   bool          // no requests at all for a third of the day, opposite to the peak
	swing    wander        // of the logarithm of the rate
	factor   float64       // what a scenario makes of demand; 1 usually
	most     float64       // requests per second that a load balancer lets through; 0 is all

	busy  bool
	until time.Duration // since the world's start, when the phase ends
}

// drainingArrivals drain every quarter of an hour or so, as the recorded workers do.
func drainingArrivals(c chance, rate float64) arrivals {
	return arrivals{
		rate: rate, burst: time.Duration(c.between(9, 26) * float64(time.Minute)), pause: time.Duration(c.between(4.5, 9) * float64(time.Minute)),
		depth: c.between(0, 0.3), peakHour: c.between(0, 24), swing: wander{sigma: c.between(0.05, 0.2), keeps: 20 * time.Minute}, factor: 1,
	}
}

func busyArrivals(c chance, rate float64) arrivals {
	a := drainingArrivals(c, rate)
	a.burst, a.pause = 0, 0
	a.swing = wander{sigma: c.between(0.1, 0.3), keeps: 30 * time.Minute}
	return a
}

// now returns the rate in requests per second at a time since the world's start.
func (a *arrivals) now(c chance, since time.Duration, hour float64, dt time.Duration) float64 {
	swing := math.Exp(a.swing.step(c, dt))
	if a.burst > 0 && since >= a.until {
		a.busy = !a.busy
		length := a.burst
		if !a.busy {
			length = a.pause
		}
		a.until = since + time.Duration(float64(length)*c.between(0.7, 1.3))
	}
	if a.burst > 0 && !a.busy {
		return 0
	}
	day := math.Cos((hour - a.peakHour) / 24 * 2 * math.Pi)
	if a.nights && day < -0.5 {
		return 0
	}
	rate := a.rate * a.factor * swing * (1 + a.depth*(day-1)/2)
	if a.most > 0 {
		rate = math.Min(rate, a.most)
	}
	return rate
}
