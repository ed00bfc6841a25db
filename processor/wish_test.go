package processor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"lowtide/event"
	"lowtide/processor/report"
	"lowtide/processor/worker"
)

// untold makes of a recording one of PyTorch 2.11, which does not tell private pools apart.
func untold(_ float64, e *event.Event) {
	if e.Allocator != nil {
		e.Allocator.PrivatePoolBytes, e.Allocator.GraphPools = nil, nil
	}
}

// cacheThatGrows has what is reserved grow by 300 MiB an hour, all of it free.
func cacheThatGrows(hours float64) func(float64, *event.Event) {
	return func(part float64, e *event.Event) {
		untold(part, e)
		if e.Allocator != nil {
			e.Allocator.ReservedBytes = event.Ptr(*e.Allocator.ReservedBytes + uint64(part*hours*300*mib))
		}
		if e.GpuProcess != nil {
			e.GpuProcess.UsedBytes = event.Ptr(*e.GpuProcess.UsedBytes + uint64(part*hours*300*mib))
		}
	}
}

// wishing judges a recording, changed event by event, and returns what was found and what was asked for.
func wishing(t *testing.T, name string, change func(float64, *event.Event), snapshots map[float64]*event.Snapshot) (j *Judge, found []*event.Finding, wishes []*Wish) {
	t.Helper()
	j = NewJudge(builtin(t), func(f *event.Finding) { found = append(found, f) })
	j.wish = func(w *Wish) { wishes = append(wishes, w) }
	all := events(t, "testdata/"+name+".ndjson.gz")
	first, whole := all[0].At(), all[len(all)-1].At().Sub(all[0].At())
	for _, e := range all {
		part := float64(e.At().Sub(first)) / float64(whole)
		e = proto.CloneOf(e)
		change(part, e)
		j.Apply(e)
		for at, s := range snapshots {
			if part >= at && e.Allocator != nil {
				s = proto.CloneOf(s)
				s.GpuUuid = e.Allocator.GpuUuid
				j.Apply(&event.Event{Time: e.Time, Host: e.Host, Worker: e.Worker, Snapshot: s})
				delete(snapshots, at)
			}
		}
	}
	j.Flush()
	return j, found, wishes
}

func hoursOfRecording(t *testing.T, name string) float64 {
	t.Helper()
	all := events(t, "testdata/"+name+".ndjson.gz")
	return all[len(all)-1].At().Sub(all[0].At()).Hours()
}

// pooled is a snapshot of so much free memory, of which some lies in private pools that have reserved as much.
func pooled(free, private uint64) *event.Snapshot {
	return &event.Snapshot{Reason: "graph_pools possible", ReservedBytes: event.Ptr(uint64(20 << 30)), FreeBytes: event.Ptr(free), PrivateFreeBytes: event.Ptr(private),
		PrivateBytes: event.Ptr(private), ReleasableBytes: event.Ptr(free - private), LargestFreeBytes: event.Ptr(uint64(20 * mib))}
}

// A cache that grows while nobody tells of private pools is worth a snapshot, once in the life of the process. It is no finding. What the
// snapshot shows decides: memory of graphs, or an allocator that caches.
func TestASnapshotIsAskedForWhereOnlyItCanTell(t *testing.T) {
	hours := hoursOfRecording(t, "healthy")
	grown := func(part float64) uint64 { return uint64(part * hours * 300 * mib) }
	j, found, wishes := wishing(t, "healthy", cacheThatGrows(hours), nil)
	if len(found) != 0 {
		t.Errorf("found %s: %s", found[0].Class, found[0].Summary)
	}
	if len(wishes) != 1 || wishes[0].Rule != "graph_pools" || wishes[0].Host == "" || wishes[0].Worker.GetPid() == 0 || wishes[0].Key == "" {
		t.Fatalf("%d wishes: %+v", len(wishes), wishes)
	}
	said := "a snapshot was asked for at " + wishes[0].At.UTC().Format("2006-01-02 15:04 UTC") + ", to see whether it is graph_pools"
	reports := j.Reports()
	at := slices.IndexFunc(reports, func(r worker.Report) bool { return len(r.Asked) > 0 })
	if at < 0 || reports[at].Asked[0] != said {
		t.Fatalf("reported %+v", reports)
	}
	subjects, _ := report.Assign(reports[at:at+1], nil)
	for name, write := range map[string]func(*strings.Builder) error{
		"short": func(b *strings.Builder) error { return report.WriteShort(b, subjects[0], report.Style{}) },
		"whole": func(b *strings.Builder) error { return report.Write(b, subjects[0], report.Style{}) },
		"json": func(b *strings.Builder) error {
			text, err := report.MarshalJSON(subjects[0])
			b.Write(text)
			return err
		},
	} {
		var b strings.Builder
		if err := write(&b); err != nil || !strings.Contains(strings.Join(strings.Fields(b.String()), " "), said) {
			t.Errorf("%s report does not tell it (%v):\n%s", name, err, b.String())
		}
	}

	late := 0.9
	_, found, _ = wishing(t, "healthy", cacheThatGrows(hours), map[float64]*event.Snapshot{late: pooled(grown(late), grown(late)*9/10)})
	pools := of(t, found, "graph_pools")
	if len(pools) == 0 || pools[0].State != event.Suspected || !strings.Contains(pools[0].Summary, "a snapshot shows") {
		t.Fatalf("found %v", pools)
	}
	_, found, _ = wishing(t, "healthy", cacheThatGrows(hours), map[float64]*event.Snapshot{late - 0.05: pooled(grown(late-0.05), grown(late-0.05)*9/10), late: pooled(grown(late), grown(late)*9/10)})
	if pools = of(t, found, "graph_pools"); len(pools) == 0 || pools[len(pools)-1].State != event.Confirmed {
		t.Errorf("a second snapshot does not confirm it: %v", pools)
	}
	if _, found, _ = wishing(t, "healthy", cacheThatGrows(hours), map[float64]*event.Snapshot{late: pooled(grown(late), 0)}); len(found) != 0 {
		t.Errorf("an allocator that merely caches is called %s: %s", found[0].Class, found[0].Summary)
	}
}

// Private pools that nobody tells of are never proven to be level, so that an incident of them ends after a day without it.
func TestPoolsThatNobodyTellsOfEndWithSilence(t *testing.T) {
	for want, change := range map[bool]func(float64, *event.Event){true: untold, false: pooling} {
		j, _, _ := wishing(t, "healthy", change, nil)
		for _, w := range j.workers {
			if got := w.unseen(growthSeries["graph_pools"]); got != want {
				t.Errorf("unseen is %v, want %v", got, want)
			}
			if w.unseen(growthSeries["retention"]) || w.unseen(growthSeries["fd_leak"]) {
				t.Error("what is told is unseen")
			}
		}
	}
}

// What is well, or tells of its pools, or only once filled a cache, is left alone.
func TestNobodyIsHeldUpForNothing(t *testing.T) {
	for name, change := range map[string]func(float64, *event.Event){"healthy": untold, "cache_plateau": untold, "busy_healthy": untold, "spike": untold,
		"graphs": func(float64, *event.Event) {}} {
		if _, _, wishes := wishing(t, name, change, nil); len(wishes) != 0 {
			t.Errorf("%s: a snapshot is asked for at %s", name, wishes[0].At.Format(time.TimeOnly))
		}
	}
	plateau := summaries(t)["cache_plateau"]
	if _, found, _ := wishing(t, "cache_plateau", untold, map[float64]*event.Snapshot{0.9: plateau}); len(found) != 0 {
		t.Errorf("a cache that is full is called %s: %s", found[0].Class, found[0].Summary)
	}
	if fmt.Sprint(plateau.GetPrivateFreeBytes()) != "0" {
		t.Errorf("%d bytes are free in private pools", plateau.GetPrivateFreeBytes())
	}
}

// pooling tells of private pools.
func pooling(_ float64, e *event.Event) {
	if e.Allocator != nil {
		e.Allocator.PrivatePoolBytes = event.Ptr(uint64(64 * mib))
	}
}
