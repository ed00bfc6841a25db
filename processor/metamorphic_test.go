package processor

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

// What must not change a verdict, done to every real recording: each way gets the events of a copy.
var ways = map[string]func([]*event.Event) []*event.Event{
	"the events of a tick in reverse": func(all []*event.Event) (out []*event.Event) {
		for _, tick := range ticksOf(all) {
			slices.Reverse(tick)
			out = append(out, tick...)
		}
		return out
	},
	"the first hour cut off": func(all []*event.Event) []*event.Event {
		first := all[0].At()
		return slices.DeleteFunc(all, func(e *event.Event) bool { return e.At().Sub(first) < time.Hour })
	},
	"one line in fifty twice": func(all []*event.Event) (out []*event.Event) {
		for i, e := range all {
			if out = append(out, e); i%50 == 7 {
				out = append(out, e)
			}
		}
		return out
	},
	"one line in fifty two ticks late": func(all []*event.Event) []*event.Event {
		for i := 0; i+10 < len(all); i += 50 {
			late := all[i]
			copy(all[i:], all[i+1:i+11])
			all[i+10] = late
		}
		return all
	},
	"sensors some milliseconds apart": func(all []*event.Event) []*event.Event {
		for _, tick := range ticksOf(all) {
			for i, e := range tick {
				e.Time = timestamppb.New(e.At().Add(time.Duration(i) * 40 * time.Millisecond))
			}
		}
		return all
	},
	"a card and a worker of twice the size": func(all []*event.Event) []*event.Event {
		double := func(values ...*uint64) {
			for _, v := range values {
				if v != nil {
					*v *= 2
				}
			}
		}
		for _, e := range all {
			if g := e.Gpu; g != nil {
				double(g.TotalBytes, g.UsedBytes, g.FreeBytes)
			}
			if p := e.GpuProcess; p != nil {
				double(p.UsedBytes)
			}
			if a := e.Allocator; a != nil {
				double(a.AllocatedBytes, a.ReservedBytes, a.ActiveBytes, a.RequestedBytes, a.InactiveSplitBytes)
			}
			if p := e.Process; p != nil {
				double(p.RssBytes)
			}
		}
		return all
	},
	"known by boot id and start ticks": func(all []*event.Event) []*event.Event {
		for _, e := range all {
			e.Host = &event.Host{Cluster: e.Host.Cluster, Name: e.Host.Name, BootId: "b"}
			if e.Worker != nil {
				e.Worker = proto.CloneOf(e.Worker)
				e.Worker.StartTicks, e.Worker.Unit = event.Ptr(uint64(77)), "vllm.service"
			}
		}
		return all
	},
}

func ticksOf(all []*event.Event) (ticks [][]*event.Event) {
	for from := 0; from < len(all); {
		to := from
		for to < len(all) && all[to].At().Equal(all[from].At()) {
			to++
		}
		ticks = append(ticks, all[from:to])
		from = to
	}
	return ticks
}

func TestNothingOfThatChangesAVerdict(t *testing.T) {
	for way, change := range ways {
		t.Run(way, func(t *testing.T) {
			for name, class := range verdicts {
				found := map[string]bool{}
				judge := NewJudge(builtin(t), func(f *event.Finding) { found[f.Class] = true })
				var copies []*event.Event
				for _, e := range events(t, filepath.Join("testdata", name+".ndjson.gz")) {
					copies = append(copies, proto.CloneOf(e))
				}
				for _, e := range change(copies) {
					judge.Apply(e)
				}
				judge.Flush()
				if want := class != ""; len(found) > 1 || want && !found[class] || !want && len(found) > 0 {
					t.Errorf("%s: found %v, want %q", name, found, class)
				}
			}
		})
	}
}

// Recorded from its third hour on, the worker has never been seen without a queue, so that no latency can be called slow. Its queue tells.
func TestPressureIsSeenByAWatcherWhoCameLate(t *testing.T) {
	all := events(t, "testdata/kv_pressure.ndjson.gz")
	first := all[0].At()
	found := map[string]string{}
	judge := NewJudge(builtin(t), func(f *event.Finding) { found[f.Class] = f.Severity })
	for _, e := range all {
		if e.At().Sub(first) > 2*time.Hour {
			judge.Apply(e)
		}
	}
	judge.Flush()
	if len(found) != 1 || found["kv_pressure"] == "" {
		t.Errorf("found %v", found)
	}
}
