//go:build cgo

package nvml

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"lowtide/event"
)

// What an H200 with driver 580.159 and one process answered.
const (
	usedV1   = 5492310016
	usedV2   = 4847370240
	reserved = 644939776
	total    = 150754820096
)

// machine is a host of H200s on which all is well; the tests break it.
type machine struct {
	*server.Server
	events chan nvml.EventData
	inits  int
}

func newMachine(n int) *machine {
	m := &machine{Server: dgxh200.NewWithGPUs(gpus.Multiple(n, gpus.H200_SXM5_141GB)...), events: make(chan nvml.EventData)}
	m.InitFunc = func() nvml.Return { m.inits++; return nvml.SUCCESS }
	m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(milliseconds uint32) (nvml.EventData, nvml.Return) {
				limit := time.NewTimer(time.Duration(milliseconds) * 10 * time.Microsecond) // a session's end waits for it
				defer limit.Stop()
				select {
				case e := <-m.events:
					return e, nvml.SUCCESS
				case <-limit.C:
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
		}, nvml.SUCCESS
	}
	for i := range n {
		d := m.card(i)
		d.UUID = fmt.Sprintf("GPU-%d", i)
		healthy(&d.Device)
		d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 0, Bus: uint32(0x48 + i), Device: 0}, nvml.SUCCESS
		}
		d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return 0xff9f, nvml.SUCCESS }
		d.RegisterEventsFunc = func(types uint64, _ nvml.EventSet) nvml.Return {
			if types != nvml.EventTypeXidCriticalError|nvml.EventTypeDoubleBitEccError {
				return nvml.ERROR_INVALID_ARGUMENT
			}
			return nvml.SUCCESS
		}
	}
	return m
}

func (m *machine) card(i int) *server.Device { return m.Devices[i].(*server.Device) }

func healthy(d *mock.Device) {
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: total, Used: usedV2, Reserved: reserved, Free: total - usedV2 - reserved}, nvml.SUCCESS
	}
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
		return nvml.Memory{Total: total, Used: usedV1, Free: total - usedV1}, nvml.SUCCESS
	}
	d.GetComputeRunningProcessesFunc = list(nvml.SUCCESS, 4242, usedV2-1<<20)
	d.GetGraphicsRunningProcessesFunc = list(nvml.SUCCESS)
	d.GetMPSComputeRunningProcessesFunc = list(nvml.SUCCESS)
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 118300, nvml.SUCCESS }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 33, nvml.SUCCESS }
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 97}, nvml.SUCCESS }
	d.GetTotalEccErrorsFunc = func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
		if counter != nvml.AGGREGATE_ECC {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return map[nvml.MemoryErrorType]uint64{nvml.MEMORY_ERROR_TYPE_CORRECTED: 7, nvml.MEMORY_ERROR_TYPE_UNCORRECTED: 2}[kind], nvml.SUCCESS
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 3, 1, true, false, nvml.SUCCESS }
}

// list answers with pairs of a pid and its memory.
func list(ret nvml.Return, pairs ...uint64) func() ([]nvml.ProcessInfo, nvml.Return) {
	return func() ([]nvml.ProcessInfo, nvml.Return) {
		var all []nvml.ProcessInfo
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, nvml.ProcessInfo{Pid: uint32(pairs[i]), UsedGpuMemory: pairs[i+1], GpuInstanceId: 1<<32 - 1, ComputeInstanceId: 1<<32 - 1})
		}
		return all, ret
	}
}

// run is what comes of one request, through the frames.
type run struct {
	gpus      map[string]*event.Gpu
	processes map[string]string // by card: pid=memory, in order
	failures  []failure
	fatal     []failure
}

func (m *machine) session() *session { return newSession(m.Server, false) }

func sampleFrom(t *testing.T, s *session, skip ...string) run {
	t.Helper()
	return sampleAt(t, s, frameTick, skip...)
}

func sampleAt(t *testing.T, s *session, tick time.Time, skip ...string) run {
	t.Helper()
	var out bytes.Buffer
	w := &frameWriter{out: &out}
	if s.emit == nil {
		if fatal := s.open(func(*event.Event) {}); fatal != nil {
			return run{fatal: fatal}
		}
		t.Cleanup(s.close)
	}
	failures, fatal, err := s.sample(request{tick: tick, skip: skip}, w)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.write(end, reasons(failures)); err != nil {
		t.Fatal(err)
	}
	got := run{gpus: make(map[string]*event.Gpu), processes: make(map[string]string), fatal: fatal}
	frames := newFrameReader(&out)
	for {
		f, err := frames.next()
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		got.failures = append(got.failures, f.failures...)
		for _, e := range f.events {
			if !e.At().Equal(tick) {
				t.Errorf("an event of %v", e.At())
			}
			switch {
			case e.Gpu != nil:
				got.gpus[e.Gpu.Uuid] = e.Gpu
			case e.GpuProcess != nil:
				text := "?"
				if e.GpuProcess.UsedBytes != nil {
					text = fmt.Sprint(*e.GpuProcess.UsedBytes)
				}
				uuid := e.GpuProcess.GpuUuid
				got.processes[uuid] = strings.TrimSpace(fmt.Sprintf("%s %d=%s", got.processes[uuid], e.Worker.Pid, text))
			}
		}
	}
}
