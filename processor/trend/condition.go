package trend

import (
	"fmt"
	"math"
)

// Condition names what a call still lacks. The zero value is Met.
type Condition uint8

// The conditions of Early and Steady, in the order in which they are asked.
const (
	Met       Condition = iota // nothing is lacking
	NoScale                    // σ, the hours or the floor is not a usable number
	Disorder                   // the times do not ascend
	FewPoints                  // too few measured points
	ShortSpan                  // too little time from first to last
	Falls                      // a point is lower than the one before by more than σ
	SmallRise                  // the rise is small, or is one step or two
	LowSlope                   // the lower bound of the slope does not exceed the floor
	WeakTrend                  // the corrected Mann–Kendall z is below three
	LevelsOff                  // the last third of the time does not rise as the whole does
)

// String says in a few words what is lacking.
func (c Condition) String() string {
	switch c {
	case Met:
		return "met"
	case NoScale:
		return "scale unknown"
	case Disorder:
		return "times out of order"
	case FewPoints:
		return "too few points"
	case ShortSpan:
		return "too short a time"
	case Falls:
		return "a point falls below the one before"
	case SmallRise:
		return "rise too small without its largest steps"
	case LowSlope:
		return "slope not surely above the floor"
	case WeakTrend:
		return "trend not significant"
	case LevelsOff:
		return "level at the end"
	}
	return fmt.Sprintf("condition %d", uint8(c))
}

// CallHours is the time from first to last point, to the nearest ten minutes,
// that a call waits for unless its caller waives it with zero.
const CallHours = 3.0

// enough reports whether a span, rounded to the nearest ten minutes, reaches
// the hours.
func enough(span, hours float64) bool {
	const perHour = 6 // ten minutes
	// The slop lets 2 h 55 min reach 3 h however the subtraction rounded.
	return math.Round(span*perHour+1e-6) >= math.Round(hours*perHour)
}
