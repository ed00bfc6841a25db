//go:build cgo

package nvml

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"lowtide/collector/status"
	"lowtide/event"
)

const noInstance = 1<<32 - 1

// watched opens the machine in a bubble and returns what comes of each event that is put in.
func watched(t *testing.T, m *machine, test func(s *session, put func(d nvml.Device, kind, data uint64, instance ...uint32) string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m.events = make(chan nvml.EventData)
		s := m.session()
		var got []string
		if fatal := s.open(func(e *event.Event) {
			if err := event.Validate(e); err != nil {
				t.Error(err)
			}
			got = append(got, strings.TrimSpace(fmt.Sprintf("%d %s %s %s %s", e.Xid.GetCode(), e.Xid.GpuUuid, e.Xid.Pci, e.Xid.Source, e.Xid.Text)))
		}); fatal != nil {
			t.Fatal(fatal)
		}
		defer s.close()
		test(s, func(d nvml.Device, kind, data uint64, instance ...uint32) string {
			e := nvml.EventData{Device: d, EventType: kind, EventData: data, GpuInstanceId: noInstance, ComputeInstanceId: noInstance}
			if len(instance) == 2 {
				e.GpuInstanceId, e.ComputeInstanceId = instance[0], instance[1]
			}
			got = nil
			m.events <- e
			synctest.Wait()
			return strings.Join(got, "; ")
		})
	})
}

func TestXidOfCardAndInstance(t *testing.T) {
	m := newMachine(3)
	divided(m, 1)
	watched(t, m, func(s *session, put func(nvml.Device, uint64, uint64, ...uint32) string) {
		again := &mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return "GPU-2", nvml.SUCCESS }} // another handle of a known card
		lost := &mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }}
		for _, test := range []struct {
			device   nvml.Device
			code     uint64
			instance []uint32
			want     string
		}{
			{m.Devices[0], 31, nil, "31 GPU-0 0000:48:00 nvml"},
			{m.Devices[0], 31, nil, "31 GPU-0 0000:48:00 nvml"}, // two processes may fault alike
			{m.Devices[2], 79, []uint32{0, 0}, "79 GPU-2 0000:4a:00 nvml"},
			{again, 94, nil, "94 GPU-2 0000:4a:00 nvml"},
			{lost, 79, nil, "79   nvml"},
			{m.Devices[1], 43, []uint32{9, 1}, "43 MIG-1-9-1 0000:49:00 nvml"},
			{m.Devices[1], 62, nil, "62 GPU-1 0000:49:00 nvml"},
		} {
			if got := put(test.device, nvml.EventTypeXidCriticalError, test.code, test.instance...); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		}
	})
}

// The driver tells a double-bit error twice, in either order; another one later is another one.
func TestDoubleBitErrorIsToldOnce(t *testing.T) {
	m := newMachine(2)
	watched(t, m, func(s *session, put func(nvml.Device, uint64, uint64, ...uint32) string) {
		const double, critical = nvml.EventTypeDoubleBitEccError, nvml.EventTypeXidCriticalError
		const asDouble, asXid = "48 GPU-0 0000:48:00 nvml double-bit ECC error", "48 GPU-0 0000:48:00 nvml"
		for i, test := range []struct {
			after time.Duration
			kind  uint64
			want  string
		}{
			{0, double, asDouble}, {time.Second, critical, ""}, {time.Second, double, asDouble}, {time.Second, double, asDouble},
			{time.Second, critical, ""}, {time.Minute, critical, asXid}, {time.Second, double, ""}, {time.Minute, double, asDouble},
			{10 * time.Second, critical, asXid},
		} {
			time.Sleep(test.after)
			if got := put(m.Devices[0], test.kind, 48); got != test.want {
				t.Errorf("event %d: %q, want %q", i, got, test.want)
			}
		}
	})
}

func TestEventsThatCannotBeHad(t *testing.T) {
	for name, test := range map[string]struct {
		change       func(m *machine)
		status, text string
	}{
		"no event set": {func(m *machine) {
			m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
		}, status.Unsupported, "Xid events: not supported"},
		"denied": {func(m *machine) {
			m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
		}, status.Denied, "Xid events: not permitted"},
		"no card has them": {func(m *machine) {
			for i := range m.Devices {
				m.card(i).GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypePState, nvml.SUCCESS }
			}
		}, status.Unsupported, "GPU 0 (GPU-0), GPU 1 (GPU-1): Xid events: not supported"},
		"one card refuses": {func(m *machine) {
			m.card(1).RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_NO_PERMISSION }
		}, status.Denied, "GPU 1 (GPU-1): Xid events: not permitted"},
		"the set is broken": {func(m *machine) {
			m.card(0).RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_UNKNOWN }
		}, status.Lost, "GPU 0 (GPU-0): Xid events: unknown error of the driver; hint: see dmesg"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(2)
			test.change(m)
			got := sampleFrom(t, m.session())
			if err := join(got.failures); len(got.gpus) != 2 || status.Of(err) != test.status || err == nil || err.Error() != test.text {
				t.Errorf("%d cards, %s: %v", len(got.gpus), status.Of(err), err)
			}
		})
	}
}

// A wait that fails at once must not spin, is told while it lasts, and ends with its cause.
func TestWaitThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		var waits atomic.Int64
		var broken atomic.Bool
		broken.Store(true)
		m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
			return &mock.EventSet{FreeFunc: func() nvml.Return { return nvml.SUCCESS }, WaitFunc: func(milliseconds uint32) (nvml.EventData, nvml.Return) {
				if broken.Load() {
					waits.Add(1)
					return nvml.EventData{}, nvml.ERROR_GPU_IS_LOST
				}
				time.Sleep(time.Duration(milliseconds) * time.Millisecond)
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}}, nvml.SUCCESS
		}
		s := m.session()
		sampleFrom(t, s)
		time.Sleep(10*time.Second + 100*time.Millisecond)
		synctest.Wait()
		if got := sampleFrom(t, s); waits.Load() != 11 || len(got.gpus) != 1 || len(got.failures) != 1 || !strings.HasPrefix(got.failures[0].text, "wait for Xid events: the GPU is lost") {
			t.Errorf("%d waits, %v", waits.Load(), got.failures)
		}
		broken.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := sampleFrom(t, s); join(got.failures) != nil {
			t.Errorf("%v", got.failures)
		}
		s.close()
	})
}
