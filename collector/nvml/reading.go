//go:build cgo

package nvml

import (
	"cmp"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

// field is a question to a card; a card lacks those that it has said it does not support.
type field uint16

const (
	memory field = 1 << iota
	memoryV1
	compute
	graphics
	mps
	power
	temperature
	utilization
	eccCorrected
	eccUncorrected
	remapping
)

// notAvailable is NVML_VALUE_NOT_AVAILABLE, of the memory of a process.
const notAvailable = math.MaxUint64

// reading is one card, with its instances, at one tick.
type reading struct {
	session *session
	at      *timestamppb.Timestamp
	batch   *event.Batch
	lost    bool // the library has to be opened again
	moved   bool // an instance is gone
	over    bool // the card that is being read answers nothing more
}

func (r *reading) fail(c *card, what string, ret nvml.Return) {
	text := c.label + ": "
	if !gone(ret) {
		text += what + ": "
	}
	kind := kindOf(ret)
	if gone(ret) {
		kind = status.Lost
	}
	r.batch.Events = append(r.batch.Events, &event.Event{Time: r.at, Source: &event.SourceStatus{Name: c.uuid, Status: kind, Error: text + words(ret)}})
	r.over = r.over || gone(ret)
	if c.mig != "" {
		r.moved = true // its handle may be one of an instance that is no more
	} else {
		r.lost = r.lost || kind == status.Lost
	}
}

// asks is true when the question may be put.
func (r *reading) asks(c *card, f field) bool { return !r.over && c.lacks&f == 0 }

// got is true when there is an answer. That a card cannot answer is remembered, and no failure.
func (r *reading) got(c *card, f field, what string, ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS:
		return true
	case unsupported(ret), c.mig != "" && ret == nvml.ERROR_INVALID_ARGUMENT && f > mps: // a question about the whole card
		c.lacks |= f
	case ret == nvml.ERROR_NO_DATA, ret == nvml.ERROR_NOT_READY: // not yet
	default:
		r.fail(c, what, ret)
	}
	return false
}

// read appends the gpu event, and the gpu_process events after it.
func (r *reading) read(c *card) {
	r.over = false
	gpu := &event.Gpu{Uuid: c.uuid, Index: event.Ptr(c.index), Name: c.name, Mig: c.mig}
	known := r.memory(c, gpu)
	processes, complete := r.processes(c)
	if known && complete && !r.session.hidden {
		complete = r.consistent(c, gpu, processes)
	} else {
		complete = false
	}
	r.sensors(c, gpu)
	if r.over && gpu.UsedBytes == nil && gpu.TemperatureCelsius == nil {
		return // nothing was read: the failure says it all
	}
	gpu.ProcessesComplete = &complete
	r.batch.Events = append(r.batch.Events, &event.Event{Time: r.at, Gpu: gpu})
	for _, p := range processes {
		e := &event.Event{Time: r.at, Worker: &event.Worker{Pid: int64(p.Pid)}, GpuProcess: &event.GpuProcess{GpuUuid: c.uuid}}
		if p.UsedGpuMemory != notAvailable {
			e.GpuProcess.UsedBytes = event.Ptr(p.UsedGpuMemory)
		}
		r.batch.Events = append(r.batch.Events, e)
	}
}

// memory fills in the card's memory. Version 2 tells what the driver reserves for itself apart from what is used; known says that
// it was used. In version 1 the reserve is inside used_bytes, nobody says how much it is, and driver_reserved_bytes is absent.
func (r *reading) memory(c *card, gpu *event.Gpu) (known bool) {
	if r.session.memoryV2 && r.asks(c, memory) {
		m, ret := c.handle.GetMemoryInfo_v2()
		if r.forbidden(c, ret) {
			return false
		}
		if r.got(c, memory, "memory", ret) {
			gpu.TotalBytes, gpu.UsedBytes, gpu.FreeBytes, gpu.DriverReservedBytes = &m.Total, &m.Used, &m.Free, &m.Reserved
			return true
		}
		if c.lacks&memory == 0 {
			return false
		}
	}
	if !r.asks(c, memoryV1) {
		if !r.over {
			r.fail(c, "memory", nvml.ERROR_NOT_SUPPORTED)
		}
		return false
	}
	m, ret := c.handle.GetMemoryInfo()
	if r.forbidden(c, ret) {
		return false
	}
	if r.got(c, memoryV1, "memory", ret) {
		gpu.TotalBytes, gpu.UsedBytes, gpu.FreeBytes = &m.Total, &m.Used, &m.Free
	} else if c.lacks&memoryV1 != 0 {
		r.fail(c, "memory", ret)
	}
	return false
}

// forbidden is true of the sum over a divided card, which takes more permission than its instances do: they tell all there is.
func (r *reading) forbidden(c *card, ret nvml.Return) bool {
	return c.divided && (ret == nvml.ERROR_NO_PERMISSION || unsupported(ret))
}

// processes lists each pid once. complete says that all lists were read and every process's memory is known; a card that does not
// support graphics or MPS has no such processes. Of a divided card nothing is listed: its processes are its instances'.
func (r *reading) processes(c *card) (all []nvml.ProcessInfo, complete bool) {
	if c.divided {
		return nil, false
	}
	complete = true
	list := func(f field, what string, ask func() ([]nvml.ProcessInfo, nvml.Return)) {
		if !r.asks(c, f) {
			complete = complete && !r.over && f != compute
			return
		}
		some, ret := ask()
		if !r.got(c, f, what, ret) {
			complete = complete && c.lacks&f != 0 && f != compute
		}
		all = append(all, some...)
	}
	list(compute, "compute processes", c.handle.GetComputeRunningProcesses)
	if c.lacks&compute != 0 && !r.over {
		r.fail(c, "compute processes", nvml.ERROR_NOT_SUPPORTED)
	}
	list(graphics, "graphics processes", c.handle.GetGraphicsRunningProcesses)
	if r.session.mps {
		list(mps, "MPS processes", c.handle.GetMPSComputeRunningProcesses)
	}
	// A process in two lists, or in one twice, is told the same memory; where only one of them knows it, that one counts.
	slices.SortFunc(all, func(a, b nvml.ProcessInfo) int {
		return cmp.Or(cmp.Compare(a.Pid, b.Pid), cmp.Compare(b.UsedGpuMemory+1, a.UsedGpuMemory+1))
	})
	all = slices.CompactFunc(all, func(a, b nvml.ProcessInfo) bool { return a.Pid == b.Pid })
	all = slices.DeleteFunc(all, func(p nvml.ProcessInfo) bool {
		complete = complete && p.Pid != 0 && p.UsedGpuMemory != notAvailable
		return p.Pid == 0 // one that this pid namespace does not see
	})
	return all, complete
}

// consistent is true when the card's memory did not change while the processes were listed, and they use no more than it does.
func (r *reading) consistent(c *card, gpu *event.Gpu, processes []nvml.ProcessInfo) bool {
	after, ret := c.handle.GetMemoryInfo_v2()
	if ret != nvml.SUCCESS || after.Used != *gpu.UsedBytes {
		return false
	}
	var sum uint64
	for _, p := range processes {
		sum += p.UsedGpuMemory
	}
	return sum <= after.Used
}

// sensors fills in the rest. ECC counts are the aggregate ones, over the card's life: they fall neither at a reboot nor when the
// driver is loaded again, so that a step is an error and nothing else.
func (r *reading) sensors(c *card, gpu *event.Gpu) {
	if r.asks(c, power) {
		if milliwatts, ret := c.handle.GetPowerUsage(); r.got(c, power, "power", ret) {
			gpu.PowerWatts = event.Ptr(float64(milliwatts) / 1000)
		}
	}
	if r.asks(c, temperature) {
		// Its successor is missing in the libraries of older drivers, and a missing function ends the process.
		if celsius, ret := c.handle.GetTemperature(nvml.TEMPERATURE_GPU); r.got(c, temperature, "temperature", ret) {
			gpu.TemperatureCelsius = event.Ptr(float64(celsius))
		}
	}
	if r.asks(c, utilization) {
		if rates, ret := c.handle.GetUtilizationRates(); r.got(c, utilization, "utilization", ret) {
			gpu.Utilization = event.Ptr(float64(rates.Gpu) / 100)
		}
	}
	ecc := func(f field, kind nvml.MemoryErrorType) *uint64 {
		if !r.asks(c, f) {
			return nil
		}
		count, ret := c.handle.GetTotalEccErrors(kind, nvml.AGGREGATE_ECC)
		if !r.got(c, f, "ECC errors", ret) {
			return nil
		}
		return &count
	}
	gpu.EccCorrectedTotal = ecc(eccCorrected, nvml.MEMORY_ERROR_TYPE_CORRECTED)
	gpu.EccUncorrectedTotal = ecc(eccUncorrected, nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	if r.session.remapping && r.asks(c, remapping) {
		if corrected, uncorrected, pending, _, ret := c.handle.GetRemappedRows(); r.got(c, remapping, "row remapping", ret) {
			gpu.RemappedRows, gpu.RemapPending = event.Ptr(uint64(corrected+uncorrected)), &pending
		}
	}
}
