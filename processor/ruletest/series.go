package ruletest

import (
	"math"
	"sort"
	"strings"
	"time"
)

// The limits of what a test file may ask for.
const (
	maxTicks    = 200_000 // of one scenario: eleven days of five seconds
	maxPieces   = 20_000  // of one series, repetitions counted
	maxNotation = 16 << 10
	maxGroups   = 8 // within each other
)

// piece is a stretch of a series: a value, and what is added to it with every tick.
type piece struct {
	start, step float64
	noise       float64 // at most so much more or less; zero for none
	gap         bool    // nothing is read
	ticks       int
	forever     bool // to the end of the scenario
}

// series is the values of one field, tick by tick.
type series struct {
	pieces []piece
	ends   []int // of each piece, in ticks from the beginning
}

// ticks is how long the series is; endless says that its last value goes on as long as the scenario does.
func (s *series) ticks() (n int, endless bool) {
	if len(s.ends) == 0 {
		return 0, false
	}
	return s.ends[len(s.ends)-1], s.pieces[len(s.pieces)-1].forever
}

// at returns the value of a tick; there is none in a gap and behind the end. The noise of a tick depends on the seed and the tick alone.
func (s *series) at(tick int, seed uint64) (value float64, ok bool) {
	i := sort.SearchInts(s.ends, tick+1)
	if i == len(s.pieces) {
		if i == 0 || !s.pieces[i-1].forever {
			return 0, false
		}
		i--
	}
	p, from := s.pieces[i], 0
	if i > 0 {
		from = s.ends[i-1]
	}
	if p.gap {
		return 0, false
	}
	value = p.start + p.step*float64(tick-from)
	if p.noise != 0 {
		value += p.noise * uniform(seed, uint64(tick))
	}
	return value, true
}

// lowest is the least that a series comes to, without noise.
func (s *series) lowest() float64 {
	least := math.Inf(1)
	for _, p := range s.pieces {
		if !p.gap {
			least = min(least, p.start, p.start+p.step*float64(max(p.ticks-1, 0)))
		}
	}
	return least
}

// highest is the most that a series comes to in its pieces that have an end, without noise.
func (s *series) highest() float64 {
	most := math.Inf(-1)
	for _, p := range s.pieces {
		if !p.gap {
			most = max(most, p.start, p.start+p.step*float64(max(p.ticks-1, 0)))
		}
	}
	return most
}

// falls says that a value is below the one before it within a piece.
func (s *series) falls() bool {
	for _, p := range s.pieces {
		if p.step < 0 {
			return true
		}
	}
	return false
}

func (s *series) noisy() bool {
	for _, p := range s.pieces {
		if p.noise != 0 {
			return true
		}
	}
	return false
}

// uniform is between -1 and 1, the same for the same seed and tick: splitmix64 (Steele, Lea and Flood, 2014).
func uniform(seed, tick uint64) float64 {
	z := seed + (tick+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return float64(z>>11)/(1<<52) - 1
}

// readSeries reads the notation. Units are those that the field takes, with what one of them is.
func readSeries(text string, interval time.Duration, units map[string]float64) (*series, error) {
	n := &notation{text: text, interval: interval, units: units}
	if len(text) > maxNotation {
		return nil, n.fail("repeat with (…)x24", "a series of %d bytes, more than %d", len(text), maxNotation)
	}
	pieces, err := n.list(false)
	if err != nil {
		return nil, err
	}
	if len(pieces) == 1 && pieces[0].ticks == 1 && !pieces[0].gap && !strings.ContainsAny(text, "x(") {
		pieces[0].forever = true
	}
	s := &series{pieces: pieces, ends: make([]int, len(pieces))}
	end := 0
	for i, p := range pieces {
		if end += p.ticks; end > maxTicks {
			return nil, n.fail("make the interval longer", "a series of more than %d ticks", maxTicks)
		}
		s.ends[i] = end
	}
	return s, nil
}
