//go:build cgo

package nvml

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"lowtide/collector/status"
	"lowtide/event"
)

func TestHealthyCard(t *testing.T) {
	got := sampleFrom(t, newMachine(2).session())
	if err := join(got.failures); err != nil || len(got.gpus) != 2 {
		t.Fatalf("%v, %v", got.gpus, err)
	}
	text, err := event.MarshalEvent(&event.Event{Gpu: got.gpus["GPU-1"]})
	if err != nil {
		t.Fatal(err)
	}
	const want = `"gpu":{"uuid":"GPU-1","index":1,"name":"NVIDIA H200 141GB HBM3e","total_bytes":150754820096,"used_bytes":4847370240,"free_bytes":145262510080,` +
		`"driver_reserved_bytes":644939776,"processes_complete":true,"power_watts":118.3,"temperature_celsius":33,"utilization":0.97,` +
		`"ecc_corrected_total":7,"ecc_uncorrected_total":2,"remapped_rows":4,"remap_pending":true}`
	if !strings.Contains(string(text), want) {
		t.Errorf("%s\nwant %s", text, want)
	}
	if got := got.processes["GPU-1"]; got != "4242=4846321664" {
		t.Error(got)
	}
}

// What one card may answer, and what becomes of it. The other card must be as if nothing were.
func TestFailuresOfOneCard(t *testing.T) {
	const all = "used reserved power temperature utilization ecc rows"
	without := func(words ...string) string {
		return strings.Join(slices.DeleteFunc(strings.Fields(all), func(w string) bool { return slices.Contains(words, w) }), " ")
	}
	power := func(ret nvml.Return) func(*server.Device) {
		return func(d *server.Device) { d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, ret } }
	}
	memoryV2 := func(ret nvml.Return) func(*server.Device) {
		return func(d *server.Device) {
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, ret }
		}
	}
	everything := func(ret nvml.Return) func(*server.Device) {
		return func(d *server.Device) {
			memoryV2(ret)(d)
			power(ret)(d)
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, ret }
			d.GetComputeRunningProcessesFunc, d.GetGraphicsRunningProcessesFunc, d.GetMPSComputeRunningProcessesFunc = list(ret), list(ret), list(ret)
			d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, ret }
			d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, ret }
			d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, ret }
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, ret }
		}
	}
	for name, test := range map[string]struct {
		change   func(d *server.Device)
		has      string // fields; "-" when there is no event
		complete bool
		status   string
		text     string
	}{
		"healthy":               {func(*server.Device) {}, all, true, status.OK, ""},
		"power unsupported":     {power(nvml.ERROR_NOT_SUPPORTED), without("power"), true, status.OK, ""},
		"power not yet":         {power(nvml.ERROR_NO_DATA), without("power"), true, status.OK, ""},
		"power denied":          {power(nvml.ERROR_NO_PERMISSION), without("power"), true, status.Denied, "GPU 0 (GPU-0): power: not permitted"},
		"power fails":           {power(nvml.ERROR_UNKNOWN), without("power"), true, status.Lost, "GPU 0 (GPU-0): power: unknown error of the driver; hint: see dmesg"},
		"memory v1 only":        {memoryV2(nvml.ERROR_NOT_SUPPORTED), without("reserved"), false, status.OK, ""},
		"memory of another age": {memoryV2(nvml.ERROR_ARGUMENT_VERSION_MISMATCH), without("reserved"), false, status.OK, ""},
		"memory denied":         {memoryV2(nvml.ERROR_NO_PERMISSION), without("used", "reserved"), false, status.Denied, "GPU 0 (GPU-0): memory: not permitted"},
		"nothing supported": {everything(nvml.ERROR_NOT_SUPPORTED), "", false, status.Unsupported,
			"GPU 0 (GPU-0): memory: not supported; GPU 0 (GPU-0): compute processes: not supported"},
		"lost": {everything(nvml.ERROR_GPU_IS_LOST), "-", false, status.Lost, "GPU 0 (GPU-0): the GPU is lost; hint: it fell off the bus or cannot be reached, see dmesg"},
		"reset required": {everything(nvml.ERROR_RESET_REQUIRED), "-", false, status.Lost,
			"GPU 0 (GPU-0): the GPU needs a reset; hint: drain it, then nvidia-smi --gpu-reset"},
		"lost half way": {power(nvml.ERROR_GPU_IS_LOST), "used reserved", true, status.Lost,
			"GPU 0 (GPU-0): the GPU is lost; hint: it fell off the bus or cannot be reached, see dmesg"},
		"no graphics": {func(d *server.Device) { d.GetGraphicsRunningProcessesFunc = list(nvml.ERROR_NOT_SUPPORTED) }, all, true, status.OK, ""},
		"graphics denied": {func(d *server.Device) { d.GetGraphicsRunningProcessesFunc = list(nvml.ERROR_NO_PERMISSION) }, all, false, status.Denied,
			"GPU 0 (GPU-0): graphics processes: not permitted"},
		"processes unsupported": {func(d *server.Device) { d.GetComputeRunningProcessesFunc = list(nvml.ERROR_NOT_SUPPORTED) }, all, false, status.Unsupported,
			"GPU 0 (GPU-0): compute processes: not supported"},
		"memory of a process not available": {func(d *server.Device) { d.GetComputeRunningProcessesFunc = list(nvml.SUCCESS, 4242, notAvailable) }, all, false, status.OK, ""},
		"a process that is not seen":        {func(d *server.Device) { d.GetComputeRunningProcessesFunc = list(nvml.SUCCESS, 0, 1<<20) }, all, false, status.OK, ""},
		"more than the card uses":           {func(d *server.Device) { d.GetComputeRunningProcessesFunc = list(nvml.SUCCESS, 4242, usedV2+1) }, all, false, status.OK, ""},
		"memory moves": {func(d *server.Device) {
			used := uint64(usedV2)
			d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
				used += 2 << 20
				return nvml.Memory_v2{Total: total, Used: used, Reserved: reserved}, nvml.SUCCESS
			}
		}, all, false, status.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(2)
			test.change(m.card(0))
			s := m.session()
			for _, tick := range []string{"first", "second"} { // what is remembered must not change the answer
				got := sampleFrom(t, s)
				if err := join(got.failures); status.Of(err) != test.status || err != nil && err.Error() != test.text {
					t.Errorf("%s tick: %s: %v", tick, status.Of(err), err)
				}
				has := "-"
				if g := got.gpus["GPU-0"]; g != nil {
					has = fields(g)
					if g.GetProcessesComplete() != test.complete {
						t.Errorf("%s tick: processes_complete is %v", tick, g.GetProcessesComplete())
					}
				}
				if has != test.has {
					t.Errorf("%s tick: %q, want %q", tick, has, test.has)
				}
				if other := got.gpus["GPU-1"]; fields(other) != all || !other.GetProcessesComplete() || got.processes["GPU-1"] == "" {
					t.Errorf("%s tick: the other card: %v", tick, other)
				}
			}
		})
	}
}

func fields(g *event.Gpu) string {
	var all []string
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"used", g.UsedBytes != nil}, {"reserved", g.DriverReservedBytes != nil}, {"power", g.PowerWatts != nil}, {"temperature", g.TemperatureCelsius != nil},
		{"utilization", g.Utilization != nil}, {"ecc", g.EccCorrectedTotal != nil && g.EccUncorrectedTotal != nil}, {"rows", g.RemappedRows != nil && g.RemapPending != nil},
	} {
		if f.has {
			all = append(all, f.name)
		}
	}
	return strings.Join(all, " ")
}

// Without version 2 the driver's reserve is in used_bytes, and nobody can take it out.
func TestMemoryVersion1(t *testing.T) {
	m := newMachine(1)
	m.LookupSymbolFunc = func(symbol string) error {
		if symbol == "nvmlDeviceGetMemoryInfo_v2" || strings.Contains(symbol, "MPS") {
			return errors.New("not found")
		}
		return nil
	}
	m.card(0).GetMemoryInfo_v2Func, m.card(0).GetMPSComputeRunningProcessesFunc = nil, nil // a call would panic
	g := sampleFrom(t, m.session()).gpus["GPU-0"]
	if g.GetUsedBytes() != usedV1 || g.DriverReservedBytes != nil || g.GetProcessesComplete() {
		t.Errorf("%v", g)
	}
}

func TestProcessInBothLists(t *testing.T) {
	m := newMachine(1)
	m.card(0).GetComputeRunningProcessesFunc = list(nvml.SUCCESS, 300, 100, 200, notAvailable, 100, 50)
	m.card(0).GetGraphicsRunningProcessesFunc = list(nvml.SUCCESS, 300, 100, 200, 70)
	got := sampleFrom(t, m.session())
	if got.processes["GPU-0"] != "100=50 200=70 300=100" || !got.gpus["GPU-0"].GetProcessesComplete() {
		t.Errorf("%v, %v", got.processes, got.gpus)
	}
}

func TestHiddenProcesses(t *testing.T) {
	got := sampleFrom(t, newSession(newMachine(1).Server, true))
	if g := got.gpus["GPU-0"]; g.ProcessesComplete == nil || *g.ProcessesComplete || join(got.failures) != nil {
		t.Errorf("%v, %v", g, got.failures)
	}
}

func TestLibraryThatDoesNotOpen(t *testing.T) {
	for ret, want := range map[nvml.Return]struct{ status, text string }{
		nvml.ERROR_LIBRARY_NOT_FOUND:       {status.Absent, "no libnvidia-ml.so.1"},
		nvml.ERROR_DRIVER_NOT_LOADED:       {status.Absent, "the NVIDIA driver is not loaded"},
		nvml.ERROR_NO_PERMISSION:           {status.Denied, "/dev/nvidiactl"},
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: {status.Lost, "different versions; hint: "},
		nvml.ERROR_UNKNOWN:                 {status.Lost, "daemon-reload"},
		nvml.ERROR_FUNCTION_NOT_FOUND:      {status.Unsupported, "NVML does not open: not supported"},
		nvml.ERROR_OPERATING_SYSTEM:        {status.Lost, "NVML does not open: ERROR_OPERATING_SYSTEM (NVML error 17)"},
	} {
		m := newMachine(1)
		m.InitFunc = func() nvml.Return { return ret }
		var out bytes.Buffer
		if err := serve(strings.NewReader("sample 1\n"), &frameWriter{out: &out}, m.session()); err != nil {
			t.Fatal(err)
		}
		f, err := newFrameReader(&out).next()
		if err != nil || f.kind != failed || len(f.failures) != 1 {
			t.Fatalf("%+v, %v", f, err)
		}
		if got := f.failures[0]; status.Of(got) != want.status || !strings.Contains(got.text, want.text) {
			t.Errorf("%v: %s: %v", ret, status.Of(got), got)
		}
	}
}

func TestNoCards(t *testing.T) {
	got := sampleFrom(t, newMachine(0).session())
	if len(got.fatal) != 1 || status.Of(got.fatal[0]) != status.Absent || !strings.Contains(got.fatal[0].text, "knows no GPU") {
		t.Errorf("%v", got.fatal)
	}
}

// A card that cannot even be named stops no other, and the library is opened again, less and less often, until it is back.
func TestCardComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		get := m.DeviceGetHandleByIndexFunc
		back := false
		m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
			if i == 0 && !back {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return get(i)
		}
		s := m.session()
		for range 200 {
			got := sampleFrom(t, s)
			if len(got.gpus) != 1 || len(got.failures) != 1 || got.failures[0].kind != status.Lost || !strings.HasPrefix(got.failures[0].text, "GPU 0: the GPU is lost") {
				t.Fatalf("%v, %v", got.gpus, got.failures)
			}
			time.Sleep(time.Second)
		}
		if m.inits < 8 || m.inits > 10 { // after 1, 2, 4 … 60 s
			t.Errorf("opened %d times", m.inits)
		}
		back = true
		time.Sleep(time.Minute)
		if got := sampleFrom(t, s); len(got.gpus) != 2 || join(got.failures) != nil {
			t.Errorf("%v, %v", got.gpus, got.failures)
		}
		before := m.inits
		time.Sleep(time.Minute)
		sampleFrom(t, s)
		if m.inits != before {
			t.Error("opened again although all is well")
		}
		s.close()
	})
}

func TestDriverUnloadedAndCountChanged(t *testing.T) {
	m := newMachine(2)
	s := m.session()
	sampleFrom(t, s)
	m.Devices = m.Devices[:1]
	if got := sampleFrom(t, s); len(got.gpus) != 1 || m.inits != 2 || join(got.failures) != nil {
		t.Errorf("%v, opened %d times, %v", got.gpus, m.inits, got.failures)
	}
	m.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNINITIALIZED }
	m.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	if got := sampleFrom(t, s); len(got.gpus) != 0 || len(got.fatal) != 1 || got.fatal[0].kind != status.Absent {
		t.Errorf("%v, %v", got.gpus, got.fatal)
	}
}

func TestSkippedCardIsNotTouched(t *testing.T) {
	m := newMachine(2)
	s := m.session()
	sampleFrom(t, s)
	m.card(0).GetMemoryInfo_v2Func = nil // a call would panic
	if got := sampleFrom(t, s, "GPU-0"); len(got.gpus) != 1 || got.gpus["GPU-1"] == nil || join(got.failures) != nil {
		t.Errorf("%v, %v", got.gpus, got.failures)
	}
}

// divided turns MIG on: two instances, of which one comes and goes.
func divided(m *machine, i int) (second *nvml.Return) {
	second = new(nvml.Return)
	instance := func(gi, ci int, name string) *mock.Device {
		d := new(mock.Device)
		healthy(d)
		d.GetUUIDFunc = func() (string, nvml.Return) { return fmt.Sprintf("MIG-%d-%d-%d", i, gi, ci), nvml.SUCCESS }
		d.GetNameFunc = func() (string, nvml.Return) { return name, nvml.SUCCESS }
		d.GetGpuInstanceIdFunc = func() (int, nvml.Return) { return gi, nvml.SUCCESS }
		d.GetComputeInstanceIdFunc = func() (int, nvml.Return) { return ci, nvml.SUCCESS }
		d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_INVALID_ARGUMENT }
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_INVALID_ARGUMENT }
		d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.ERROR_NOT_SUPPORTED }
		d.GetGraphicsRunningProcessesFunc = list(nvml.ERROR_NOT_SUPPORTED)
		return d
	}
	instances := map[int]*mock.Device{0: instance(7, 0, "NVIDIA H200 MIG 1g.18gb"), 3: instance(9, 1, "NVIDIA H200 MIG 2g.35gb")}
	instances[3].GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: 37 << 30, Used: usedV2, Free: 37<<30 - usedV2}, *second
	}
	card := m.card(i)
	card.MigMode = nvml.DEVICE_MIG_ENABLE
	card.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	card.GetMigDeviceHandleByIndexFunc = func(slot int) (nvml.Device, nvml.Return) {
		if d := instances[slot]; d != nil && (slot != 3 || *second == nvml.SUCCESS) {
			return d, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	card.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_NO_PERMISSION }
	card.GetComputeRunningProcessesFunc = nil // a call would panic: the sum of all instances' is not asked for
	return second
}

func TestInstancesAreDevices(t *testing.T) {
	m := newMachine(2)
	second := divided(m, 1)
	s := m.session()
	got := sampleFrom(t, s)
	if join(got.failures) != nil || len(got.gpus) != 4 {
		t.Fatalf("%v, %v", got.gpus, got.failures)
	}
	if g := got.gpus["GPU-1"]; g.UsedBytes != nil || g.GetProcessesComplete() || g.GetPowerWatts() != 118.3 || g.Mig != "" || got.processes["GPU-1"] != "" {
		t.Errorf("the whole card: %v", g)
	}
	g := got.gpus["MIG-1-9-1"]
	if g.GetMig() != "9/1" || g.GetIndex() != 1 || g.GetName() != "NVIDIA H200 MIG 2g.35gb" || g.GetTotalBytes() != 37<<30 || g.PowerWatts != nil ||
		!g.GetProcessesComplete() || got.processes["MIG-1-9-1"] != "4242=4846321664" {
		t.Errorf("an instance: %v, %v", g, got.processes)
	}
	// An instance that is taken away is told once; from the next tick on it is unknown.
	*second = nvml.ERROR_INVALID_ARGUMENT
	if got := sampleFrom(t, s); len(got.failures) != 1 || !strings.HasPrefix(got.failures[0].text, "GPU 1 MIG 9/1 (MIG-1-9-1): memory: ") {
		t.Errorf("%v", got.failures)
	}
	if got := sampleFrom(t, s); len(got.gpus) != 3 || join(got.failures) != nil || m.inits != 1 {
		t.Errorf("%v, %v", got.gpus, got.failures)
	}
	// One that is made is found within a minute.
	*second = nvml.SUCCESS
	s.layout = s.layout.Add(-layoutAge)
	if got := sampleFrom(t, s); len(got.gpus) != 4 || join(got.failures) != nil {
		t.Errorf("%v, %v", got.gpus, got.failures)
	}
}
