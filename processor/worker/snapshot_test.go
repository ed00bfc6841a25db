package worker

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules/variable"
)

const mebi = 1 << 20

// holey is a snapshot of one card: free memory in pieces, in whole segments and in a private pool.
func holey(gpu string, stuck uint64) *event.Snapshot {
	return &event.Snapshot{GpuUuid: gpu, Reason: "asked", File: "f.pickle",
		ReservedBytes: event.Ptr(uint64(20 * gib)), FreeBytes: event.Ptr(stuck + 5*gib), ReleasableBytes: event.Ptr(uint64(2 * gib)), LargestFreeBytes: event.Ptr(uint64(3 * gib)),
		PrivateFreeBytes: event.Ptr(uint64(3 * gib)),
		Pools: []*event.SnapshotPool{
			{Name: "default", FreeBytes: event.Ptr(stuck + gib), LargestFreeBytes: event.Ptr(uint64(100 * mebi)), ReleasableBytes: event.Ptr(uint64(gib))},
			{Name: "default stream 7", FreeBytes: event.Ptr(uint64(gib)), LargestFreeBytes: event.Ptr(uint64(200 * mebi)), ReleasableBytes: event.Ptr(uint64(gib))},
			{Name: "private (1,0)", Private: event.Ptr(true), FreeBytes: event.Ptr(uint64(3 * gib)), LargestFreeBytes: event.Ptr(uint64(3 * gib))},
		}}
}

func read(w *Worker, name string) any {
	if v, known := w.Sample().Number(variable.Must(name)); known {
		return v
	}
	return nil
}

func shown(w *Worker, after time.Duration, s *event.Snapshot) bool {
	return w.Apply(&event.Event{Time: timestamppb.New(start.Add(after)), Host: host, Worker: who, Snapshot: s})
}

// Known is false before there is a snapshot. Stuck leaves out whole segments and private pools, which are not eager code's; its largest
// hole too.
func TestSnapshotVariables(t *testing.T) {
	w := New("w", host, who, start)
	tick(w, time.Minute, gib, 0, 1)
	w.Close()
	for _, v := range variable.All() {
		if strings.HasPrefix(v.Name, "snapshot.") && w.Sample().Known(variable.Must(v.Name)) {
			t.Errorf("%s is known before there is a snapshot", v.Name)
		}
	}
	if at := w.EvidenceAt(); !at.IsZero() {
		t.Error("evidence without a snapshot")
	}
	if !shown(w, 2*time.Minute, holey("GPU-1", 700*mebi)) {
		t.Fatal("a snapshot is not judged at once")
	}
	for name, want := range map[string]any{
		"snapshot.stuck_bytes": 700.0 * mebi, "snapshot.hole_bytes": 200.0 * mebi, "snapshot.private_free_bytes": 3.0 * gib, "snapshot.age_seconds": 0.0,
		"snapshot.largest_free_bytes": 3.0 * gib, "snapshot.stack_growth": nil, "snapshot.grad_tensors": nil, "snapshot.oom_bytes": nil, "snapshot.live_bytes": nil,
	} {
		if got := read(w, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	tick(w, 5*time.Minute+50*time.Second, gib, 0, 1)
	w.Close()
	if got := read(w, "snapshot.age_seconds"); got != 180.0 {
		t.Errorf("after 3 min 50 s the age is %v, want the whole minutes", got)
	}
	// Without pools, what is private and what goes back are taken off the sum.
	bare := holey("GPU-1", 700*mebi)
	bare.Pools = nil
	shown(w, 6*time.Minute, bare)
	if got := read(w, "snapshot.stuck_bytes"); got != 700.0*mebi {
		t.Errorf("without pools %v is stuck", got)
	}
	// An older one changes nothing, nor does one from before this process was known.
	if shown(w, 5*time.Minute, holey("GPU-1", gib)) || shown(w, -time.Hour, holey("GPU-1", gib)) {
		t.Error("an old snapshot is taken")
	}
}

// Of several cards all variables are of one: where an allocation failed, else where most is stuck. It is judged with the next tick, when
// those of the other cards have come.
func TestSnapshotsOfSeveralCards(t *testing.T) {
	two := &event.Worker{Pid: 7, StartTime: timestamppb.New(start), GpuUuids: []string{"GPU-1", "GPU-2"}}
	w := New("w", host, two, start)
	at := func(after time.Duration, e *event.Event) bool {
		e.Time, e.Host, e.Worker = timestamppb.New(start.Add(after)), host, two
		return w.Apply(e)
	}
	for _, gpu := range two.GpuUuids {
		at(time.Minute, &event.Event{Allocator: &event.Allocator{GpuUuid: gpu, AllocatedBytes: event.Ptr(uint64(gib))}})
	}
	if at(2*time.Minute, &event.Event{Snapshot: holey("GPU-1", 700*mebi)}) || at(2*time.Minute, &event.Event{Snapshot: holey("GPU-2", 900*mebi)}) {
		t.Error("judged before those of all cards are there")
	}
	if got := read(w, "snapshot.stuck_bytes"); got != 900.0*mebi {
		t.Errorf("%v is stuck, want that of the second card", got)
	}
	at(3*time.Minute, &event.Event{Oom: &event.Oom{Kind: "cuda", GpuUuid: "GPU-1", RequestedBytes: event.Ptr(uint64(gib))}})
	if got := read(w, "snapshot.stuck_bytes"); got != 700.0*mebi {
		t.Errorf("%v is stuck, want that of the card where the allocation failed", got)
	}
	for i := range maxSnapshots + 2 {
		at(time.Duration(4+i)*time.Minute, &event.Event{Snapshot: holey(fmt.Sprint("GPU-", i), gib)})
	}
	if n := len(w.snapshots.Cards); n != maxSnapshots {
		t.Errorf("%d snapshots are kept", n)
	}
}

// A summary may have 256 KiB; what is kept of it is bounded, and goes on after a restart.
func TestWhatIsKeptOfASnapshot(t *testing.T) {
	w := New("w", host, who, start)
	tick(w, time.Minute, gib, 0, 1)
	before := len(saved(t, w))
	big := holey("GPU-1", gib)
	big.Reason, big.File = strings.Repeat("r", 4000), strings.Repeat("é", 4000)
	big.Census = &event.SnapshotCensus{Tensors: event.Ptr(uint64(3)), Bytes: event.Ptr(uint64(gib))}
	big.LastOom = &event.SnapshotOom{RequestedBytes: event.Ptr(uint64(2 * gib)), LargestFreeBytes: event.Ptr(uint64(100 * mebi))}
	big.Stacks = []*event.SnapshotStack{{LiveBytes: event.Ptr(uint64(9 * gib))}}
	for i := range uint64(100) {
		s := &event.SnapshotStack{LiveBytes: event.Ptr((1 + i) * mebi), Blocks: event.Ptr(100 - i), GrowthBytes: event.Ptr(int64(i%7) * mebi), PendingBytes: event.Ptr(i % 11)}
		for f := range 40 {
			s.Frames = append(s.Frames, fmt.Sprintf("%s.py:%d line%d", strings.Repeat("m", 300), f, i))
		}
		big.Stacks = append(big.Stacks, s)
	}
	shown(w, 2*time.Minute, big)
	kept := w.snapshots.Cards[0].Said
	if n := len(kept.Stacks); n > maxHolders+2*maxOthers || kept.Pools != nil || len(kept.Reason) > maxName || len(kept.File) > maxName {
		t.Errorf("%d stacks, pools %v, reason of %d bytes", n, kept.Pools, len(kept.Reason))
	}
	state := saved(t, w)
	if more := len(state) - before; more > 6<<10 {
		t.Errorf("a snapshot costs %d bytes of state", more)
	}
	again := restored(t, state)
	same(t, again, w)
	for _, class := range []string{"retention", "fragmentation", "stream_backlog", "graph_pools"} {
		file, holders := w.Evidence(class)
		file2, holders2 := again.Evidence(class)
		if !again.EvidenceAt().Equal(w.EvidenceAt()) || file != file2 || !reflect.DeepEqual(holders, holders2) {
			t.Errorf("%s: %v, after a restart %v", class, holders, holders2)
		}
		if len(holders) == 0 || len(holders) > maxHolders {
			t.Errorf("%s: %d holders", class, len(holders))
		}
	}
	_, grown := w.Evidence("retention")
	if *grown[0].GrowthBytes != 6*mebi || grown[0].LiveBytes != 98*mebi { // the largest of those that grew by 6 MiB: i = 97
		t.Errorf("first is %d bytes that grew by %d", grown[0].LiveBytes, *grown[0].GrowthBytes)
	}
	if _, waits := w.Evidence("stream_backlog"); waits[0].LiveBytes != 10 {
		t.Errorf("what waits most has %d bytes", waits[0].LiveBytes)
	}
	if _, pieces := w.Evidence("fragmentation"); pieces[0].Blocks != 100 {
		t.Errorf("most pieces are %d", pieces[0].Blocks)
	}
}

// An OOM of which only the allocator's counter tells is completed by the snapshot that was written at it, and not by one of another time.
func TestASnapshotCompletesAnOom(t *testing.T) {
	for _, test := range []struct {
		name      string
		snapshot  func(*event.Snapshot)
		requested any
		loose     any
	}{
		{"at the failure", func(s *event.Snapshot) { s.Reason = "oom" }, nil, 2.0 * gib},
		{"at the failure, with its trace", func(s *event.Snapshot) {
			s.Reason, s.LastOom = "oom", &event.SnapshotOom{RequestedBytes: event.Ptr(uint64(gib)), FreeBytes: event.Ptr(uint64(300 * mebi)), Time: timestamppb.New(start.Add(2 * time.Minute))}
		}, 1.0 * gib, 2.0 * gib},
		{"later, with its trace", func(s *event.Snapshot) {
			s.LastOom = &event.SnapshotOom{RequestedBytes: event.Ptr(uint64(gib)), Time: timestamppb.New(start.Add(2 * time.Minute))}
		}, 1.0 * gib, nil},
		{"later, of an earlier failure", func(s *event.Snapshot) {
			s.LastOom = &event.SnapshotOom{RequestedBytes: event.Ptr(uint64(gib)), Time: timestamppb.New(start.Add(-time.Hour))}
		}, nil, nil},
		{"asked for", func(s *event.Snapshot) {}, nil, nil},
	} {
		w := New("w", host, who, start)
		tick(w, time.Minute, gib, 0, 1)
		w.Apply(&event.Event{Time: timestamppb.New(start.Add(2 * time.Minute)), Host: host, Worker: who, Allocator: &event.Allocator{AllocatedBytes: event.Ptr(uint64(gib)), OomsTotal: event.Ptr(uint64(1))}})
		w.Close()
		s := &event.Snapshot{GpuUuid: "GPU-1", Reason: "asked", LiveBytes: event.Ptr(uint64(7 * gib)), FreeBytes: event.Ptr(uint64(3 * gib)), PrivateFreeBytes: event.Ptr(uint64(gib))}
		test.snapshot(s)
		shown(w, 2*time.Minute+3*time.Second, s)
		if got := read(w, "oom.requested_bytes"); got != test.requested {
			t.Errorf("%s: oom.requested_bytes is %v, want %v", test.name, got, test.requested)
		}
		if got := read(w, "oom.reserved_unallocated_bytes"); got != test.loose {
			t.Errorf("%s: oom.reserved_unallocated_bytes is %v, want %v", test.name, got, test.loose)
		}
		if got := read(w, "oom.count"); got != 1.0 {
			t.Errorf("%s: %v OOMs, want the one that the counter showed", test.name, got)
		}
	}
}

// What was told of an OOM stands against what a snapshot says of it.
func TestASnapshotDoesNotContradictAnOom(t *testing.T) {
	var o ooms
	o.event(start, &event.Oom{Kind: "cuda", GpuUuid: "GPU-1", RequestedBytes: event.Ptr(uint64(gib)), AllocatedBytes: event.Ptr(uint64(5 * gib))})
	before := proto.CloneOf(o.last)
	o.postMortem(start, &event.Snapshot{GpuUuid: "GPU-2", Reason: "oom", LiveBytes: event.Ptr(uint64(gib))})
	o.postMortem(start, &event.Snapshot{GpuUuid: "GPU-1", Reason: "oom", LastOom: &event.SnapshotOom{RequestedBytes: event.Ptr(uint64(3 * gib)), Time: timestamppb.New(start)}})
	if !proto.Equal(o.last, before) {
		t.Errorf("another failure has changed it to %v", o.last)
	}
	o.postMortem(start, &event.Snapshot{GpuUuid: "GPU-1", Reason: "oom", LiveBytes: event.Ptr(uint64(4 * gib)), FreeBytes: event.Ptr(uint64(gib))})
	if o.last.GetAllocatedBytes() != 5*gib || o.last.GetReservedUnallocatedBytes() != gib || before.ReservedUnallocatedBytes != nil {
		t.Errorf("completed to %v, and what was told to %v", o.last, before)
	}
}

// What private pools have reserved is compared with an earlier snapshot of this life and card, five minutes before at least.
func TestGrowthOfPrivatePools(t *testing.T) {
	w := New("w", host, who, start)
	tick(w, time.Minute, gib, 0, 1)
	w.Close()
	pools := func(gpu string, reserved uint64) *event.Snapshot {
		return &event.Snapshot{GpuUuid: gpu, Reason: "asked", PrivateBytes: event.Ptr(reserved * mebi), FreeBytes: event.Ptr(reserved * mebi)}
	}
	for _, one := range []struct {
		at       time.Duration
		reserved uint64
		growth   any
	}{
		{2 * time.Minute, 600, nil},
		{4 * time.Minute, 700, nil},                        // too near
		{34 * time.Minute, 750, 100.0 * mebi},              // 50 MiB in half an hour
		{36 * time.Minute, 754, 54.0 * mebi / (32.0 / 60)}, // still against that of 4 min
		{96 * time.Minute, 654, -100.0 * mebi},
	} {
		shown(w, one.at, pools("GPU-1", one.reserved))
		got := read(w, "snapshot.private_growth")
		if g, known := got.(float64); known && one.growth != nil {
			if want := one.growth.(float64); g < want-1 || g > want+1 {
				t.Errorf("after %v it grows by %v, want %v", one.at, g, want)
			}
		} else if got != one.growth {
			t.Errorf("after %v it grows by %v, want %v", one.at, got, one.growth)
		}
		if got := read(w, "snapshot.private_bytes"); got != float64(one.reserved*mebi) {
			t.Errorf("after %v %v are private", one.at, got)
		}
	}
	summed := pools("GPU-1", 0)
	summed.PrivateBytes = nil
	summed.Pools = []*event.SnapshotPool{{Name: "default", ReservedBytes: event.Ptr(uint64(gib))}, {Name: "private (1,0)", Private: event.Ptr(true), ReservedBytes: event.Ptr(uint64(3 * mebi))},
		{Name: "private (2,0)", Private: event.Ptr(true), ReservedBytes: event.Ptr(uint64(4 * mebi))}}
	if got := private(summed); got != 7*mebi {
		t.Errorf("%v in two private pools", got)
	}
}

// The holes of one card say nothing about what failed on another. An account of a failure that is yet to come is nobody's.
func TestASnapshotOfAnotherCardIsSilentAboutAnOOM(t *testing.T) {
	w := New("w", host, who, start)
	tick(w, time.Minute, gib, 0, 1)
	w.Close()
	shown(w, 2*time.Minute, holey("GPU-2", gib))
	if got := read(w, "snapshot.stuck_bytes"); got != 1.0*gib {
		t.Fatalf("%v is stuck", got)
	}
	w.Apply(&event.Event{Time: timestamppb.New(start.Add(3 * time.Minute)), Host: host, Worker: who, Oom: &event.Oom{Kind: "cuda", GpuUuid: "GPU-1", RequestedBytes: event.Ptr(uint64(gib))}})
	if got := read(w, "snapshot.stuck_bytes"); got != nil {
		t.Errorf("of the card that failed %v is stuck", got)
	}
	if file, holders := w.Evidence("fragmentation"); file != "" || holders != nil || !w.EvidenceAt().IsZero() {
		t.Error("the evidence is of another card")
	}
	forged := holey("GPU-2", 9*gib)
	forged.LastOom = &event.SnapshotOom{RequestedBytes: event.Ptr(uint64(1)), Time: timestamppb.New(start.Add(100 * 365 * 24 * time.Hour))}
	shown(w, 4*time.Minute, forged)
	shown(w, 4*time.Minute, holey("GPU-1", 2*gib))
	if got := read(w, "snapshot.stuck_bytes"); got != 2.0*gib {
		t.Errorf("with one of the card that failed %v is stuck", got)
	}
}

// A snapshot of a clock that was wrong once does not keep out those of the right time.
func TestASnapshotOfTheFutureKeepsNothingOut(t *testing.T) {
	w := New("w", host, who, start)
	tick(w, time.Minute, gib, 0, 1)
	w.Close()
	shown(w, 20*time.Hour, holey("GPU-1", 3*gib))
	if !shown(w, 2*time.Minute, holey("GPU-1", 2*gib)) || read(w, "snapshot.stuck_bytes") != 2.0*gib {
		t.Errorf("%v is stuck, by the snapshot of tomorrow", read(w, "snapshot.stuck_bytes"))
	}
	if shown(w, time.Minute, holey("GPU-1", gib)) {
		t.Error("one that is older than what is kept is taken")
	}
}

// Names of files and functions are anybody's text: one line of printable characters reaches what people read, and a state that can be saved.
func TestHostileSnapshots(t *testing.T) {
	w := New("w", host, who, start)
	tick(w, time.Minute, gib, 0, 1)
	w.Close()
	nasty := "a\x1b[2Jb\r\nc\u202ed\u2028e\x00\xff" + strings.Repeat("é", 1000)
	all := uint64(1<<64 - 1)
	said := &event.Snapshot{GpuUuid: "GPU-1", Reason: nasty, File: nasty, ReservedBytes: &all, LiveBytes: event.Ptr(uint64(0)), FreeBytes: &all, ReleasableBytes: &all, PrivateBytes: &all,
		PrivateFreeBytes: &all, Fragmentation: event.Ptr(math.Inf(1)), GrowthSeconds: event.Ptr(math.NaN()), HistorySeconds: event.Ptr(-1.0), LastOom: &event.SnapshotOom{RequestedBytes: &all},
		Pools: []*event.SnapshotPool{nil, {Private: event.Ptr(true), ReservedBytes: &all}, {FreeBytes: &all, ReleasableBytes: &all, LargestFreeBytes: &all}}}
	for i := range 5000 {
		said.Stacks = append(said.Stacks, &event.SnapshotStack{Frames: []string{nasty, "b", "c", "d", "e", "f", "g"}, LiveBytes: &all, Blocks: event.Ptr(uint64(i)), GrowthBytes: event.Ptr(int64(-1 << 63))}, nil)
	}
	for i := range 64 { // one process on a card more than anybody sells
		said.GpuUuid = fmt.Sprint("GPU-", i)
		shown(w, time.Duration(i+2)*time.Minute, said)
	}
	if n := len(w.snapshots.Cards); n != maxSnapshots {
		t.Errorf("%d snapshots are kept", n)
	}
	file, holders := w.Evidence("retention")
	if len(holders) == 0 || len(holders) > maxHolders {
		t.Fatalf("%d holders", len(holders))
	}
	for _, text := range append([]string{file}, holders[0].Frames...) {
		if len(text) > maxName || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) || r == '\u2028' }) || !utf8.ValidString(text) {
			t.Errorf("%q reaches people", text)
		}
	}
	if !strings.HasPrefix(file, "a[2Jbcde") {
		t.Errorf("the file is %q", file)
	}
	for _, v := range variable.All() {
		if v.Kind != variable.Number {
			continue
		}
		if n, known := w.Sample().Number(variable.Must(v.Name)); known && (math.IsInf(n, 0) || math.IsNaN(n)) {
			t.Errorf("%s is %v", v.Name, n)
		}
	}
	state, err := w.Save()
	if err != nil {
		t.Fatal(err)
	}
	if len(state) > 64<<10 {
		t.Errorf("its state is %d bytes", len(state))
	}
	if _, err := Restore(state); err != nil {
		t.Error(err)
	}
}
