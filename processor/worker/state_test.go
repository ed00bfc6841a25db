package worker

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules/variable"
)

func saved(t testing.TB, w *Worker) []byte {
	t.Helper()
	state, err := w.Save()
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func restored(t testing.TB, state []byte) *Worker {
	t.Helper()
	w, err := Restore(state)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// alike compares as DeepEqual does, but NaN is NaN and messages are compared as messages.
func alike(a, b reflect.Value, path string) (different string) {
	if a.CanInterface() {
		if m, is := a.Interface().(proto.Message); is && a.Kind() == reflect.Pointer {
			if n := b.Interface().(proto.Message); a.IsNil() != b.IsNil() || !proto.Equal(m, n) {
				return path
			}
			return ""
		}
	}
	switch a.Kind() {
	case reflect.Float32, reflect.Float64:
		if x, y := a.Float(), b.Float(); x != y && (x == x || y == y) {
			return path
		}
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() != b.IsNil() {
			return path
		}
		if !a.IsNil() {
			return alike(a.Elem(), b.Elem(), path)
		}
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[time.Time]() {
			if !a.Interface().(time.Time).Equal(b.Interface().(time.Time)) {
				return path
			}
			return ""
		}
		for i := range a.NumField() {
			if at := alike(a.Field(i), b.Field(i), path+"."+a.Type().Field(i).Name); at != "" {
				return at
			}
		}
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return path
		}
		for i := range a.Len() {
			if at := alike(a.Index(i), b.Index(i), path); at != "" {
				return at
			}
		}
	default:
		if !reflect.DeepEqual(a.Interface(), b.Interface()) {
			return path
		}
	}
	return ""
}

// same compares what rules and people see of two workers.
func same(t *testing.T, got, want *Worker) {
	t.Helper()
	for id, v := range variable.All() {
		at := variable.ID(id)
		if a, b := got.Sample().Known(at), want.Sample().Known(at); a != b {
			t.Errorf("%s is known: %v, want %v", v.Name, a, b)
		}
		switch v.Kind {
		case variable.Number:
			if a, _ := got.Sample().Number(at); a != second(want.Sample().Number(at)) {
				t.Errorf("%s is %v, want %v", v.Name, a, second(want.Sample().Number(at)))
			}
		case variable.Bool:
			if a, _ := got.Sample().Bool(at); a != second(want.Sample().Bool(at)) {
				t.Errorf("%s is %v", v.Name, a)
			}
		case variable.String:
			if a, _ := got.Sample().Text(at); a != second(want.Sample().Text(at)) {
				t.Errorf("%s is %q", v.Name, a)
			}
		}
	}
	if at := alike(reflect.ValueOf(got.Report()), reflect.ValueOf(want.Report()), "report"); at != "" {
		t.Errorf("%s differs", at)
	}
	if a, b := got.Symptoms(got.First), want.Symptoms(want.First); !reflect.DeepEqual(a, b) {
		t.Errorf("symptoms are %v, want %v", a, b)
	}
}

func second[T any](v T, _ bool) T { return v }

// life plays hours of a worker with two GPUs, of which every sensor says all that it can: it fills what is kept of a worker.
func life(hours int, drains bool, each func(minute int, w *Worker) *Worker) *Worker {
	random := rand.New(rand.NewPCG(1, 2))
	who := &event.Worker{Pid: 7, StartTime: timestamppb.New(start), Engine: "vllm", Model: "llama-70b", Release: "r1", GpuUuids: []string{"GPU-1", "GPU-2"}}
	w := New("w", host, who, start)
	var finished, tokens uint64
	between := func(base, spread uint64) *uint64 { return event.Ptr(base + random.Uint64N(spread)) }
	for minute := range hours * 60 {
		if each != nil {
			w = each(minute, w)
		}
		give := func(e *event.Event) {
			e.Time, e.Host, e.Worker = timestamppb.New(start.Add(time.Duration(minute)*time.Minute)), host, who
			w.Apply(e)
		}
		running := 1 + random.Uint64N(40)
		if drains && minute%50 < 3 {
			running = 0
		}
		finished, tokens = finished+running*3, tokens+running*1000
		for _, gpu := range who.GpuUuids {
			held := uint64(40*gib) + running<<28 + uint64(minute)<<14
			give(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: gpu, UsedBytes: between(64*gib, 16*mib)}})
			give(&event.Event{Allocator: &event.Allocator{GpuUuid: gpu, Backend: "native", AllocatedBytes: between(held, 4*mib), ActiveBytes: between(held+8*mib, mib),
				ReservedBytes: between(60*gib, mib), AllocatedPeakBytes: between(50*gib, 256*mib), ReservedPeakBytes: u(61 * gib), LimitBytes: u(70 * gib),
				InactiveSplitBytes: between(gib, 64*mib), PrivatePoolBytes: u(gib), AllocRetriesTotal: u(minute / 600), OomsTotal: u(minute / 2000),
				PinnedAllocatedBytes: between(gib, mib), CompilesTotal: u(minute / 900)}})
			give(&event.Event{Gpu: &event.Gpu{Uuid: gpu, TotalBytes: u(80 * gib), UsedBytes: between(65*gib, 16*mib), FreeBytes: between(14*gib, mib),
				Utilization: event.Ptr(random.Float64()), EccCorrectedTotal: u(minute / 700), EccUncorrectedTotal: u(0), RemappedRows: u(0), RemapPending: event.Ptr(false)}})
		}
		give(&event.Event{Engine: &event.Engine{Running: &running, Waiting: between(0, 1+running/20), KvUsage: event.Ptr(float64(running) / 60), FinishedTotal: event.Ptr(finished),
			AbortedTotal: event.Ptr(finished / 50), ErrorsTotal: u(0), PromptTokensTotal: event.Ptr(tokens), GenerationTokensTotal: event.Ptr(tokens / 3),
			PreemptionsTotal: event.Ptr(finished / 100), TtftP95Seconds: event.Ptr(0.2 + random.Float64()*float64(running)/20),
			ItlP95Seconds: event.Ptr(0.02 + random.Float64()/100), SloTotal: event.Ptr(finished), SloOkTotal: event.Ptr(finished * 97 / 100), LoadedAdapters: u(3), PromptTokensP95: event.Ptr(4000.0)}})
		give(&event.Event{Process: &event.Process{RssBytes: between(8*gib, 16*mib), AnonBytes: between(7*gib, 16*mib), SwapBytes: u(0), Fds: between(800, 20), FdsLimit: u(65536),
			Threads: between(100, 3), SocketsCloseWait: between(0, 3), CgroupBytes: between(9*gib, 16*mib), CgroupLimitBytes: u(64 * gib)}})
		switch minute {
		case 5:
			give(&event.Event{Lifecycle: &event.Lifecycle{State: "ready"}})
		case 30:
			give(&event.Event{Config: &event.Config{GpuMemoryUtilization: event.Ptr(0.9), DeclaredCaches: []*event.DeclaredCache{cache("prompt_cache", 4), cache("prefix", 2)}}})
		case 400:
			give(&event.Event{Xid: &event.Xid{Code: u(31), GpuUuid: "GPU-1", Text: "MMU fault"}})
		case 500:
			give(&event.Event{Oom: &event.Oom{Kind: "cuda", RequestedBytes: u(20 * gib), FreeBytes: u(0), Text: "out of memory"}})
		}
	}
	w.Close()
	return w
}

// At every moment of a life, between any two events, what is saved and restored goes on as if nothing had happened.
func TestARestoredWorkerGoesOnAsItWas(t *testing.T) {
	for _, drains := range []bool{true, false} {
		want := life(30, drains, nil)
		got := life(30, drains, func(minute int, w *Worker) *Worker {
			if minute%37 == 36 || minute > 395 && minute < 405 || minute > 495 && minute < 505 {
				return restored(t, saved(t, w))
			}
			return w
		})
		same(t, got, want)
		if t.Failed() {
			t.Fatalf("drains: %v", drains)
		}
		if at := alike(reflect.ValueOf(restored(t, saved(t, got)).quiet), reflect.ValueOf(want.quiet), "quiet"); at != "" {
			t.Error(at)
		}
	}
}

// Every field is saved, or named here with the reason in the code.
func TestNoFieldIsForgotten(t *testing.T) {
	want := []string{"Worker.born", "Worker.slopes", "Worker.unshown", "Worker.wanted", "Worker.warmed", "basis.config", "call.sentence", "caps.Asked", "caps.Card",
		"caps.CardKnown", "caps.Host", "caps.HostKnown", "caps.Spare", "caps.of", "sight.moved", "sight.points"}
	if got := ownLayout().Unkept(); !slices.Equal(got, want) {
		t.Errorf("not saved are %v, want %v", got, want)
	}
}

// Absent is never zero: neither in what sensors said last nor in what was counted.
func TestAbsentStaysAbsent(t *testing.T) {
	w := New("w", host, who, start)
	when := timestamppb.New(start)
	w.Apply(&event.Event{Time: when, Host: host, Worker: who, Allocator: &event.Allocator{AllocatedBytes: u(0)}})
	got := restored(t, saved(t, w))
	if a := got.now.cards[0].allocator; a.AllocatedBytes == nil || *a.AllocatedBytes != 0 || a.ActiveBytes != nil {
		t.Errorf("the allocator said %v", a)
	}
	if got.Config != nil || got.now.engine != nil || got.ooms.total != nil || got.ooms.last != nil || got.Ready() {
		t.Error("something is there that was not")
	}
	w.ooms.total = u(0)
	w.ooms.last = new(event.Oom)
	got = restored(t, saved(t, w))
	if got.ooms.total == nil || *got.ooms.total != 0 || got.ooms.last == nil {
		t.Error("zero is not there any more")
	}
	if !got.First.Equal(start) || !got.ready.IsZero() || !got.exited.IsZero() {
		t.Errorf("times: %v, %v, %v", got.First, got.ready, got.exited)
	}
}

func TestAStateOfAnotherKindIsRefused(t *testing.T) {
	state := saved(t, New("w", host, who, start))
	change := func(at int, to byte) []byte {
		other := append([]byte(nil), state...)
		other[at] = to
		return other
	}
	for _, of := range []struct {
		name  string
		state []byte
		is    error
		says  string
	}{
		{"another version", change(3, 9), ErrStateVersion, "it is version 9, this build reads 2"},
		{"another layout", change(4, state[4]+1), ErrStateVersion, "layout"},
		{"nothing", nil, ErrState, "does not begin as one"},
		{"something else", []byte("{\"worker\":1, \"state\":2}"), ErrState, "does not begin as one"},
		{"a flipped bit", change(len(state)-3, state[len(state)-3]^4), ErrState, "checksum"},
		{"half of it", state[:len(state)/2], ErrState, "checksum"},
		{"only a header", state[:12], ErrState, "does not begin as one"},
		{"no parts", ownLayout().Seal(nil), ErrState, "ends too early"},
		{"an announced giant", ownLayout().Seal(make([]byte, maxState+1)), ErrState, "at most"},
	} {
		w, err := Restore(of.state)
		if w != nil || !errors.Is(err, of.is) || err == nil || !strings.Contains(err.Error(), of.says) {
			t.Errorf("%s: %v", of.name, err)
		}
	}
}

func TestWhatAWorkerWouldStumbleOverIsRefused(t *testing.T) {
	for _, of := range []struct {
		what  string
		spoil func(w *Worker)
	}{
		{"identity", func(w *Worker) { w.Who = nil }},
		{"cards", func(w *Worker) { w.now.cards = make([]card, maxCards+1) }},
		{"columns", func(w *Worker) { w.level = make([]float64, columnsOf(maxCards)+1) }},
		{"quiet points", func(w *Worker) { w.quiet = quiet{Kept: true} }},
		{"quiet points", func(w *Worker) { w.quiet.Points = w.quiet.Points[1:] }},
		{"matched load", func(w *Worker) { w.match.Length = 0 }},
		{"matched load", func(w *Worker) { w.match.Cells = w.match.Cells[1:] }},
		{"trace", func(w *Worker) { w.trace.Start = w.tick.Add(time.Hour) }},
		{"trace", func(w *Worker) { w.trace.Length++ }},
		{"load", func(w *Worker) { w.load.Newest = -1 }},
		{"load", func(w *Worker) { w.load.Latency.TTFT.Free[3] = &baseline{N: 17} }},
		{"room", func(w *Worker) { w.load.Room.Host.N = 15 }},
		{"OOMs", func(w *Worker) { w.ooms.pending = -5 }},
		{"faults", func(w *Worker) { w.faults.N = -1 }},
		{"marks", func(w *Worker) { w.marks.Waiting = make([]mark, maxMarks+1) }},
		{"clock", func(w *Worker) { w.tick = time.Unix(0, 0) }},
		{"clock", func(w *Worker) { w.tick, w.quality.Shift = time.Time{}, -time.Hour }},
	} {
		w := life(3, true, nil)
		of.spoil(w)
		if _, err := w.Save(); !errors.Is(err, ErrState) || !strings.HasSuffix(err.Error(), of.what) {
			t.Errorf("saving %s: %v", of.what, err)
		}
		parts, err := ownLayout().Write(w)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(ownLayout().Seal(parts)); !errors.Is(err, ErrState) || !strings.HasSuffix(err.Error(), of.what) {
			t.Errorf("%s: %v", of.what, err)
		}
	}
}

// One event of another age does not keep a worker from being saved.
func TestTimesOfAnyAge(t *testing.T) {
	w := life(1, true, nil)
	for _, at := range []time.Time{time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC), time.Unix(0, 0).UTC(), time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)} {
		w.quality.Back = at
		w.ooms.times = []time.Time{at, start}
		got := restored(t, saved(t, w))
		if !got.quality.Back.Equal(at) || !got.ooms.times[0].Equal(at) || !got.ooms.times[1].Equal(start) {
			t.Errorf("%v came back as %v and %v", at, got.quality.Back, got.ooms.times)
		}
	}
}

func FuzzRestore(f *testing.F) {
	for _, drains := range []bool{true, false} {
		w := life(1, drains, nil)
		f.Add(saved(f, w), false)
		parts, err := ownLayout().Open(saved(f, w))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(parts, true) // behind the checksum
	}
	f.Fuzz(func(t *testing.T, state []byte, bare bool) {
		if len(state) > 1<<20 {
			return
		}
		if bare {
			state = ownLayout().Seal(state)
		}
		w, err := Restore(state)
		if err != nil {
			if !errors.Is(err, ErrState) && !errors.Is(err, ErrStateVersion) {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		again := restored(t, saved(t, w)) // what was read can be written
		again.Report()
		again.Symptoms(again.First)
		for minute := range 20 {
			playOn(again, again.tick.Add(time.Duration(minute)*time.Minute), minute)
		}
		again.Report()
	})
}

// playOn gives a worker a bit of everything.
func playOn(w *Worker, at time.Time, minute int) {
	give := func(e *event.Event) {
		e.Time, e.Host, e.Worker = timestamppb.New(at), w.Host, w.Who
		w.Apply(e)
	}
	give(&event.Event{Allocator: &event.Allocator{GpuUuid: "GPU-1", AllocatedBytes: u(gib), ActiveBytes: u(gib), ReservedBytes: u(2 * gib), AllocatedPeakBytes: u(2*gib + minute), OomsTotal: u(minute)}})
	give(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-1", UsedBytes: u(3 * gib)}})
	give(&event.Event{Gpu: &event.Gpu{Uuid: "GPU-1", TotalBytes: u(80 * gib), UsedBytes: u(4 * gib), EccUncorrectedTotal: u(minute)}})
	running := minute / 5 % 2 * 7
	give(&event.Event{Engine: &event.Engine{Running: u(running), Waiting: u(running / 2), FinishedTotal: u(minute), KvUsage: event.Ptr(0.5), PreemptionsTotal: u(minute), TtftP95Seconds: event.Ptr(float64(minute)),
		PromptTokensTotal: u(minute), SloTotal: u(100 * minute), SloOkTotal: u(50 * minute)}})
	give(&event.Event{Process: &event.Process{AnonBytes: u(gib), Fds: u(minute)}})
	if minute == 12 {
		give(&event.Event{Xid: &event.Xid{Code: u(79)}})
		give(&event.Event{Oom: &event.Oom{RequestedBytes: u(gib)}})
	}
	w.Close()
}

// A worker whose every sensor speaks, that drains and is busy at many loads, near the fullest that it can be: 31 of 32 windows, 96 stretches.
func TestAWorkerStaysSmall(t *testing.T) {
	const workers, must = 12, 64 << 10
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what pools hold goes with the second
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	life(1, true, nil)
	before := heap()
	var all [workers]*Worker
	for i := range all {
		all[i] = life(63, true, nil)
	}
	each := (heap() - before) / workers
	t.Logf("%d bytes in memory, %d saved", each, len(saved(t, all[0])))
	if each > must || each < must/8 {
		t.Errorf("%d bytes for a worker, %d at most", each, must)
	}
	if n := len(saved(t, all[0])); n > must {
		t.Errorf("%d bytes saved", n)
	}
	if n := len(all[0].quiet.Points); n < maxPoints/2 || len(all[0].match.Work) < maxWindows-1 {
		t.Errorf("it is not full: %d points, %d windows", n, len(all[0].match.Work))
	}
	runtime.KeepAlive(all)
}

func BenchmarkSave(b *testing.B) {
	w := life(80, true, nil)
	b.ReportMetric(float64(len(saved(b, w))), "bytes")
	b.ReportAllocs()
	for b.Loop() {
		saved(b, w)
	}
	b.ReportMetric(float64(len(saved(b, w))), "bytes")
}

func BenchmarkRestore(b *testing.B) {
	state := saved(b, life(80, true, nil))
	b.ReportAllocs()
	for b.Loop() {
		restored(b, state)
	}
}
