package snapshot

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

func childDoing(behaviour string) Child {
	return Child{Argv: []string{os.Args[0], "child", behaviour}, Deadline: 20 * time.Second}
}

// smallPickle is a snapshot of protocol 2 with one segment of 2 MiB, of which 512 bytes are live: what pickle.dumps made of
// {"segments": [{"device": 0, "address": 4096, "total_size": 2097152, "allocated_size": 512, "active_size": 512, "requested_size": 500,
// "stream": 0, "segment_type": "smallPickle", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks":
// [{"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": []},
// {"address": 4608, "size": 2096640, "requested_size": 0, "state": "inactive", "frames": []}]}], "device_traces": [[]]}.
const smallPickle = "" +
	"\x80\x02}q\x00(X\x08\x00\x00\x00segmentsq\x01]q\x02}q\x03(X\x06\x00\x00\x00deviceq\x04K\x00X\x07\x00\x00\x00addressq\x05M\x00\x10X" +
	"\x0a\x00\x00\x00total_sizeq\x06J\x00\x00 \x00X\x0e\x00\x00\x00allocated_sizeq\x07M\x00\x02X\x0b\x00\x00\x00active_sizeq\x08M\x00" +
	"\x02X\x0e\x00\x00\x00requested_sizeq\x09M\xf4\x01X\x06\x00\x00\x00streamq\x0aK\x00X\x0c\x00\x00\x00segment_typeq\x0bX\x05\x00\x00" +
	"\x00smallq\x0cX\x0f\x00\x00\x00segment_pool_idq\x0dK\x00K\x00\x86q\x0eX\x0d\x00\x00\x00is_expandableq\x0f\x89X\x06\x00\x00\x00fram" +
	"esq\x10]q\x11X\x06\x00\x00\x00blocksq\x12]q\x13(}q\x14(h\x05M\x00\x10X\x04\x00\x00\x00sizeq\x15M\x00\x02h\x09M\xf4\x01X\x05\x00" +
	"\x00\x00stateq\x16X\x10\x00\x00\x00active_allocatedq\x17h\x10]q\x18u}q\x19(h\x05M\x00\x12h\x15J\x00\xfe\x1f\x00h\x09K\x00h\x16X" +
	"\x08\x00\x00\x00inactiveq\x1ah\x10]q\x1bueuaX\x0d\x00\x00\x00device_tracesq\x1c]q\x1d]q\x1eau."

func rawFile(t *testing.T, text string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func TestChildSummarises(t *testing.T) {
	devices, err := childDoing("read").Summarise(t.Context(), rawFile(t, smallPickle), nil, "retention, or not", map[string]string{"0": "GPU-7"})
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 1 || devices[0].GpuUuid != "GPU-7" || devices[0].Reason != "retention, or not" || devices[0].GetReservedBytes() != 2<<20 || devices[0].GetLiveBytes() != 512 {
		t.Errorf("%v", devices)
	}
	// An earlier one that cannot be read costs the growth, and nothing else.
	devices, err = childDoing("read").Summarise(t.Context(), rawFile(t, smallPickle), rawFile(t, "no pickle"), "asked", nil)
	if err != nil {
		t.Fatal(err)
	}
	if lacking := strings.Join(devices[0].Lacking, " "); !strings.Contains(lacking, "the earlier snapshot cannot be read") || devices[0].GetReservedBytes() != 2<<20 {
		t.Errorf("%v", devices)
	}
}

func TestChildrenThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		child Child
		raw   string
		is    error
		says  string // one of these
	}{
		"a class":      {childDoing("read"), "\x80\x02cos\nsystem\n.", ErrUnreadable, "GLOBAL"},
		"cut off":      {childDoing("read"), smallPickle[:len(smallPickle)-9], ErrUnreadable, "exit status 1: error: "},
		"hangs":        {Child{childDoing("hang").Argv, 100 * time.Millisecond}, smallPickle, context.DeadlineExceeded, "within 100ms"},
		"floods":       {childDoing("flood"), smallPickle, ErrUnreadable, "more than 1048576 bytes"},
		"eats memory":  {childDoing("grow"), smallPickle, ErrUnreadable, " memory| allocate"},
		"says nothing": {childDoing("silent"), smallPickle, ErrUnreadable, "no device"},
		"is not there": {Child{Argv: []string{"/nonexistent/lowtide"}}, smallPickle, os.ErrNotExist, "/nonexistent/lowtide"},
	} {
		t.Run(name, func(t *testing.T) {
			devices, err := c.child.Summarise(t.Context(), rawFile(t, c.raw), nil, "asked", nil)
			if !errors.Is(err, c.is) || !errors.Is(err, ErrUnreadable) || !slices.ContainsFunc(strings.Split(c.says, "|"), func(s string) bool { return strings.Contains(err.Error(), s) }) {
				t.Errorf("%v, %v", devices, err)
			}
		})
	}
	if err := new(ChildCommand).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("started by hand: %v", err)
	}
}

// A program that is started as the child and does not know it must not start itself again, however it came to that.
func TestChildrenOfChildren(t *testing.T) {
	_, err := childDoing("nested").Summarise(t.Context(), rawFile(t, smallPickle), nil, "asked", nil)
	if err == nil || !strings.Contains(err.Error(), "a child already, which starts no other") {
		t.Errorf("%v", err)
	}
	if _, err := (Child{}).Summarise(t.Context(), rawFile(t, smallPickle), nil, "asked", nil); err == nil || !strings.Contains(err.Error(), "would run its tests as the child; hint: ") {
		t.Errorf("a test that does not know the command: %v", err)
	}
	for _, args := range [][]string{{}, {"-test.run=."}, {"snapshot-child", "--reason=asked"}} {
		_, err := Child{Argv: append([]string{os.Args[0]}, args...), Deadline: 20 * time.Second}.Summarise(t.Context(), rawFile(t, smallPickle), nil, "asked", nil)
		if err == nil || !strings.Contains(err.Error(), "exit status 3") {
			t.Errorf("the tests as a child, %v: %v", args, err)
		}
	}
}

// Nor may one that lost the mark on the way run the tests, which would start it again, generation after generation.
func TestChildWithoutItsMark(t *testing.T) {
	const nowhere = "TMPDIR=/nonexistent" // ends the tests of a child that runs them all the same
	if slices.Contains(os.Environ(), nowhere) {
		t.Fatal("a child runs the tests")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, os.Args[0], "child", "read")
	command.Env = []string{nowhere}
	said, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "without its mark") {
		t.Errorf("%v: %s", err, said)
	}
}

// The deadline ends what the child has started, too.
func TestDeadlineOfFamilies(t *testing.T) {
	note := filepath.Join(t.TempDir(), "pid")
	t.Setenv("PATH", note)
	_, err := Child{childDoing("family").Argv, time.Second}.Summarise(t.Context(), rawFile(t, smallPickle), nil, "asked", nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(note)
	if err != nil {
		t.Skipf("SKIPPED: this machine has not started a grandchild within a second: %v", err)
	}
	// Killed before Summarise returns; it may stand as a zombie until somebody buries it.
	for range 1000 {
		stat, err := os.ReadFile("/proc/" + string(text) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("process %s lives on", text)
}

// Eight cards of a quarter MiB each are more than a mebibyte: the longest lists of stacks are cut until it fits.
func TestSummaryThatIsTooLong(t *testing.T) {
	var devices []*event.Snapshot
	for range 8 {
		d := &event.Snapshot{ReservedBytes: event.Ptr(uint64(1))}
		for range 256 {
			d.Stacks = append(d.Stacks, &event.SnapshotStack{Frames: []string{strings.Repeat("f", 960)}})
		}
		devices = append(devices, d)
	}
	text, err := fitSummary(devices)
	if err != nil || len(text) > maxAnswer || len(text) < maxAnswer/2 {
		t.Fatalf("%d bytes, %v", len(text), err)
	}
	cut, err := parseSummary(text)
	if err != nil || len(cut) != 8 {
		t.Fatalf("%d devices, %v", len(cut), err)
	}
	for _, d := range cut {
		if said := len(d.Lacking) == 1; said != (len(d.Stacks) < 256) {
			t.Errorf("%d stacks, lacking %v", len(d.Stacks), d.Lacking)
		}
	}
	if _, err := fitSummary([]*event.Snapshot{{Reason: strings.Repeat("r", maxAnswer)}}); err == nil {
		t.Error("what cannot be cut fits")
	}
}

func FuzzSummaryOfChild(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-30T12:00:00Z","snapshot":{"gpu_uuid":"GPU-1","live_bytes":3}}` + "\n"))
	f.Add([]byte(`{"time":"2026-11-30T12:00:00Z","mark":{"kind":"busy"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > maxAnswer {
			return
		}
		devices, err := parseSummary(text)
		if err == nil && len(devices) == 0 || err != nil && devices != nil {
			t.Fatalf("%v, %v", devices, err)
		}
	})
}
