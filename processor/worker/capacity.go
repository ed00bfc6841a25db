package worker

import (
	"math"
	"strings"

	"lowtide/event"
	"lowtide/rules/variable"
)

// hostCaches are the beginnings of names of caches that live in host memory. A declared cache has a name and a cap, no place: llama.cpp's
// prompt_cache, the multi-modal processor's mm_…, grammar caches and offload pools are on the host in every engine that has them, and
// whoever declares one of another name says where it is by beginning it with host or cpu. All others count as memory of the card.
var hostCaches = [...]string{"host", "cpu", "prompt_cache", "mm", "grammar", "offload"}

// onHost says that a declared cache is in host memory.
func onHost(name string) bool {
	for _, prefix := range hostCaches {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// caps are what the configuration asks for, kept for as long as it stays.
type caps struct {
	of                   *event.Config
	Card, Host           float64 // sums of the declared caches; 0 where none is declared
	CardKnown, HostKnown bool
	Asked                float64 // on the card in all; NaN where nothing is known
	Spare                float64 // part of each card that is left; NaN where that is not known
}

func (c *caps) read(config *event.Config) {
	if c.of == config {
		return
	}
	*c = caps{of: config, Asked: nan, Spare: nan}
	for _, d := range config.GetDeclaredCaches() {
		switch v := d.CapBytes; {
		case v == nil:
		case onHost(d.Name):
			c.Host, c.HostKnown = c.Host+float64(*v), true
		default:
			c.Card, c.CardKnown = c.Card+float64(*v), true
		}
	}
	if config == nil {
		return
	}
	if c.CardKnown {
		c.Asked = c.Card
	}
	for _, v := range [...]*uint64{config.WeightsBytes, config.KvPoolBytes, config.GraphPoolBytes} {
		if v != nil {
			c.Asked = zeroIfUnknown(c.Asked) + float64(*v)
		}
	}
	if share := config.GpuMemoryUtilization; share != nil && *share >= 0 && *share <= 1 {
		c.Spare = math.Round((1-*share)*1000) / 1000 // 1 − 0.9 is a little less than 0.1
	}
}

var capacityIDs = struct{ asked, limit, spare, hostAsked, hostLimit, cgroup variable.ID }{
	variable.Must("capacity.asked_bytes"), variable.Must("capacity.limit_bytes"), variable.Must("capacity.spare_ratio"), variable.Must("capacity.host_asked_bytes"),
	variable.Must("capacity.host_limit_bytes"), variable.Must("cgroup.ratio"),
}

// capacity compares what was configured with where it must fit. What is asked is the sum of what is known, so it is never too much.
func (w *Worker) capacity() {
	s, c := w.sample, &w.load.Room.Caps
	c.read(w.Config)
	if p := w.now.process; p != nil && p.CgroupLimitBytes != nil {
		limit := float64(*p.CgroupLimitBytes)
		s.SetNumber(capacityIDs.hostLimit, limit)
		if p.CgroupBytes != nil && limit > 0 {
			s.SetNumber(capacityIDs.cgroup, float64(*p.CgroupBytes)/limit)
		}
	}
	if w.Config == nil {
		return
	}
	if c.HostKnown {
		s.SetNumber(capacityIDs.hostAsked, c.Host)
	}
	if c.Asked == c.Asked {
		s.SetNumber(capacityIDs.asked, c.Asked)
	}
	s.SetNumber(capacityIDs.limit, w.capacityLimit())
	if c.Spare == c.Spare {
		s.SetNumber(capacityIDs.spare, c.Spare)
	}
}

// capacityLimit is what gpu_memory_utilization leaves of the worker's cards, all of them where it is not known, and never more than the
// allocator may have; NaN when no card says how large it is.
func (w *Worker) capacityLimit() float64 {
	sum := nan
	for i := range w.now.cards {
		c, limit := &w.now.cards[i], nan
		if c.device != nil {
			limit = number(c.device.TotalBytes)
			if share := w.Config.GpuMemoryUtilization; share != nil {
				limit *= *share
			}
		}
		if c.allocator != nil {
			limit = smaller(limit, number(c.allocator.LimitBytes))
		}
		if limit == limit {
			sum = zeroIfUnknown(sum) + limit
		}
	}
	return sum
}

// smaller is the smaller of two numbers, the known one when the other is not.
func smaller(a, b float64) float64 {
	if a < b || b != b {
		return a
	}
	return b
}
