package event

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// alike fails unless a reader that has a past makes of a message exactly what protobuf and Validate make of it.
func alike(t *testing.T, r *BatchReader, kind string, data []byte) {
	t.Helper()
	want, wantWarnings, wantErr := DecodeBatch(kind, data)
	got, warnings, err := r.Decode(kind, data)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) || fmt.Sprint(warnings) != fmt.Sprint(wantWarnings) {
		t.Fatalf("%x\ngives %v, %q\nwant %v, %q", data, err, warnings, wantErr, wantWarnings)
	}
	if err != nil {
		return
	}
	if !proto.Equal(got, want) || !bytes.Equal(marshalled(t, got), marshalled(t, want)) {
		t.Fatalf("%x\ngives %v\nwant %v", data, got, want)
	}
	for i, e := range got.Events {
		if e.Host != got.Host && !proto.Equal(e.Host, want.Events[i].Host) {
			t.Fatalf("event %d has host %v", i, e.Host)
		}
	}
}

func marshalled(t *testing.T, b *Batch) []byte {
	t.Helper()
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// recordedBatches are the events of the recording, of one tick in each.
func recordedBatches(t testing.TB, most int) [][]byte {
	t.Helper()
	var out [][]byte
	var batch *Batch
	for line := range bytes.Lines(recorded(t)) {
		e, _, err := UnmarshalEvent(bytes.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		if batch == nil || !proto.Equal(batch.Events[0].Time, e.Time) {
			if batch != nil {
				text, err := EncodeBatch(batch)
				if err != nil {
					t.Fatal(err)
				}
				if out = append(out, text); len(out) == most {
					break
				}
			}
			batch = &Batch{Host: e.Host, Source: "all", Producer: "p", Lane: LaneSamples, Sequence: uint64(len(out) + 1)}
		}
		batch.Events = append(batch.Events, e)
	}
	return out
}

func TestBatchReaderReadsARecording(t *testing.T) {
	r, plain := NewBatchReader(), 0
	batches := recordedBatches(t, math.MaxInt)
	for _, text := range batches {
		alike(t, r, "", text)
		if r.plain(text) != nil {
			plain++
		}
	}
	if len(batches) < 400 || plain < len(batches)*99/100 {
		t.Errorf("%d of %d batches are plain: the others cost ten times as much", plain, len(batches))
	}
}

// oddBatches are messages that protobuf takes, or refuses, and that are not in the plain form.
func oddBatches(t testing.TB) map[string][]byte {
	t.Helper()
	text := func(b []byte, n protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
	}
	number := func(b []byte, n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
	}
	host := text(text(nil, 1, []byte("c")), 2, []byte("n"))
	worker := number(nil, 1, 42)
	stamp := number(nil, 1, 1_800_000_000)
	event := func(body protowire.Number, content []byte) []byte {
		return text(text(text(nil, 1, stamp), 3, worker), body, content)
	}
	batch := func(events ...[]byte) []byte {
		b := text(text(text(text(number(nil, 1, Schema), 2, host), 3, []byte("s")), 4, []byte("p")), 5, []byte(LaneSamples))
		for _, e := range events {
			b = text(b, 7, e)
		}
		return b
	}
	process := number(nil, 1, 5)
	double := func(v float64) []byte {
		return protowire.AppendFixed64(protowire.AppendTag(nil, 10, protowire.Fixed64Type), math.Float64bits(v))
	}
	of := func(worker []byte) []byte { return batch(text(text(text(nil, 1, stamp), 3, worker), 14, process)) }
	return map[string][]byte{
		"plain":                   batch(event(14, process)),
		"empty":                   batch(),
		"empty body":              batch(event(14, nil)),
		"field twice":             batch(event(14, number(process, 1, 6))),
		"two bodies":              batch(text(event(14, process), 14, number(nil, 2, 6))),
		"two bodies of two kinds": batch(text(event(14, process), 12, number(nil, 4, 6))),
		"unknown field":           batch(event(14, number(process, 90, 6))),
		"unknown body":            batch(event(29, process)),
		"other kind":              batch(event(14, text(nil, 1, []byte("x")))),
		"rare body":               batch(event(21, text(nil, 1, []byte("m")))),
		"invalid text":            batch(event(12, text(nil, 2, []byte{0xff}))),
		"no worker":               batch(text(text(nil, 1, stamp), 14, process)),
		"host in the event":       batch(text(event(14, process), 2, host)),
		"other host":              batch(text(event(14, process), 2, text(text(nil, 1, []byte("c")), 2, []byte("m")))),
		"two hosts":               text(batch(event(14, process)), 2, text(nil, 3, []byte("boot"))),
		"no time":                 batch(text(text(nil, 3, worker), 14, process)),
		"time of zero":            batch(text(text(text(nil, 1, nil), 3, worker), 14, process)),
		"two times":               batch(text(event(14, process), 1, number(nil, 2, 5))),
		"nanos too large":         batch(text(text(text(nil, 1, number(stamp, 2, 2e9)), 3, worker), 14, process)),
		"no pid":                  batch(text(text(text(nil, 1, stamp), 3, text(nil, 4, []byte("worker"))), 14, process)),
		"not finite":              batch(event(14, protowire.AppendFixed64(protowire.AppendTag(nil, 10, protowire.Fixed64Type), math.Float64bits(math.NaN())))),
		"long varint":             batch(event(14, append(protowire.AppendTag(nil, 1, protowire.VarintType), 0x85, 0x80, 0x00))),
		"varint too long":         batch(event(14, append(protowire.AppendTag(nil, 1, protowire.VarintType), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02))),
		"torn":                    batch(event(14, process))[:20],
		"other schema":            number(batch(event(14, process)), 1, 9),
		"no lane":                 text(batch(event(14, process)), 5, nil),
		"gpu without uuid":        batch(text(text(nil, 1, stamp), 10, number(nil, 4, 5))),
		"bool of two":             batch(event(12, number(nil, 3, 2))),
		"group":                   protowire.AppendTag(batch(), 15, protowire.StartGroupType),
		"text too long":           batch(event(12, text(nil, 2, bytes.Repeat([]byte("x"), maxString+1)))),
		"long text":               batch(event(12, text(nil, 2, bytes.Repeat([]byte("x"), maxString)))),
		"empty text":              batch(event(12, text(nil, 2, nil))),
		"empty text and a number": batch(event(12, number(text(nil, 2, nil), 4, 0))),
		"number of nine bytes":    batch(event(14, number(nil, 12, 1<<62))),
		"number of ten bytes":     batch(event(14, number(nil, 12, math.MaxUint64))),
		"number of eight bytes":   batch(event(14, number(number(nil, 12, 1<<56-1), 11, 1<<49))),
		"number at the very end":  batch(event(14, number(nil, 1, 1<<40))),
		"number beyond the body":  batch(text(event(14, []byte{1 << 3, 0x80}), 3, nil)),
		"number beyond the end":   append(batch(event(14, process)), 6<<3, 0xff, 0xff),
		"text beyond the body":    batch(text(text(text(nil, 1, stamp), 3, worker), 12, []byte{2<<3 | 2, 5, 'x'})),
		"tag beyond the body":     batch(event(12, []byte{0x80})),
		"double beyond the body":  batch(event(14, double(1)[:8])),
		"long tag":                batch(event(14, []byte{0x88, 0x80, 0x00, 5})),
		"padded tag":              batch(event(14, []byte{0x88, 0x00, 5})),
		"field of number zero":    batch(event(14, []byte{0x00, 5})),
		"fixed of four bytes":     batch(event(14, []byte{1<<3 | 5, 1, 2, 3, 4})),
		"largest double":          batch(event(14, double(-maxNumber))),
		"double too large":        batch(event(14, double(math.Nextafter(maxNumber, math.Inf(1))))),
		"infinite":                batch(event(14, double(math.Inf(-1)))),
		"negative zero":           batch(event(14, double(math.Copysign(0, -1)))),
		"machine":                 batch(text(text(nil, 1, stamp), 15, text(number(nil, 1, 7), 5, []byte("550")))),
		"empty machine":           batch(text(text(nil, 1, stamp), 15, text(nil, 5, nil))),
		"gpu of a worker":         batch(event(10, text(nil, 1, []byte("GPU-1")))),
		"body before time":        batch(text(text(text(nil, 14, process), 1, stamp), 3, worker)),
		"two workers":             batch(text(event(14, process), 3, number(nil, 1, 43))),
		"host after events":       text(append(number(nil, 1, Schema), text(nil, 7, event(14, process))...), 2, host),
		"several workers":         batch(event(14, process), text(text(text(nil, 1, stamp), 3, number(nil, 1, 43)), 14, process), event(14, process), text(text(nil, 1, stamp), 10, text(nil, 1, []byte("GPU-1"))), event(14, process)),
		"several times":           batch(event(14, process), text(text(text(nil, 1, number(stamp, 2, 7)), 3, worker), 14, process), event(14, process)),
		"worker with all":         of(text(text(text(text(text(text(number(text(text(text(number(text(text(number(worker, 2, 9), 3, stamp), 4, []byte("worker")), 5, 1), 6, []byte("GPU-1")), 6, []byte("GPU-2")), 7, []byte("vllm")), 8, 2), 9, []byte("u")), 10, []byte("m")), 11, []byte("r")), 12, []byte("p")), 13, []byte("c")), 6, nil)),
		"worker of old":           of(text(worker, 3, nil)),
		"worker of two starts":    of(text(text(worker, 3, stamp), 3, number(nil, 2, 5))),
		"worker of tomorrow":      of(number(worker, 90, 1)),
		"worker of no text":       of(text(worker, 9, []byte{0xff})),
		"worker of long texts":    of(text(text(worker, 9, bytes.Repeat([]byte("u"), maxString)), 12, bytes.Repeat([]byte("p"), maxString))),
		"worker of a long text":   of(text(worker, 9, bytes.Repeat([]byte("u"), maxString+1))),
		"worker of two pids":      of(number(worker, 1, 44)),
		"worker of a lower pid":   of(number(worker, 1, math.MaxUint64)),
	}
}

func TestBatchReaderReadsAsProtobufDoes(t *testing.T) {
	r := NewBatchReader()
	for range 2 { // with nothing remembered, and with all of it
		for name, text := range oddBatches(t) {
			t.Run(name, func(t *testing.T) { alike(t, r, "", text) })
		}
	}
	if b := r.plain(oddBatches(t)["plain"]); b == nil || b.Events[0].Process.GetRssBytes() != 5 {
		t.Errorf("the plain one is read as %v", b)
	}
}

// byProtobuf is what EncodeBatch has always written.
func byProtobuf(t *testing.T, b *Batch) ([]byte, error) {
	t.Helper()
	lean := &Batch{Schema: Schema, Host: b.Host, Source: b.Source, Producer: b.Producer, Lane: b.Lane, Sequence: b.Sequence}
	for _, e := range b.Events {
		lean.Events = append(lean.Events, withoutHost(e))
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(lean)
}

// sameBytes fails unless EncodeBatch writes what protobuf writes, to the byte.
func sameBytes(t *testing.T, b *Batch) {
	t.Helper()
	want, wantErr := byProtobuf(t, b)
	got, err := EncodeBatch(b)
	if (err != nil) != (wantErr != nil) || !bytes.Equal(got, want) {
		t.Fatalf("%v\nis written as %x (%v)\nwant %x (%v)", b, got, err, want, wantErr)
	}
}

func TestEncodeBatchWritesAsProtobufDoes(t *testing.T) {
	var all []*Batch
	for _, text := range append(recordedBatches(t, math.MaxInt), oddBatches(t)["plain"], oddBatches(t)["rare body"], oddBatches(t)["empty"], oddBatches(t)["bool of two"]) {
		b, _, err := DecodeBatch("", text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	for _, change := range []func(*Event){
		func(e *Event) { e.Worker.GpuUuids = []string{"", "GPU-1"} },
		func(e *Event) { e.Worker.Rank, e.Worker.EngineIndex = Ptr(int64(-1)), Ptr(int64(0)) },
		func(e *Event) { e.Worker.Model = "\xff" },
		func(e *Event) { e.Worker.StartTime = nil },
		func(e *Event) { e.Time.Seconds, e.Time.Nanos = -5, -7 },
		func(e *Event) { e.Process.CpuSecondsTotal = Ptr(math.Copysign(0, -1)) },
		func(e *Event) { e.Process = &Process{} },
		func(e *Event) {
			e.Process, e.Engine = nil, &Engine{KvUsage: Ptr(0.5), Sleeping: Ptr(false), Running: Ptr(uint64(math.MaxUint64))}
		},
		func(e *Event) {
			e.Process, e.Gpu = nil, &Gpu{Uuid: "GPU-1", Index: Ptr(int64(-3)), Mig: "m", RemapPending: Ptr(true)}
		},
		func(e *Event) { e.Process, e.Allocator = nil, &Allocator{Backend: "\xff"} },
		func(e *Event) { e.Process.ProtoReflect().SetUnknown([]byte{0x98, 6, 1}) },
		func(e *Event) { e.Worker.ProtoReflect().SetUnknown([]byte{0x98, 6, 1}) },
		func(e *Event) { e.Time.ProtoReflect().SetUnknown([]byte{0x98, 6, 1}) },
		func(e *Event) { e.Gpu = &Gpu{Uuid: "two bodies"} },
	} {
		b, _, err := DecodeBatch("", oddBatches(t)["plain"])
		if err != nil {
			t.Fatal(err)
		}
		change(b.Events[0])
		all = append(all, b)
	}
	for _, b := range all {
		sameBytes(t, b)
	}
}

// Every field of every body that is written without protobuf is written as protobuf does: alone, together with all others, and long.
func TestEveryFieldIsWrittenAsProtobufDoes(t *testing.T) {
	values := map[protoreflect.Kind][]protoreflect.Value{
		protoreflect.StringKind: {protoreflect.ValueOfString("GPU-7"), protoreflect.ValueOfString(string(bytes.Repeat([]byte("x"), 200)))},
		protoreflect.Uint64Kind: {protoreflect.ValueOfUint64(0), protoreflect.ValueOfUint64(1 << 36), protoreflect.ValueOfUint64(math.MaxUint64)},
		protoreflect.Int64Kind:  {protoreflect.ValueOfInt64(7), protoreflect.ValueOfInt64(-7)},
		protoreflect.DoubleKind: {protoreflect.ValueOfFloat64(0.25), protoreflect.ValueOfFloat64(0)},
		protoreflect.BoolKind:   {protoreflect.ValueOfBool(true), protoreflect.ValueOfBool(false)},
	}
	written := 0
	for _, empty := range []*Event{{Gpu: new(Gpu)}, {GpuProcess: new(GpuProcess)}, {Allocator: new(Allocator)}, {Engine: new(Engine)}, {Process: new(Process)}, {Machine: new(Machine)}} {
		write := func(fill func(body protoreflect.Message)) {
			e := proto.CloneOf(empty)
			_, body, _ := e.body()
			fill(body.ProtoReflect())
			e.Time, e.Worker = &timestamppb.Timestamp{Seconds: 1_800_000_000}, &Worker{Pid: 42}
			sameBytes(t, &Batch{Schema: Schema, Host: &Host{Cluster: "c", Name: "n"}, Source: "s", Producer: "p", Lane: LaneSamples, Events: []*Event{e}})
			if appendEvent(nil, e) == nil {
				t.Errorf("protobuf has to write %v", e)
			}
			written++
		}
		_, body, _ := empty.body()
		fields := body.ProtoReflect().Descriptor().Fields()
		for round := range 3 {
			value := func(f protoreflect.FieldDescriptor) protoreflect.Value {
				all := values[f.Kind()]
				return all[round%len(all)]
			}
			for i := range fields.Len() {
				write(func(body protoreflect.Message) { body.Set(fields.Get(i), value(fields.Get(i))) })
			}
			write(func(body protoreflect.Message) {
				for i := range fields.Len() {
					body.Set(fields.Get(i), value(fields.Get(i)))
				}
			})
		}
	}
	if written < 200 {
		t.Errorf("only %d bodies were written", written)
	}
}

// What two messages have in common is one thing in memory afterwards.
func TestBatchReaderShares(t *testing.T) {
	r := NewBatchReader()
	var read []*Batch
	for _, text := range recordedBatches(t, 2) {
		b, _, err := r.Decode("", text)
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, b)
	}
	var workers []*Worker
	for _, b := range read {
		for _, e := range b.Events {
			if e.Process != nil {
				workers = append(workers, e.Worker)
			}
		}
	}
	if len(workers) != 2 || workers[0] != workers[1] || read[0].Host != read[1].Host || read[0].Events[0].Time != read[0].Events[1].Time {
		t.Errorf("read apart: %v", workers)
	}
}

// FuzzBatchReader reads two messages and the first one again: what is remembered of one must not change what the next one is.
func FuzzBatchReader(f *testing.F) {
	plain := oddBatches(f)["plain"]
	for _, text := range oddBatches(f) {
		f.Add(plain, text)
	}
	for _, text := range recordedBatches(f, 3) {
		f.Add(text, plain)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		r := NewBatchReader()
		for _, text := range [][]byte{first, second, first} {
			alike(t, r, "", text)
			if b, _, err := r.Decode("", text); err == nil {
				sameBytes(t, b)
			}
		}
	})
}

// A batch written piece by piece is the batch written at once, also with a body that protobuf writes; what cannot be written leaves what
// stands as it was.
func TestAppendEventWritesAsEncodeBatchDoes(t *testing.T) {
	for i, data := range recordedBatches(t, 100) {
		b, _, err := DecodeBatch("", data)
		if err != nil {
			t.Fatal(err)
		}
		b.Events = append(b.Events, &Event{Time: b.Events[0].Time, Host: b.Host, Mark: &Mark{Kind: "deploy"}}, &Event{Time: b.Events[0].Time, OtherBody: &OtherBody{Name: "x"}})
		whole, err := EncodeBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		events := b.Events
		b.Events = nil
		pieces, err := EncodeBatch(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if pieces, err = AppendEvent(pieces, e); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(pieces, whole) {
			t.Fatalf("batch %d is written as %x piece by piece, and as %x", i, pieces, whole)
		}
		for _, bad := range []*Event{{Process: &Process{}, Worker: &Worker{Unit: "\xff"}}, {Mark: &Mark{Kind: "\xff"}}} {
			if after, err := AppendEvent(pieces, bad); err == nil || !bytes.Equal(after, whole) {
				t.Fatalf("%v: error %v, %d bytes of %d", bad, err, len(after), len(whole))
			}
		}
	}
}

// BenchmarkEncodeBatch writes the recording's ticks, of five events each.
func BenchmarkEncodeBatch(b *testing.B) {
	var batches []*Batch
	for _, text := range recordedBatches(b, math.MaxInt) {
		batch, _, err := DecodeBatch("", text)
		if err != nil {
			b.Fatal(err)
		}
		batches = append(batches, batch)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, batch := range batches {
			if _, err := EncodeBatch(batch); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batches)), "ns/batch")
}

// BenchmarkBatchReader reads the recording's ticks, of five events each, one message after another.
func BenchmarkBatchReader(b *testing.B) {
	batches := recordedBatches(b, math.MaxInt)
	reader := NewBatchReader()
	for name, read := range map[string]func(string, []byte) (*Batch, []string, error){"remembering": reader.Decode, "each alone": DecodeBatch} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, text := range batches {
					if _, _, err := read("", text); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batches)), "ns/batch")
		})
	}
}
