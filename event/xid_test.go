package event_test

import (
	"testing"

	"lowtide/event"
)

func TestApplicationXid(t *testing.T) {
	for code, want := range map[uint64]bool{
		13: true, 31: true, 43: true, 45: true, 68: true, 109: true, // the device plugin's list
		0: false, 48: false, 62: false, 63: false, 74: false, 79: false, 94: false, 95: false, 119: false, 149: false,
	} {
		if event.ApplicationXid(code) != want {
			t.Errorf("Xid %d: %v", code, !want)
		}
	}
}

func TestACleanUpBlamesWhatItNames(t *testing.T) {
	for _, test := range []struct {
		x    *event.Xid
		want uint64
	}{
		{&event.Xid{Code: event.Ptr(uint64(45)), Text: "45, pid=7, caused by previous Xid 149"}, 149}, // open-gpu-kernel-modules#1150
		{&event.Xid{Code: event.Ptr(uint64(45)), Text: "45, pid=7, channel 0x0a"}, 45},
		{&event.Xid{Code: event.Ptr(uint64(45)), Text: "caused by previous Xid unknown"}, 45},
		{&event.Xid{Text: "no code"}, 0},
	} {
		if got := event.CauseXid(test.x); got != test.want {
			t.Errorf("%v blames %d, want %d", test.x, got, test.want)
		}
	}
	if !event.InformationalXid(63) || event.InformationalXid(64) {
		t.Error("a remapped row is news, one that could not be remapped is a fault")
	}
}
