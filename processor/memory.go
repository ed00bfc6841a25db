package processor

import (
	"slices"
	"time"

	"lowtide/event"
)

const (
	stretch   = 15 * time.Minute
	stretches = 16        // four hours
	grown     = 256 << 20 // less than this is no growth that costs a process its life
)

// memory is the anonymous host memory of one process over its last hours: the lowest reading of each quarter of an hour.
type memory struct {
	lows   [stretches]float64
	count  int // of lows in use; the newest is the last
	since  time.Time
	newest float64
}

func (m *memory) known() bool { return m.count > 0 }

func (m *memory) observe(at time.Time, p *event.Process) {
	var v float64
	switch {
	case p.AnonBytes != nil:
		v = float64(*p.AnonBytes) + float64(p.GetSwapBytes())
	case p.RssBytes != nil:
		v = float64(*p.RssBytes)
	default:
		return
	}
	m.newest = v
	if m.count > 0 && event.Ago(at, m.since) < stretch {
		m.lows[m.count-1] = min(m.lows[m.count-1], v)
		return
	}
	if m.count == stretches {
		copy(m.lows[:], m.lows[1:])
		m.count--
	}
	m.lows[m.count] = v
	m.count++
	m.since = at
}

// growth is how much more it holds now than at its lowest in these hours.
func (m *memory) growth() float64 {
	if m.count == 0 {
		return 0
	}
	return m.newest - slices.Min(m.lows[:m.count])
}

// blame finds out whose memory a kill by the kernel or a cgroup is owed to: of the watched processes of the host, or of the
// cgroup, the one that grew most over its last hours, else the largest.
func (j *Judge) blame(h *host, w *watched, end *ending) {
	end.victim = w.anon
	if !end.bySystem() {
		return
	}
	var most, largest *watched
	for _, other := range h.sorted() {
		if !other.anon.known() || other != w && !other.end.at.IsZero() || end.by == "cgroup" && !together(w, other) {
			continue
		}
		if other.anon.growth() >= grown && (most == nil || other.anon.growth() > most.anon.growth()) {
			most = other
		}
		if largest == nil || other.anon.newest > largest.anon.newest {
			largest = other
		}
	}
	switch {
	case most != nil:
		end.culprit, end.byGrowth = most.anon, most == w
	case largest != nil:
		end.culprit = largest.anon
	}
}

// together says that two processes are in one cgroup: of the same container, else of the same unit.
func together(a, b *watched) bool {
	switch {
	case a == b:
		return true
	case a.Who.GetContainerId() != "" || b.Who.GetContainerId() != "":
		return a.Who.GetContainerId() == b.Who.GetContainerId()
	}
	return a.Who.GetUnit() != "" && a.Who.GetUnit() == b.Who.GetUnit()
}
