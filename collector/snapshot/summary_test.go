package snapshot

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
)

var recorded = []string{"cache_plateau", "expandable-oom", "frag", "graphs", "leak-oom", "stream_await"}

// recordedFile returns a snapshot of a real process.
func recordedFile(t testing.TB, name string) *Snapshot {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".pickle.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := Read(f, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// worked is what summary.py has worked out of a file.
type worked struct {
	Pools map[string]struct {
		Reserved   uint64 `json:"reserved"`
		Live       uint64 `json:"live"`
		Pending    uint64 `json:"pending"`
		Free       uint64 `json:"free"`
		Largest    uint64 `json:"largest"`
		Releasable uint64 `json:"releasable"`
		Waste      uint64 `json:"waste"`
		Holes      uint64 `json:"holes"`
		Segments   uint64 `json:"segments"`
	} `json:"pools"`
	Oom *struct {
		Requested  uint64 `json:"requested"`
		DeviceFree uint64 `json:"device_free"`
		Largest    uint64 `json:"largest"`
		Micros     int64  `json:"micros"`
	} `json:"oom"`
	NoStack [3]uint64 `json:"no_stack"`
	Stacks  []struct {
		Frames  []string `json:"frames"`
		Live    uint64   `json:"live"`
		Pending uint64   `json:"pending"`
		Blocks  uint64   `json:"blocks"`
	} `json:"stacks"`
	Sizes [][5]uint64 `json:"sizes"`
}

func workedOut(t *testing.T) map[string]worked {
	t.Helper()
	text, err := os.ReadFile("testdata/summary.json")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]worked)
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// Python's pickle and a script that knows nothing of this package agree to the byte, per pool, per stack and per size.
func TestSummaryAgreesWithPython(t *testing.T) {
	all := workedOut(t)
	for _, name := range recorded {
		t.Run(name, func(t *testing.T) {
			want, found := all[name+".pickle.gz"]
			if !found {
				t.Fatal("summary.json does not have it")
			}
			got := Summarise(recordedFile(t, name), Options{Reason: "asked", GPU: func(device int32) string { return fmt.Sprintf("GPU-%d", device) }})
			if len(got) != 1 {
				t.Fatalf("%d devices", len(got))
			}
			r := got[0]
			if r.GpuUuid != "GPU-0" || r.Reason != "asked" {
				t.Errorf("gpu %q reason %q", r.GpuUuid, r.Reason)
			}
			if len(r.Pools) != len(want.Pools) {
				t.Errorf("%d pools, Python has %d", len(r.Pools), len(want.Pools))
			}
			var sum, all [6]uint64
			for _, p := range r.Pools {
				w := want.Pools[p.Name]
				got := [...]uint64{p.GetReservedBytes(), p.GetLiveBytes(), p.GetPendingBytes(), p.GetFreeBytes(), p.GetLargestFreeBytes(), p.GetReleasableBytes(), p.GetWasteBytes(), p.GetSegments()}
				if got != [...]uint64{w.Reserved, w.Live, w.Pending, w.Free, w.Largest, w.Releasable, w.Waste, w.Segments} {
					t.Errorf("pool %s: %d, Python has %+v", p.Name, got, w)
				}
				if p.GetPrivate() != strings.HasPrefix(p.Name, "private") || p.GetPrivate() == (p.ReleasableBytes != nil) {
					t.Errorf("pool %s: private %v, releasable %v", p.Name, p.GetPrivate(), p.ReleasableBytes)
				}
				if w.Free > 0 && math.Abs(p.GetFragmentation()-(1-float64(w.Largest)/float64(w.Free))) > 1e-12 {
					t.Errorf("pool %s: fragmentation %g", p.Name, p.GetFragmentation())
				}
				for i, v := range []uint64{w.Reserved, w.Live, w.Pending, w.Free, w.Releasable, w.Waste} {
					sum[i] += v
				}
			}
			all = [6]uint64{r.GetReservedBytes(), r.GetLiveBytes(), r.GetPendingBytes(), r.GetFreeBytes(), r.GetReleasableBytes(), r.GetWasteBytes()}
			if all != sum {
				t.Errorf("card %d, the pools together %d", all, sum)
			}
			stacks := make(map[string][3]uint64)
			for _, one := range r.Stacks {
				stacks[strings.Join(one.Frames, "\n")] = [3]uint64{one.GetLiveBytes(), one.GetPendingBytes(), one.GetBlocks()}
			}
			if len(stacks) != len(want.Stacks) {
				t.Errorf("%d stacks, Python has %d", len(stacks), len(want.Stacks))
			}
			for _, w := range want.Stacks {
				if got := stacks[strings.Join(w.Frames, "\n")]; got != [3]uint64{w.Live, w.Pending, w.Blocks} {
					t.Errorf("stack %q: %d, Python has %+v", w.Frames, got, w)
				}
			}
			var sizes [][5]uint64
			for _, one := range r.Sizes {
				sizes = append(sizes, [5]uint64{one.UpToBytes, one.GetLiveBlocks(), one.GetLiveBytes(), one.GetFreeBlocks(), one.GetFreeBytes()})
			}
			var wantSizes [][5]uint64
			for _, one := range want.Sizes {
				if one != [5]uint64{one[0]} { // of pending blocks only
					wantSizes = append(wantSizes, one)
				}
			}
			if fmt.Sprint(sizes) != fmt.Sprint(wantSizes) {
				t.Errorf("sizes %v, Python has %v", sizes, wantSizes)
			}
			if (r.LastOom == nil) != (want.Oom == nil) {
				t.Fatalf("oom %v, Python has %v", r.LastOom, want.Oom)
			}
			if o := r.LastOom; o != nil && (o.GetRequestedBytes() != want.Oom.Requested || o.GetFreeBytes() != want.Oom.DeviceFree ||
				o.GetLargestFreeBytes() != want.Oom.Largest || o.Time.AsTime().UnixMicro() != want.Oom.Micros) {
				t.Errorf("oom %v, Python has %+v", o, want.Oom)
			}
		})
	}
}

// The figures still are what the script makes of the files.
func TestPythonFiguresAreCurrent(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3 here, so that testdata/summary.json is not worked out again:", err)
	}
	args := []string{"testdata/summary.py"}
	for _, name := range recorded {
		args = append(args, filepath.Join("testdata", name+".pickle.gz"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	got, err := exec.CommandContext(ctx, python, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/summary.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("testdata/summary.json is not what testdata/summary.py prints; write it anew")
	}
}

// The table in the README of the recorded snapshots, in GiB with two digits.
func TestRecordedSnapshots(t *testing.T) {
	gib := func(v uint64) string { return fmt.Sprintf("%.2f", float64(v)/(1<<30)) }
	cards := make(map[string]*card)
	for _, name := range recorded {
		cards[name] = only(t, recordedFile(t, name))
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	leak := cards["leak-oom"]
	check("leak-oom reserved", gib(leak.reserved), "13.78")
	check("leak-oom live", gib(leak.live), "13.51")
	check("leak-oom ooms", fmt.Sprint(len(leak.past.ooms)), "1")
	check("leak-oom request", quantity(leak.past.ooms[0].requested), "256 MiB")
	check("leak-oom holder", leak.holders[0].frames[0]+" in "+leak.holders[0].frames[1], "worker/worker.py:91 alloc in worker/worker.py:153 serve")
	expandable := cards["expandable-oom"]
	check("expandable-oom", fmt.Sprint(expandable.segments, expandable.holes, expandable.expandable, " ", gib(expandable.free)), "2 68 true 0.16")
	frag := cards["frag"]
	check("frag", fmt.Sprint(gib(frag.reserved), " ", gib(frag.live), " ", gib(frag.free), " ", frag.holes, " ", quantity(frag.largest), " ", quantity(frag.past.ooms[0].requested)), "12.91 11.27 1.65 24 116 MiB 3 GiB")
	graphs := cards["graphs"]
	check("graphs", fmt.Sprint(graphs.poolsText(), ", ", graphs.privatePools(), " ", gib(graphs.free)), "13 pools, 12 of them private, on 2 streams, 12 2.47")
	plateau := cards["cache_plateau"]
	check("cache_plateau", gib(plateau.reserved)+" "+gib(plateau.live), "11.79 10.22")
	check("stream_await", gib(cards["stream_await"].pending), "2.51")
}

// only is the one card of a snapshot.
func only(t testing.TB, s *Snapshot) *card {
	t.Helper()
	all := cards(s)
	if len(all) != 1 {
		t.Fatalf("%d devices, want one", len(all))
	}
	return all[0]
}

// A summary of very many places and pools is cut to what an event may have, and says so; what is left is what matters.
func TestSummaryIsCut(t *testing.T) {
	s := &Snapshot{Frames: make([]Frame, 1), Stacks: make([]Stack, 1)}
	address := uint64(1 << 40)
	long := strings.Repeat("very_long_name_", 20)
	for i := range 4000 {
		s.Frames = append(s.Frames, Frame{Name: fmt.Sprint(long, i), File: fmt.Sprint("/srv/", long, "/", long, i%7, ".py"), Line: int32(i)})
	}
	for i := range 3000 {
		var stack Stack
		for depth := range 20 {
			stack = append(stack, uint32(1+(i+depth*131)%4000))
		}
		s.Stacks = append(s.Stacks, stack)
		s.Segments = append(s.Segments, Segment{Stream: int64(i % 3), Pool: [2]uint64{uint64(i), 1}, Address: address, Total: 2 << 20, Blocks: []Block{
			{Address: address, Size: uint64(512 * (1 + i)), Requested: 100, State: Live, Stack: uint32(len(s.Stacks) - 1)}}})
		address += 4 << 20
	}
	r := Summarise(s, Options{})[0]
	text, err := event.MarshalEvent(&event.Event{Snapshot: r})
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 256<<10 {
		t.Errorf("%d bytes, at most %d", len(text), 256<<10)
	}
	if len(r.Stacks) < 50 || r.Stacks[0].GetLiveBytes() != 512*3000 {
		t.Errorf("%d stacks, the largest %d", len(r.Stacks), r.Stacks[0].GetLiveBytes())
	}
	kept := uint64(0)
	for _, one := range r.Stacks {
		kept += one.GetLiveBytes()
	}
	said := strings.Join(r.Lacking, "\n")
	for _, want := range []string{
		fmt.Sprintf("%d smaller stacks, %s together, are left out", 3000-len(r.Stacks), quantity(r.GetLiveBytes()-kept)), "smaller pools are left out"} {
		if !strings.Contains(said, want) {
			t.Errorf("lacking does not say %q:\n%s", want, said)
		}
	}
	line := append([]byte(`{"time":"2026-01-01T00:00:00Z","host":{"cluster":"c","name":"h"},`), text[1:]...)
	if _, _, err := event.UnmarshalEvent(line); err != nil {
		t.Errorf("the summary is no event: %v", err)
	}
}

// What a snapshot cannot say is said, in these words.
func TestLacking(t *testing.T) {
	block := func(stack uint32) []Segment {
		return []Segment{{Address: 1 << 21, Total: 2 << 20, Blocks: []Block{{Address: 1 << 21, Size: 1 << 20, State: Live, Stack: stack}, {Address: 3 << 20, Size: 1 << 20, State: Free}}}}
	}
	stacks, frames := []Stack{nil, {1}}, []Frame{{}, {"f", "/srv/app/a.py", 3}}
	entry := func(action Action, micros int64) Entry {
		return Entry{Action: action, Address: 1 << 21, Size: 1 << 20, Micros: micros}
	}
	for _, c := range []struct {
		name, want, not string
		s               Snapshot
	}{
		{"no history", "No block has a stack, and there is no history", "", Snapshot{Segments: block(0)}},
		{"recorded after all was there", "everything was allocated before recording began", "", Snapshot{Segments: block(0), Traces: [][]Entry{{entry(SnapshotTaken, 5)}}}},
		{"all has stacks", "It is PyTorch's view of one process", "stack", Snapshot{Segments: block(1), Traces: [][]Entry{{entry(Alloc, 5)}}}},
		{"overwritten", "older entries were overwritten: 1 block with a stack, 1 MiB, are older", "", Snapshot{Segments: block(1), Traces: [][]Entry{{entry(SnapshotTaken, 5)}}}},
		{"no history beside stacks", "no timeline, and no OOM can be seen", "", Snapshot{Segments: block(1)}},
		{"a history of another allocator", "1 entry of the history contradict", "", Snapshot{Segments: block(1), Traces: [][]Entry{{entry(FreeCompleted, 5), entry(Alloc, 6), entry(Alloc, 7)}}}},
		{"old", "of an old PyTorch", "", Snapshot{Segments: block(1), Legacy: true}},
		{"strange names", "does not know: defragment, teleport", "", Snapshot{Segments: block(1), Unknown: []string{"defragment", "teleport"}}},
		{"rounding", "roundup_power2_divisions", "", Snapshot{Segments: block(1), Traces: [][]Entry{{entry(Alloc, 5)}}, Settings: Settings{Known: true, AllocConf: "roundup_power2_divisions:4"}}},
		{"private", "graphs of 1 private pool are still needed", "", Snapshot{Segments: []Segment{{Pool: [2]uint64{0, 1}, Total: 2 << 20}}}},
		{"strange state", "1 MiB are in blocks of a state", "", Snapshot{Segments: []Segment{{Total: 2 << 20, Blocks: []Block{{Size: 1 << 20}}}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.s.Stacks, c.s.Frames = stacks, frames
			said := strings.Join(Summarise(&c.s, Options{})[0].Lacking, "\n")
			if !strings.Contains(said, c.want) || c.not != "" && strings.Contains(said, c.not) {
				t.Errorf("want %q, not %q:\n%s", c.want, c.not, said)
			}
		})
	}
}
