package worker

import (
	"testing"
	"time"

	"lowtide/event"
)

func (s *stage) xid(code int) { s.give(&event.Event{Xid: &event.Xid{Code: u(code), GpuUuid: "GPU-1"}}) }

// gpu plays a tick with the totals of the card.
func (s *stage) gpu(corrected, uncorrected, rows int, pending bool) {
	s.give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", EccCorrectedTotal: u(corrected), EccUncorrectedTotal: u(uncorrected), RemappedRows: u(rows), RemapPending: &pending}})
	s.Close()
	s.at = s.at.Add(5 * time.Second)
}

func TestXidsInOrderOfTime(t *testing.T) {
	type at struct{ second, code int }
	for name, test := range map[string]struct {
		xids        []at
		first, last float64
		count       float64
		application string
		device      string
	}{
		"root hidden by clean-up (kernel modules#446)": {[]at{{0, 62}, {1, 45}, {1, 45}, {2, 45}}, 62, 45, 4, "false", "true"},
		"told in the wrong order":                      {[]at{{3, 45}, {1, 62}}, 62, 45, 2, "false", "true"},
		"an illegal access, and what it tears down":    {[]at{{0, 31}, {1, 43}, {1, 45}}, 31, 45, 3, "true", "false"},
		"a row was remapped":                           {[]at{{0, 63}}, nan, 63, 1, "false", "false"},
		"a row was remapped, then an illegal access":   {[]at{{0, 63}, {9, 13}}, 13, 13, 2, "true", "false"},
		"a row could not be":                           {[]at{{0, 64}}, 64, 64, 1, "false", "true"},
		"off the bus":                                  {[]at{{0, 79}}, 79, 79, 1, "false", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			origin := s.at
			for _, x := range test.xids {
				s.at = origin.Add(time.Duration(x.second) * time.Second)
				s.xid(x.code)
			}
			s.want("xid.first", test.first)
			s.want("xid.last", test.last)
			s.want("xid.count", test.count)
			s.wantFlag("xid.application", test.application)
			s.wantFlag("symptom.device", test.device)
		})
	}
}

// 0xSero: the 13 comes 60 to 70 s after the engine is down, first the core dump is written. It is the end of kernels that still ran.
func TestAnXidAfterTheEndIsNoCause(t *testing.T) {
	s := newStage(t)
	s.minutes(3, func(i int, e *event.Engine) { e.Running = u(3) })
	s.give(&event.Event{Lifecycle: &event.Lifecycle{State: "exited"}})
	s.at = s.at.Add(5 * time.Second)
	s.xid(31) // the kernel log is read a moment later
	s.at = s.at.Add(60 * time.Second)
	s.xid(13)
	s.want("xid.first", 31)
	s.want("xid.count", 1)

	s = newStage(t)
	for range 20 {
		s.give(&event.Event{Engine: &event.Engine{Running: u(3), Waiting: u(0)}})
		s.Close()
		s.at = s.at.Add(5 * time.Second)
	}
	s.at = s.at.Add(65 * time.Second)
	s.xid(13) // the process still writes its core dump, the engine has been silent since
	s.want("xid.first", nan)
	s.wantFlag("xid.application", "unknown")
	s.xid(79) // what the device does is not the program's after-effect
	s.want("xid.first", 79)
}

func TestNoXidIsKnownWhereTheDeviceIsRead(t *testing.T) {
	s := newStage(t)
	s.wantFlag("symptom.device", "unknown")
	s.gpu(0, 0, 0, false)
	s.wantFlag("symptom.device", "false")
	s.wantFlag("xid.application", "false")
	s.want("xid.count", 0)
}

// The card's totals are older than the process, and fall when the driver is loaded anew.
func TestECCIsCountedFromTheFirstReading(t *testing.T) {
	s := newStage(t)
	s.gpu(1000, 7, 2, false)
	s.want("ecc.uncorrected_delta", 0)
	s.wantFlag("ecc.first", "false")
	s.gpu(1012, 7, 2, false)
	s.want("ecc.corrected_delta", 12)
	s.wantFlag("symptom.device", "false") // corrected ones are not a fault
	s.gpu(3, 0, 2, false)
	s.gpu(4, 1, 3, true)
	s.want("ecc.corrected_delta", 13)
	s.want("ecc.uncorrected_delta", 1)
	s.want("remap.rows_delta", 1)
	s.wantFlag("remap.pending", "true")
	s.wantFlag("ecc.first", "true")
	s.wantFlag("symptom.device", "true")
	s.xid(31)
	s.wantFlag("ecc.first", "true")
}

func TestECCAfterTheXidIsNotFirst(t *testing.T) {
	s := newStage(t)
	s.gpu(0, 0, 0, false)
	s.at = s.at.Add(-4 * time.Second)
	s.xid(31)
	s.at = s.at.Add(4 * time.Second)
	s.gpu(0, 0, 0, false)
	s.gpu(0, 2, 0, false)
	s.wantFlag("ecc.first", "false")
}

// ChatGLM3#681: the error and the Xid fall between two readings. Nobody knows which was first; the device is believed.
func TestECCInTheTickOfTheXidIsFirst(t *testing.T) {
	s := newStage(t)
	s.gpu(0, 0, 0, false)
	s.at = s.at.Add(-2 * time.Second)
	s.xid(13)
	s.at = s.at.Add(2 * time.Second)
	s.gpu(0, 2, 0, false)
	s.wantFlag("ecc.first", "true")
}

func TestAStormOfXidsIsBounded(t *testing.T) {
	s := newStage(t)
	for range 500 {
		s.xid(45)
	}
	s.want("xid.count", maxXids)
	if n := cap(s.faults.New); n > maxXids {
		t.Errorf("%d are kept", n)
	}
}
