package collector

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// A full disk ends the recording, once, with the reason.
func TestRecordingOnAFullDisk(t *testing.T) {
	for _, zipped := range []bool{false, true} {
		file, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skipf("SKIPPED: no /dev/full here: a full disk is not tested: %v", err)
		}
		defer file.Close()
		var ended []error
		r := newRecorder(file, zipped, func(err error) { ended = append(ended, err) })
		at := time.Unix(1_790_000_000, 0)
		for len(ended) == 0 && at.Before(time.Unix(1_790_000_000+60, 0)) {
			events := machineAt(at)
			events[0].Host = testHost
			_ = r.Publish("s", events) // the error is handed to fail
			at = at.Add(5 * time.Second)
		}
		if len(ended) != 1 || !errors.Is(ended[0], syscall.ENOSPC) {
			t.Errorf("zipped %v: ended with %v", zipped, ended)
		}
		written := r.written
		if err := r.Publish("s", []*event.Event{{Time: timestamppb.New(at), Host: testHost, Oom: &event.Oom{Kind: "cuda"}}}); err == nil || r.written != written {
			t.Errorf("zipped %v: it goes on writing after %v", zipped, err)
		}
		if err := r.close(); !errors.Is(err, syscall.ENOSPC) || strings.Count(err.Error(), "no space") != 1 {
			t.Errorf("zipped %v: closed with %v", zipped, err)
		}
	}
}
