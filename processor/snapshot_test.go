package processor

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/collector/snapshot"
	"lowtide/event"
)

// summaries are those of six snapshots of real workers, as a collector sends them.
func summaries(t *testing.T) map[string]*event.Snapshot {
	t.Helper()
	all := map[string]*event.Snapshot{}
	for _, name := range []string{"leak-oom", "expandable-oom", "frag", "cache_plateau", "stream_await", "graphs"} {
		file, err := os.Open(filepath.Join("..", "collector", "snapshot", "testdata", name+".pickle.gz"))
		if err != nil {
			t.Fatal(err)
		}
		read, err := snapshot.Read(file, snapshot.Limits{})
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		of := snapshot.Summarise(read, snapshot.Options{Reason: "asked"})
		if len(of) != 1 {
			t.Fatalf("%s: %d devices", name, len(of))
		}
		of[0].File = "h-1-20261101T000000Z-asked.pickle"
		all[name] = of[0]
	}
	return all
}

// played judges a copy of a recording, changed event by event, with a snapshot of its worker after a part of its time.
func played(t *testing.T, name string, change func(part float64, e *event.Event), at float64, snapshots ...*event.Snapshot) (found []*event.Finding) {
	t.Helper()
	judge := NewJudge(builtin(t), func(f *event.Finding) { found = append(found, f) })
	all := events(t, filepath.Join("testdata", name+".ndjson.gz"))
	first, whole := all[0].At(), all[len(all)-1].At().Sub(all[0].At())
	for _, e := range all {
		part := float64(e.At().Sub(first)) / float64(whole)
		if len(snapshots) > 0 && part >= at && e.Allocator != nil {
			for _, s := range snapshots {
				s = proto.CloneOf(s)
				s.GpuUuid = e.Allocator.GpuUuid
				judge.Apply(&event.Event{Time: e.Time, Host: e.Host, Worker: e.Worker, Snapshot: s})
			}
			snapshots = nil
		}
		if change != nil {
			e = proto.CloneOf(e)
			change(part, e)
		}
		judge.Apply(e)
	}
	judge.Flush()
	return found
}

// of returns the transitions of a class, and fails for those of any other.
func of(t *testing.T, found []*event.Finding, class string) []*event.Finding {
	t.Helper()
	for _, f := range found {
		if f.Class != class {
			t.Errorf("found %s %s: %s", f.Class, f.State, f.Summary)
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(f *event.Finding) bool { return f.Class != class })
}

func evidenceOf(f *event.Finding, name string) float64 {
	for _, m := range f.Evidence {
		if m.Name == name {
			return m.Value
		}
	}
	return -1
}

// flushing has the allocator flush its cache six times an hour, as one does that finds no room.
func flushing(hours float64) func(float64, *event.Event) {
	return func(part float64, e *event.Event) {
		if e.Allocator != nil {
			e.Allocator.AllocRetriesTotal = event.Ptr(uint64(part * hours * 6))
		}
	}
}

// The evidence names the line that keeps the tensors, without being a second axis, and is told once.
func TestASnapshotNamesWhatRetentionHolds(t *testing.T) {
	for recording, name := range map[string]string{"leak": "leak-oom", "expandable": "expandable-oom"} {
		said := summaries(t)[name]
		said.LastOom = nil // it is of later
		plain := of(t, played(t, recording, nil, 0), "retention")
		found := of(t, played(t, recording, nil, 0.9, said), "retention")
		if len(found) != len(plain)+1 {
			t.Fatalf("%s: %d transitions with a snapshot and %d without", recording, len(found), len(plain))
		}
		at := slices.IndexFunc(found, func(f *event.Finding) bool { return f.Snapshot != "" })
		f := found[at]
		if at < 1 || f.State != found[at-1].State || f.Severity != found[at-1].Severity || f.Incident != found[0].Incident {
			t.Errorf("%s: the evidence changes %s to %s", recording, found[max(0, at-1)].State, f.State)
		}
		last := found[len(found)-1]
		if len(last.Holders) != 3 || last.Holders[0].Frames[1] != "worker/worker.py:153 serve" || last.Holders[0].LiveBytes < 4476*mib || last.Holders[0].Blocks < 311 {
			t.Errorf("%s: holders %+v", recording, last.Holders)
		}
		if !strings.Contains(f.Summary, "was allocated at worker/worker.py:91 alloc, from worker/worker.py:153 serve") {
			t.Errorf("%s: %s", recording, f.Summary)
		}
		if got := evidenceOf(f, "snapshot.stack_bytes"); got != float64(last.Holders[0].LiveBytes) {
			t.Errorf("%s: snapshot.stack_bytes is %v", recording, got)
		}
	}
}

// What grew most since an earlier snapshot comes before what is largest.
func TestGrowthByStackComesFirst(t *testing.T) {
	said := summaries(t)["leak-oom"]
	said.LastOom, said.GrowthSeconds = nil, event.Ptr(600.0)
	said.Stacks[0].GrowthBytes, said.Stacks[1].GrowthBytes = event.Ptr(int64(-3*mib)), event.Ptr(int64(330*mib))
	said.Census = &event.SnapshotCensus{Tensors: event.Ptr(uint64(91)), Bytes: event.Ptr(uint64(2 << 30)), Complete: event.Ptr(true)}
	found := of(t, played(t, "leak", nil, 0.9, said), "retention")
	f := found[len(found)-1]
	if f.Holders[0].Frames[1] != "worker/worker.py:215 <module>" || *f.Holders[0].GrowthBytes != 330*mib {
		t.Errorf("holders %+v", f.Holders)
	}
	if !strings.Contains(f.Summary, "330 MiB more in 600 s was allocated at worker/worker.py:91 alloc, from worker/worker.py:215 <module>") {
		t.Error(f.Summary)
	}
	if evidenceOf(f, "snapshot.stack_share") != 1 || evidenceOf(f, "snapshot.grad_tensors") != 91 {
		t.Errorf("evidence %v", f.Evidence)
	}
	if !slices.ContainsFunc(f.Advice, func(line string) bool {
		return strings.Contains(line, "inference_mode") && strings.Contains(line, "91 live tensors carry a grad_fn, with 2 GiB")
	}) {
		t.Errorf("advice %v", f.Advice)
	}
}

// The worker whose request for 3 GiB failed keeps 1.65 GiB in 24 holes. Its counters stay under what is called by themselves.
func TestASnapshotConfirmsFragmentation(t *testing.T) {
	of(t, played(t, "frag", flushing(3), 0), "")
	said := summaries(t)["frag"]
	found := of(t, played(t, "frag", flushing(3), 0.9, said), "fragmentation")
	if len(found) != 1 || found[0].State != event.Confirmed {
		t.Fatalf("found %v", found)
	}
	if f := found[0]; len(f.Holders) != 2 || f.Holders[0].Frames[1] != "worker/worker.py:164 serve" || f.Holders[0].Blocks != 22 || f.Snapshot != said.File {
		t.Errorf("holders %+v, file %q", f.Holders, f.Snapshot)
	}
	if got := evidenceOf(found[0], "snapshot.hole_bytes") / mib; got < 116.2 || got > 116.3 {
		t.Errorf("snapshot.hole_bytes is %v MiB", got)
	}
	for _, other := range []string{"cache_plateau", "expandable-oom", "graphs", "leak-oom"} {
		of(t, played(t, "frag", flushing(3), 0.9, summaries(t)[other]), "")
	}
	of(t, played(t, "cache_plateau", flushing(3), 0.9, summaries(t)["cache_plateau"]), "")
}

// Counters suspect it, a snapshot shows that the unused parts are those of private pools: it ends, and says why.
func TestASnapshotRefutesFragmentation(t *testing.T) {
	split := func(part float64, e *event.Event) {
		flushing(3)(part, e)
		if a := e.Allocator; a != nil {
			a.InactiveSplitBytes = event.Ptr(*a.ReservedBytes / 4)
		}
	}
	said := summaries(t)["frag"]
	said.Pools[0].FreeBytes, said.Pools[0].LargestFreeBytes = event.Ptr(uint64(200*mib)), event.Ptr(uint64(90*mib))
	said.PrivateFreeBytes = event.Ptr(uint64(3306 * mib))
	said.LastOom = nil
	found := of(t, played(t, "frag", split, 0.9, said), "fragmentation")
	if len(found) != 2 || found[0].State != event.Suspected || found[1].State != event.Resolved {
		t.Fatalf("found %v", found)
	}
	const want = "By a snapshot it is no fragmentation: 200 MiB of 12.9 GiB reserved lies free between live blocks, the largest free block is 90 MiB, 0 B is in whole segments, 3.23 GiB in private pools"
	if found[1].Resolution != want {
		t.Errorf("got  %s\nwant %s", found[1].Resolution, want)
	}
	// One that shows the pieces confirms what the counters suspect.
	said = summaries(t)["frag"]
	said.Pools[0].FreeBytes = event.Ptr(uint64(3306 * mib))
	found = of(t, played(t, "frag", split, 0.9, said), "fragmentation")
	if len(found) != 2 || found[0].State != event.Suspected || found[1].State != event.Confirmed {
		t.Fatalf("found %v", found)
	}
}

func TestASnapshotConfirmsAStreamBacklog(t *testing.T) {
	waits := func(part float64, e *event.Event) {
		if a := e.Allocator; a != nil && part > 0.2 {
			*a.ActiveBytes += 2575 * mib
			*a.ReservedBytes += 2575 * mib
		}
		if p := e.GpuProcess; p != nil && part > 0.2 {
			*p.UsedBytes += 2575 * mib
		}
	}
	found := of(t, played(t, "healthy", waits, 0.9, summaries(t)["stream_await"]), "stream_backlog")
	if len(found) != 2 || found[0].State != event.Suspected || found[1].State != event.Confirmed || found[0].Holders != nil {
		t.Fatalf("found %v", found)
	}
	if h := found[1].Holders; len(h) != 1 || h[0].Frames[1] != "worker/worker.py:190 serve" || h[0].LiveBytes != 2575*mib || h[0].Blocks != 105 {
		t.Errorf("holders %+v", h)
	}
	if got := evidenceOf(found[1], "snapshot.pending_bytes"); got != 2575*mib {
		t.Errorf("snapshot.pending_bytes is %v", got)
	}
}

func TestASnapshotTellsOfGraphPools(t *testing.T) {
	captures := func(part float64, e *event.Event) {
		if a := e.Allocator; a != nil {
			a.PrivatePoolBytes = event.Ptr(uint64((500 + 4000*part) * mib))
		}
	}
	found := of(t, played(t, "healthy", captures, 0.95, summaries(t)["graphs"]), "graph_pools")
	f := found[len(found)-1]
	if found[0].Holders != nil || len(f.Holders) < 2 || f.Holders[0].Frames[0] != "worker/worker.py:178 serve" || evidenceOf(f, "snapshot.private_free_bytes") != 1424*mib {
		t.Errorf("holders %+v, evidence %v", f.Holders, f.Evidence)
	}
}

// Snapshots of all these workers, one after the other, in any recording: no class is found that the recording is not of, and none is lost.
// Only that of the fragmented one may say so where the allocator has trouble to find room, as it has beside a request that is too large.
func TestASnapshotChangesNoOtherVerdict(t *testing.T) {
	for name, class := range verdicts {
		all := summaries(t)
		names := slices.Sorted(maps.Keys(all))
		found := map[string]bool{}
		judge := NewJudge(builtin(t), func(f *event.Finding) { found[f.Class] = true })
		recorded := events(t, filepath.Join("testdata", name+".ndjson.gz"))
		for i, e := range recorded {
			if at := len(recorded) * 2 / 5; e.Allocator != nil && len(names) > 0 && i > at+(6-len(names))*len(recorded)/10 {
				s := proto.CloneOf(all[names[0]])
				s.GpuUuid, names = e.Allocator.GpuUuid, names[1:]
				judge.Apply(&event.Event{Time: e.Time, Host: e.Host, Worker: e.Worker, Snapshot: s})
			}
			judge.Apply(e)
		}
		judge.Flush()
		if name == "spike" {
			delete(found, "fragmentation")
		}
		if want := class != ""; len(found) > 1 || want && !found[class] || !want && len(found) > 0 {
			t.Errorf("%s: found %v, want %q", name, found, class)
		}
	}
}

// A snapshot begins no life: it is about a process that somebody else tells of, or about none.
func TestASnapshotOfAnotherLifeIsNotMixedIn(t *testing.T) {
	s := newStage(t)
	now, old := &event.Worker{Pid: 9, StartTicks: event.Ptr(uint64(200)), GpuUuids: []string{"GPU-a"}}, &event.Worker{Pid: 9, StartTicks: event.Ptr(uint64(100)), GpuUuids: []string{"GPU-a"}}
	s.apply(now, handles())
	s.apply(old, &event.Event{Snapshot: summaries(t)["frag"]})
	if len(s.judge.workers) != 1 || s.worker(old) != nil {
		t.Fatalf("%d workers", len(s.judge.workers))
	}
	if file, holders := s.worker(now).Evidence("retention"); !s.worker(now).EvidenceAt().IsZero() || file != "" || holders != nil {
		t.Errorf("the process has the snapshot of its predecessor: %q %v", file, holders)
	}
	s.at = s.at.Add(time.Minute)
	s.apply(now, &event.Event{Snapshot: summaries(t)["leak-oom"]})
	if _, holders := s.worker(now).Evidence("retention"); !s.worker(now).EvidenceAt().Equal(s.at) || len(holders) != 3 {
		t.Errorf("its own is not there: %v", holders)
	}
}

// An observer tells what was asked for and what was live, not what was loose, of a worker under a cap of its own on a card that others fill
// meanwhile: 896 MiB of 6.99 GiB, with 1017 MiB live and 96.9 GiB free. It is nobody else's doing, and the snapshot of the moment confirms it.
func TestUnderACapOfItsOwnItIsFragmentation(t *testing.T) {
	const gib = 1 << 30
	limit := uint64(7505494016)
	failed := &event.Oom{Kind: "cuda", RequestedBytes: event.Ptr(uint64(896 * mib)), FreeBytes: event.Ptr(uint64(103998423040)), LimitBytes: &limit, AllocatedBytes: event.Ptr(uint64(1017 * mib))}
	holes := &event.Snapshot{Reason: "oom", File: "h-1-oom.pickle", ReservedBytes: event.Ptr(uint64(7102 * mib)), LiveBytes: event.Ptr(uint64(1017 * mib)), FreeBytes: event.Ptr(uint64(6085 * mib)),
		LargestFreeBytes: event.Ptr(uint64(62 * mib)), ReleasableBytes: event.Ptr(uint64(0)), PrivateFreeBytes: event.Ptr(uint64(0)), PrivateBytes: event.Ptr(uint64(0))}
	for name, test := range map[string]struct {
		after time.Duration // of the snapshot; zero: none comes
		state string
	}{
		"the failure alone":            {0, event.Suspected},
		"with its snapshot":            {92 * time.Millisecond, event.Confirmed},
		"its snapshot is written long": {8 * time.Minute, event.Confirmed},
	} {
		t.Run(name, func(t *testing.T) {
			var found []*event.Finding
			judge := NewJudge(builtin(t), func(f *event.Finding) { found = append(found, f) })
			all := events(t, "testdata/healthy.ndjson.gz")
			middle := all[len(all)/2].At()
			oom, snap := failed, holes
			for _, e := range all {
				e = proto.CloneOf(e)
				if e.Gpu != nil {
					part := float64(e.At().Sub(all[0].At())) / float64(all[len(all)-1].At().Sub(all[0].At()))
					*e.Gpu.UsedBytes += uint64(part * 30 * gib) // others come
				}
				judge.Apply(e)
				if e.Allocator == nil || e.At().Before(middle) {
					continue
				}
				if oom != nil {
					judge.Apply(&event.Event{Time: timestamppb.New(e.At()), Host: e.Host, Worker: e.Worker, Oom: oom})
					oom = nil
				}
				if snap != nil && test.after > 0 && e.At().Sub(middle) >= test.after-time.Second {
					judge.Apply(&event.Event{Time: timestamppb.New(e.At().Add(min(test.after, time.Second))), Host: e.Host, Worker: e.Worker, Snapshot: snap})
					snap = nil
				}
			}
			judge.Flush()
			mine := of(t, found, "fragmentation")
			if len(mine) == 0 || mine[0].State != event.Suspected || mine[len(mine)-1].State != test.state {
				t.Fatalf("found %v", mine)
			}
			if test.after > 0 && mine[len(mine)-1].Snapshot != holes.File {
				t.Errorf("the finding does not name its snapshot: %q", mine[len(mine)-1].Snapshot)
			}
		})
	}
}
