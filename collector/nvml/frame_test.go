package nvml

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/status"
	"lowtide/event"
)

var frameTick = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

func TestFrameOnTheWire(t *testing.T) {
	var out bytes.Buffer
	w := &frameWriter{out: &out}
	if err := w.ask("GPU-a"); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "\x00\x00\x00\x06aGPU-a"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	out.Reset()
	if err := w.write(hello, &event.Batch{Schema: 1}); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "\x00\x00\x00\x03h\x08\x01"; got != want { // field 1, varint 1
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFramesComeBack(t *testing.T) {
	var out bytes.Buffer
	w := &frameWriter{out: &out}
	b := cardBatch("GPU-a", timestamppb.New(frameTick))
	b.Events = append(b.Events, reasons([]failure{{status.Denied, "GPU 0: power: not permitted"}}).Events...)
	if err := errors.Join(w.add(device, b), w.write(end, reasons([]failure{{status.Unsupported, "Xid events: not supported"}}))); err != nil {
		t.Fatal(err)
	}
	r := newFrameReader(&out)
	m, err := r.next()
	if err != nil || m.kind != device || m.uuid != "GPU-a" || len(m.events) != 2 || m.events[1].GpuProcess.GetUsedBytes() != 1<<29 {
		t.Errorf("%+v, %v", m, err)
	}
	if len(m.failures) != 1 || status.Of(m.failures[0]) != status.Denied || m.failures[0].Error() != "GPU 0: power: not permitted" {
		t.Errorf("%v", m.failures)
	}
	if m, err := r.next(); err != nil || m.kind != end || len(m.failures) != 1 || status.Of(m.failures[0]) != status.Unsupported {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := r.next(); err != io.EOF {
		t.Errorf("%v", err)
	}
}

func TestBadFrames(t *testing.T) {
	frame := func(size uint32, rest string) string {
		return string(binary.BigEndian.AppendUint32(nil, size)) + rest
	}
	many := "d" + strings.Repeat("\x3a\x00", maxEvents+1) // field 7, no bytes
	for name, test := range map[string]struct {
		bytes string
		want  error
	}{
		"empty":           {frame(0, ""), errGarbage},
		"too long":        {frame(maxFrame+1, "d"), errGarbage},
		"cut off":         {frame(100, "dxyz"), io.ErrUnexpectedEOF},
		"cut head":        {"\x00\x00", io.ErrUnexpectedEOF},
		"unknown kind":    {frame(1, "?"), errGarbage},
		"no protobuf":     {frame(3, "d\xff\xff"), errGarbage},
		"no uuid":         {frame(1, "d"), errGarbage},
		"uuid of a line":  {frame(8, "aGPU-a\nb"), errGarbage},
		"too many events": {frame(uint32(len(many)), many), errGarbage},
		"event of nobody": {frame(8, "d\x1a\x03GPU\x3a\x00"), errGarbage}, // field 3 source, field 7 an event without a time
	} {
		if _, err := newFrameReader(strings.NewReader(test.bytes)).next(); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func TestRequestLine(t *testing.T) {
	line := string(request{tick: frameTick, skip: []string{"GPU-a", "MIG-b"}}.line())
	if want := "sample 1773489600000000000 GPU-a MIG-b\n"; line != want {
		t.Fatalf("%q, want %q", line, want)
	}
	r, err := parseRequest(line)
	if err != nil || !r.tick.Equal(frameTick) || strings.Join(r.skip, " ") != "GPU-a MIG-b" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "sample", "sample x", "sample -1", "stop 1", "sample 99999999999999999999"} {
		if r, err := parseRequest(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, r)
		}
	}
}

func TestJoinedFailuresAreOneLine(t *testing.T) {
	err := join([]failure{{status.Lost, "GPU 0: lost"}, {status.Denied, "GPU 1: denied"}})
	if err.Error() != "GPU 0: lost; GPU 1: denied" || !errors.Is(err, status.ErrLost) || !errors.Is(err, status.ErrDenied) {
		t.Errorf("%v", err)
	}
	if join(nil) != nil {
		t.Error("no failure is an error")
	}
	var flood []failure
	for range 10000 {
		flood = append(flood, failure{status.Lost, "the same again"})
	}
	if size := len(join(flood).Error()); size > maxReason+len("…") {
		t.Errorf("%d bytes", size)
	}
}

func FuzzFrames(f *testing.F) {
	var out bytes.Buffer
	w := &frameWriter{out: &out}
	seeds := []func() error{
		func() error { return w.write(hello, &event.Batch{Schema: protocol}) },
		func() error { return w.ask("GPU-a") },
		func() error { return w.write(device, cardBatch("GPU-a", timestamppb.New(frameTick))) },
		func() error { return w.write(end, reasons([]failure{{status.Lost, "GPU 0: lost"}})) },
		func() error { return w.write(failed, reasons([]failure{{status.Absent, "no driver"}})) },
	}
	for _, seed := range seeds {
		if err := seed(); err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(out.Bytes()))
	}
	f.Add([]byte("NVRM: this line was meant for somebody else\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := newFrameReader(bytes.NewReader(stream))
		for {
			m, err := r.next()
			if err != nil {
				if err != io.EOF && !errors.Is(err, errGarbage) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("an error of another kind: %v", err)
				}
				return
			}
			for _, e := range m.events {
				if err := event.Validate(e); err != nil {
					t.Fatal(err)
				}
			}
			if (m.kind == asking || m.kind == device) && len(m.uuid) > maxUUID {
				t.Fatalf("a uuid of %d bytes", len(m.uuid))
			}
		}
	})
}

// tick8 is one tick of eight cards with one process each, all fields set.
func tick8() []*event.Batch {
	var all []*event.Batch
	for i := range 8 {
		uuid := "GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f" + string(rune('0'+i))
		b := cardBatch(uuid, timestamppb.New(frameTick))
		g := b.Events[0].Gpu
		g.Index, g.Name = event.Ptr(int64(i)), "NVIDIA H200"
		g.TotalBytes, g.FreeBytes, g.DriverReservedBytes = event.Ptr(uint64(150754820096)), event.Ptr(uint64(145262510080)), event.Ptr(uint64(644939776))
		g.ProcessesComplete, g.RemapPending = event.Ptr(true), event.Ptr(false)
		g.PowerWatts, g.TemperatureCelsius, g.Utilization = event.Ptr(118.3), event.Ptr(33.0), event.Ptr(0.97)
		g.EccCorrectedTotal, g.EccUncorrectedTotal, g.RemappedRows = event.Ptr(uint64(0)), event.Ptr(uint64(0)), event.Ptr(uint64(0))
		all = append(all, b)
	}
	return all
}

// BenchmarkTick is what the pipe costs both sides for one tick of eight cards.
func BenchmarkTick(b *testing.B) {
	batches := tick8()
	var out bytes.Buffer
	w := &frameWriter{out: &out}
	r := newFrameReader(&out)
	b.ReportAllocs()
	for b.Loop() {
		for _, batch := range batches {
			if err := errors.Join(w.ask(batch.Source), w.add(device, batch)); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.write(end, new(event.Batch)); err != nil {
			b.Fatal(err)
		}
		for {
			m, err := r.next()
			if err != nil {
				b.Fatal(err)
			}
			if m.kind == end {
				break
			}
		}
	}
}
