package sim

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// card is one GPU: used is the sum of its processes and of what belongs to none.
type card struct {
	host     *host
	uuid     string
	pci      string
	index    int
	total    float64
	driver   float64 // reserved by the driver
	orphan   float64 // of a process that is gone
	ranks    []*rank
	tenants  []*tenant
	gone     bool // fallen off the bus
	spinning bool // kernels that wait for each other: busy, with nothing done
	heat     float64

	corrected, uncorrected, remapped float64
	pending                          bool
}

// tenant is a process of somebody else.
type tenant struct {
	who  *event.Worker
	used float64
}

func (h *host) newCard(total float64) *card {
	c := &card{host: h, index: len(h.cards), total: total, driver: math.Floor(h.between(200, 350)) * 2 * mib, heat: h.between(28, 40)}
	c.uuid = fmt.Sprintf("GPU-51310000-%04x-4000-8000-%012d", h.seed&0xffff, len(h.world.hosts)*100+c.index)
	c.pci = fmt.Sprintf("0000:%02x:00", 0x18+8*c.index)
	h.cards = append(h.cards, c)
	return c
}

// tenant puts a process of somebody else on the card.
func (c *card) tenant(used float64) *tenant {
	h := c.host
	t := &tenant{used: used, who: &event.Worker{
		Pid: h.nextPid(), StartTicks: event.Ptr(uint64(1e6 + h.since.Seconds()*100)), StartTime: timestamppb.New(h.clock()), Role: "other", GpuUuids: []string{c.uuid},
		Unit: fmt.Sprintf("batch-%d", h.whole(0, 999)),
	}}
	c.tenants = append(c.tenants, t)
	return t
}

func (c *card) leave(t *tenant) {
	for i := range c.tenants {
		if c.tenants[i] == t {
			c.tenants = append(c.tenants[:i], c.tenants[i+1:]...)
			return
		}
	}
}

// others is what processes beside one hold, living or not.
func (c *card) others(but *rank) float64 {
	sum := c.orphan
	for _, r := range c.ranks {
		if r != but {
			sum += r.used()
		}
	}
	for _, t := range c.tenants {
		sum += t.used
	}
	return sum
}

// room is what the card has left.
func (c *card) room() float64 { return math.Max(0, c.total-c.driver-c.others(nil)) }

func (c *card) tell() {
	h := c.host
	if c.gone || !h.sees(fromNVML) {
		return
	}
	used := c.others(nil)
	utilization := 0.0
	for _, r := range c.ranks {
		utilization += r.utilization()
	}
	for _, t := range c.tenants {
		if t.used > gib {
			utilization += h.between(0, 0.3)
		}
	}
	if c.spinning {
		utilization = 1
	}
	utilization = math.Round(100*math.Min(1, utilization)) / 100
	s := &cardReading{
		index: int64(c.index), complete: true, pending: c.pending,
		counts:  [7]uint64{whole(c.total), whole(used), whole(c.total - c.driver - used), whole(c.driver), whole(c.corrected), whole(c.uncorrected), whole(c.remapped)},
		numbers: [3]float64{utilization, math.Round(10*(85+330*utilization+2*h.NormFloat64())) / 10, math.Round(c.heat + 25*utilization)},
	}
	g := &s.gpu
	g.Uuid, g.Index, g.Name, g.ProcessesComplete, g.RemapPending = c.uuid, &s.index, "Simulated", &s.complete, &s.pending
	g.TotalBytes, g.UsedBytes, g.FreeBytes, g.DriverReservedBytes = &s.counts[0], &s.counts[1], &s.counts[2], &s.counts[3]
	g.EccCorrectedTotal, g.EccUncorrectedTotal, g.RemappedRows = &s.counts[4], &s.counts[5], &s.counts[6]
	g.Utilization, g.PowerWatts, g.TemperatureCelsius = &s.numbers[0], &s.numbers[1], &s.numbers[2]
	s.event.Time, s.event.Host, s.event.Gpu = h.stamp, h.identity, g
	h.send(&s.event)
	for _, t := range c.tenants {
		h.send(&event.Event{Time: h.stamp, Host: h.identity, Worker: t.who, GpuProcess: &event.GpuProcess{GpuUuid: c.uuid, UsedBytes: event.Ptr(uint64(t.used))}})
	}
}
