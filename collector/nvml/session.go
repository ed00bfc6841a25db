//go:build cgo

package nvml

import (
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

// layoutAge is how old the list of a card's MIG instances may be. Asking each tick would cost more than all else together.
const layoutAge = time.Minute

// session is the library, opened, and the cards it knows. One goroutine uses it; the watcher has its own view.
type session struct {
	library nvml.Interface
	hidden  bool // this pid namespace may hide processes from us
	emit    func(*event.Event)

	memoryV2, mps, remapping, mig bool // functions that this library has: calling one that is missing ends the process
	cards                         []*card
	unknown                       []failure // cards that could not even be named
	watcher                       *watcher
	count                         int
	layout                        time.Time // when the MIG instances were listed

	again   time.Time // when the library is opened afresh; zero while all is well
	backoff backoff
}

// card is what stays the same of a card or a MIG instance.
type card struct {
	handle    nvml.Device
	uuid      string
	label     string // for messages
	name      string
	index     int64 // of the card
	pci       string
	mig       string // GI/CI of an instance
	gi, ci    uint32
	divided   bool // MIG is on: memory and processes are its instances'
	instances []*card
	lacks     field // questions that it does not support
}

func newSession(library nvml.Interface, hidden bool) *session {
	return &session{library: library, hidden: hidden}
}

func (s *session) open(emit func(*event.Event)) (fatal []failure) {
	s.emit = emit
	return s.begin()
}

// begin opens the library and lists the cards.
func (s *session) begin() (fatal []failure) {
	if ret := s.library.Init(); ret != nvml.SUCCESS {
		return []failure{failedInit(ret)}
	}
	has := func(symbol string) bool { return s.library.Extensions().LookupSymbol(symbol) == nil }
	s.memoryV2, s.mps, s.remapping = has("nvmlDeviceGetMemoryInfo_v2"), has("nvmlDeviceGetMPSComputeRunningProcesses"), has("nvmlDeviceGetRemappedRows")
	s.mig = has("nvmlDeviceGetMigMode") && has("nvmlDeviceGetMaxMigDeviceCount") && has("nvmlDeviceGetMigDeviceHandleByIndex")
	s.cards, s.unknown = nil, nil
	count, ret := s.library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return []failure{{kindOf(ret), "count GPUs: " + words(ret)}}
	}
	if count == 0 {
		return []failure{{status.Absent, "the NVIDIA driver knows no GPU; hint: lspci, nvidia-smi, and the devices given to the container"}}
	}
	s.count = count
	for i := range count {
		c, ret := s.find(i)
		if ret != nvml.SUCCESS {
			s.unknown = append(s.unknown, failure{kindOf(ret), fmt.Sprintf("GPU %d: %s", i, words(ret))})
			continue
		}
		s.cards = append(s.cards, c)
	}
	for _, c := range s.cards {
		s.divide(c)
	}
	s.layout = time.Now()
	s.watcher = watch(s.library, s.cards, s.emit)
	return nil
}

func (s *session) find(index int) (*card, nvml.Return) {
	handle, ret := s.library.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	c := &card{handle: handle, uuid: uuid, label: fmt.Sprintf("GPU %d (%s)", index, uuid), index: int64(index)}
	if name, ret := handle.GetName(); ret == nvml.SUCCESS {
		c.name = name
	}
	if pci, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
		c.pci = fmt.Sprintf("%04x:%02x:%02x", pci.Domain, pci.Bus, pci.Device) // as the kernel log has it
	}
	return c, nvml.SUCCESS
}

// divide lists the MIG instances of a card.
func (s *session) divide(c *card) {
	c.divided, c.instances = false, nil
	if !s.mig {
		return
	}
	if mode, _, ret := c.handle.GetMigMode(); ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return
	}
	c.divided = true
	most, ret := c.handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return
	}
	for i := range most {
		handle, ret := c.handle.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a slot without an instance
		}
		uuid, ret := handle.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		gi, ret1 := handle.GetGpuInstanceId()
		ci, ret2 := handle.GetComputeInstanceId()
		if ret1 != nvml.SUCCESS || ret2 != nvml.SUCCESS {
			continue
		}
		instance := &card{handle: handle, uuid: uuid, label: fmt.Sprintf("GPU %d MIG %d/%d (%s)", c.index, gi, ci, uuid), name: c.name, index: c.index,
			pci: c.pci, mig: fmt.Sprintf("%d/%d", gi, ci), gi: uint32(gi), ci: uint32(ci)}
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			instance.name = name
		}
		c.instances = append(c.instances, instance)
	}
}

// sample reads all cards. A failure of one is told with its frame and stops no other.
func (s *session) sample(r request, out *frameWriter) (failures, fatal []failure, err error) {
	now := time.Now()
	if count, ret := s.library.DeviceGetCount(); !s.again.IsZero() && !now.Before(s.again) || ret != nvml.SUCCESS || count != s.count {
		s.close()
		s.library.Shutdown() // whatever it says: what counts is whether it opens again
		if fatal := s.begin(); fatal != nil {
			return nil, fatal, nil
		}
		s.again = time.Time{}
	}
	stale := now.Sub(s.layout) >= layoutAge
	lost, known, moved := len(s.unknown) > 0, false, false
	for _, c := range s.cards {
		if slices.Contains(r.skip, c.uuid) {
			continue
		}
		if err := out.ask(c.uuid); err != nil {
			return nil, nil, err
		}
		if stale {
			before := c.instances
			s.divide(c)
			known = known || len(before)+len(c.instances) > 0
		}
		reading := &reading{session: s, at: timestamppb.New(r.tick), batch: &event.Batch{Source: c.uuid}}
		for _, d := range append([]*card{c}, c.instances...) {
			reading.read(d)
		}
		lost, moved = lost || reading.lost, moved || reading.moved
		if err := out.add(device, reading.batch); err != nil {
			return nil, nil, err
		}
	}
	if moved {
		s.layout = time.Time{}
	} else if stale {
		s.layout = now
	}
	if known {
		s.watcher.learn(s.cards)
	}
	switch {
	case !lost:
		s.again, s.backoff = time.Time{}, backoff{}
	case s.again.IsZero():
		s.again = now.Add(s.backoff.next())
	}
	return append(s.watcher.failures(), s.unknown...), nil, nil
}

func (s *session) close() {
	if s.watcher != nil {
		s.watcher.end()
		s.watcher = nil
	}
}
