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
