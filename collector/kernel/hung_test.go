package kernel

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// A driver that hangs and a storm of Xids come together. The log is read on, since the kernel keeps only so much of it.
func TestAHungDriverDoesNotHoldUpAStorm(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "driver/nvidia/gpus/0000:48:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	information := filepath.Join(dir, "information")
	if err := syscall.Mkfifo(information, 0o600); err != nil { // an open of it does not return
		t.Fatal(err)
	}
	g := newGPUs(root)
	began := time.Now()
	for range 40 {
		if got := g.uuid("0000:48:00"); got != "" {
			t.Fatalf("%q", got)
		}
	}
	if took := time.Since(began); took > 20*readPatience {
		t.Errorf("forty Xids took %v", took)
	}
	// It comes back: what the reading found is known from then on.
	driver, err := os.OpenFile(information, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := driver.WriteString("GPU UUID: \t GPU-efbdfde9-5798-a6e7-4c46-12518fa15375\n"); err != nil {
		t.Fatal(err)
	}
	driver.Close()
	g.await(time.Minute)
	if got := g.uuid("0000:48:00"); got != "GPU-efbdfde9-5798-a6e7-4c46-12518fa15375" {
		t.Errorf("%q", got)
	}
}

// The clock of a host is often set soon after it has started. An Xid after that is no repeat of one that seems to lie ahead.
func TestAClockThatIsSetBackHidesNoXid(t *testing.T) {
	var l limiter
	lost := func(at time.Time) *event.Event {
		return &event.Event{Time: timestamppb.New(at), Xid: &event.Xid{Code: event.Ptr(uint64(busLost)), Pci: "0000:48:00", Source: "kmsg"}}
	}
	if !l.keep(lost(noon)) {
		t.Error("the first is not kept")
	}
	if l.keep(lost(noon.Add(time.Second))) {
		t.Error("a repeat is kept")
	}
	if !l.keep(lost(noon.Add(-time.Hour))) {
		t.Error("the first after the clock was set back is not kept")
	}
	if l.keep(lost(noon.Add(-time.Hour + time.Second))) {
		t.Error("a repeat after the clock was set back is kept")
	}
}
