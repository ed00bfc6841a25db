package processor

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/rules"
)

// A worker without metrics marks when it is busy: ten minutes of work, five of rest, six hours long. What stays at rest counts, not
// what it holds at work; and since only its own word says what rest is, the verdict stays modest.
func TestMarkedRestIsCompared(t *testing.T) {
	const mib = 1 << 20
	for name, test := range map[string]struct {
		perCycle uint64
		want     string
	}{
		"40 MiB stay of every cycle": {40 * mib, "retention"},
		"nothing stays":              {0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pack, err := rules.Builtin()
			if err != nil {
				t.Fatal(err)
			}
			var found []*event.Finding
			j := NewJudge(pack, func(f *event.Finding) { found = append(found, f) })
			host := &event.Host{Cluster: "c", Name: "h", BootId: "b"}
			who := &event.Worker{Pid: 1, StartTicks: event.Ptr(uint64(1)), GpuUuids: []string{"GPU-a"}, Role: "worker"}
			origin := time.Unix(1_790_000_000, 0).UTC()
			for minute := range 6 * 60 {
				cycle, phase := minute/15, minute%15
				at := timestamppb.New(origin.Add(time.Duration(minute) * time.Minute))
				apply := func(e *event.Event) {
					e.Host, e.Time, e.Worker = host, at, who
					j.Apply(e)
				}
				allocated := uint64(4096*mib) + uint64(cycle)*test.perCycle
				switch {
				case phase == 0:
					apply(&event.Event{Mark: &event.Mark{Name: "probe", Kind: "busy"}})
				case phase == 10:
					apply(&event.Event{Mark: &event.Mark{Name: "probe", Kind: "quiet"}})
				}
				if phase < 10 {
					allocated += uint64(phase) * 900 * mib
				}
				apply(&event.Event{Allocator: &event.Allocator{GpuUuid: "GPU-a", AllocatedBytes: &allocated, ActiveBytes: &allocated, ReservedBytes: event.Ptr(uint64(20480 * mib))}})
			}
			j.Flush()
			if test.want == "" {
				if len(found) > 0 {
					t.Fatalf("found %+v", found[0])
				}
				return
			}
			if len(found) == 0 {
				t.Fatal("nothing was found")
			}
			for _, f := range found {
				if f.Class != test.want || f.Confidence > 0.6 {
					t.Errorf("%s with confidence %v", f.Class, f.Confidence)
				}
			}
		})
	}
}
