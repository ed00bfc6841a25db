package sink

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
)

var rollupStart = time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)

// rollupEvents are two hours of an instance with two ranks, a reading every 20 seconds, written so that the numbers can be worked out by hand. Live memory
// of rank 0 is 10 GiB, of rank 1 11 GiB; it is 5 GiB more while something runs, and 1 GiB less for one reading at 08:30:20, when something
// runs as well. It drains for the last 5 minutes of each half hour; after the drain of 08:55 another GiB stays on rank 0. Only rank 0 tells of the engine.
func rollupEvents(hostName string) (ticks [][]*event.Event) {
	host := &event.Host{Cluster: "lab", Name: hostName, BootId: "b"}
	bytes := func(g float64) *uint64 { return event.Ptr(uint64(g * gib)) }
	for second := 0; second < 7200; second += 20 {
		at := timestamppb.New(rollupStart.Add(time.Duration(second) * time.Second))
		quiet := second/60%30 >= 25
		var tick []*event.Event
		for rank := range 2 {
			w := &event.Worker{Pid: int64(50 + rank), StartTicks: event.Ptr(uint64(9)), Rank: event.Ptr(int64(rank)), Unit: "u", EngineIndex: event.Ptr(int64(0)), Role: "worker", Model: "m",
				Release: "r", GpuUuids: []string{fmt.Sprint("GPU-", hostName, rank)}}
			live := 10 + float64(rank)
			if rank == 0 && second >= 3300 {
				live++
			}
			if !quiet {
				live += 5
			}
			if second == 1820 {
				live = 9 + float64(rank)
			}
			add := func(e *event.Event) { e.Time, e.Host, e.Worker = at, host, w; tick = append(tick, e) }
			add(&event.Event{GpuProcess: &event.GpuProcess{GpuUuid: w.GpuUuids[0], UsedBytes: bytes(live + 3)}})
			add(&event.Event{Allocator: &event.Allocator{AllocatedBytes: bytes(live), ActiveBytes: bytes(live + 0.5), ReservedBytes: bytes(live + 2), PinnedAllocatedBytes: bytes(0.25), OomsTotal: event.Ptr(uint64(second / 3600))}})
			add(&event.Event{Process: &event.Process{AnonBytes: bytes(2), SwapBytes: bytes(0.5), RssBytes: bytes(4), PinnedKernelBytes: bytes(1), Fds: event.Ptr(uint64(70)), Threads: event.Ptr(uint64(30))}})
			if rank == 0 {
				running := uint64(4)
				if quiet {
					running = 0
				}
				add(&event.Event{Engine: &event.Engine{Running: event.Ptr(running), Waiting: event.Ptr(uint64(0)), KvUsage: event.Ptr(float64(running) / 10), FinishedTotal: event.Ptr(uint64(second))}})
			}
			tick = append(tick, &event.Event{Time: at, Host: host, Gpu: &event.Gpu{Uuid: w.GpuUuids[0], TotalBytes: bytes(80), UsedBytes: bytes(live + 4), ProcessesComplete: event.Ptr(true), Utilization: event.Ptr(0.5)}})
		}
		ticks = append(ticks, tick)
	}
	return ticks
}

// rolledUp stores one host tick by tick, and one whose every reading comes in a block of its own, as if sources were always cut apart; each block
// is sent twice.
func (f fleet) rolledUp(t *testing.T, whole, split string) {
	t.Helper()
	sequence := uint64(0)
	send := func(events []*event.Event) {
		sequence++
		b := Block{Token: fmt.Sprint("rollup:", sequence), Messages: []Message{{Sequence: sequence, Time: rollupStart, Batch: &event.Batch{Host: events[0].Host, Events: events}}}}
		for range 2 {
			if err := f.store.Insert(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
	}
	for ticks := range slices.Chunk(rollupEvents(whole), 30) {
		send(slices.Concat(ticks...))
	}
	parts := map[string][]*event.Event{}
	for _, tick := range rollupEvents(split) {
		for _, e := range tick {
			parts[e.Body()] = append(parts[e.Body()], e)
		}
	}
	for _, body := range slices.Sorted(maps.Keys(parts)) {
		for some := range slices.Chunk(parts[body], 150) {
			send(some)
		}
	}
}

// of asks a view about the two hours of one host.
func (f fleet) of(t *testing.T, view, host, more, order string) []map[string]any {
	t.Helper()
	return f.rows(t, "SELECT * FROM "+view+"(since = '2026-11-01 08:00:00', until = '2026-11-01 10:00:00', host = '"+host+"'"+more+") ORDER BY "+order, nil)
}

const anyWorker = ", worker = '', slot = '', release = ''"

func TestRollupsAreRightHoweverTheReadingsCome(t *testing.T) {
	f := startStore(t)
	f.rolledUp(t, "whole", "split")
	t.Run("values", f.rollupValues)
	t.Run("split", f.rollupOfSplitTicks)
	t.Run("backfill", f.rollupsAreFilled)
}

func (f fleet) rollupValues(t *testing.T) {
	minutes := f.of(t, "worker_minutes", "whole", anyWorker, "slot, minute")
	if len(minutes) != 240 {
		t.Fatalf("%d minutes, want 120 of two ranks", len(minutes))
	}
	is(t, minutes[0], map[string]any{"minute": "2026-11-01 08:00:00", "slot": "lab/whole/u/0/0", "live_bytes": 15 * gib, "awaiting_bytes": gib / 2, "cached_bytes": 3 * gib / 2, "reserved_bytes": 17 * gib,
		"used_bytes": 18 * gib, "outside_bytes": gib, "anon_bytes": 5 * gib / 2, "pinned_bytes": gib / 4, "fds": 70, "threads": 30, "running": 4, "waiting": 0, "kv_usage": 0.4, "finished_total": 40, "ooms_total": 0})
	is(t, minutes[25], map[string]any{"live_bytes": 10 * gib, "running": 0, "kv_usage": 0, "finished_total": 1540})
	is(t, minutes[30], map[string]any{"live_bytes": 9 * gib})                                               // the one low reading
	is(t, minutes[120+25], map[string]any{"slot": "lab/whole/u/0/1", "live_bytes": 11 * gib, "running": 0}) // of the instance, which rank 0 tells
	load := f.of(t, "load_minutes", "whole", ", worker = '', slot = ''", "minute")
	is(t, load[24], map[string]any{"running": 4, "running_mean": 4})
	is(t, f.rows(t, "SELECT sum(running_count) AS readings, sum(running_sum) AS running FROM instance_minute_rollup WHERE host = 'whole'", nil)[0],
		map[string]any{"readings": 360, "running": 4 * 300}) // once, though each block was sent twice
	hours := f.of(t, "worker_hours", "whole", anyWorker, "slot, hour")
	if len(hours) != 4 {
		t.Fatalf("%d hours, want 2 of two ranks", len(hours))
	}
	is(t, hours[0], map[string]any{"hour": "2026-11-01 08:00:00", "live_least_bytes": 9 * gib, "quiet_live_bytes": 10 * gib, "live_most_bytes": 15 * gib, "quiet_used_bytes": 13 * gib, "quiet_anon_bytes": 5 * gib / 2,
		"used_last_bytes": 14 * gib, "ooms_total": 0})
	is(t, hours[1], map[string]any{"hour": "2026-11-01 09:00:00", "live_least_bytes": 11 * gib, "quiet_live_bytes": 11 * gib, "live_most_bytes": 16 * gib, "ooms_total": 1})
	is(t, hours[2], map[string]any{"slot": "lab/whole/u/0/1", "live_least_bytes": 10 * gib, "quiet_live_bytes": 11 * gib})
	near(t, hours[3], "used_mean_bytes", (50*19+10*14)*gib/60., 1e-9) // 50 minutes of work and 10 of none
	cards := f.of(t, "gpu_hours", "whole", "", "gpu_uuid, hour")
	is(t, cards[0], map[string]any{"total_bytes": 80 * gib, "used_least_bytes": 13 * gib, "used_most_bytes": 19 * gib, "used_last_bytes": 15 * gib, "utilization_ratio": 0.5})
	if cards := f.of(t, "gpu_minutes", "whole", "", "gpu_uuid, minute"); len(cards) != 240 {
		t.Errorf("%d minutes of cards", len(cards))
	}
	points := f.of(t, "quiet_points", "whole", anyWorker, "slot, time")
	if len(points) != 8 { // a drain every half hour, of two ranks
		t.Fatalf("%d quiet points, want 8: %v", len(points), points)
	}
	is(t, points[0], map[string]any{"time": "2026-11-01 08:25:00", "live_bytes": 10 * gib, "outside_bytes": gib})
	is(t, points[2], map[string]any{"live_bytes": 11 * gib})
}

// rollupOfSplitTicks: what came apart is the same, but for what needs one tick to be seen at once, which is unknown then and never wrong.
func (f fleet) rollupOfSplitTicks(t *testing.T) {
	for _, view := range []struct{ name, more, order string }{
		{"worker_minutes", anyWorker, "slot, minute"}, {"load_minutes", ", worker = '', slot = ''", "minute"}, {"quiet_points", anyWorker, "slot, time"},
		{"worker_hours", anyWorker, "slot, hour"}, {"gpu_minutes", "", "gpu_uuid, minute"}, {"gpu_hours", "", "gpu_uuid, hour"},
	} {
		whole, split := f.of(t, view.name, "whole", view.more, view.order), f.of(t, view.name, "split", view.more, view.order)
		if len(whole) != len(split) || len(whole) == 0 {
			t.Errorf("%s: %d rows of readings that came apart, %d of those that came together", view.name, len(split), len(whole))
			continue
		}
		for i := range whole {
			for column, value := range whole[i] {
				switch column {
				case "host", "slot", "worker_key", "gpu_uuid", "instance":
				case "quiet_live_bytes", "quiet_used_bytes", "quiet_anon_bytes":
					if split[i][column] != nil {
						t.Errorf("%s row %d: %s = %v, want that it is not known", view.name, i, column, split[i][column])
					}
				default:
					if !reflect.DeepEqual(split[i][column], value) {
						t.Errorf("%s row %d: %s = %v of readings that came apart, want %v", view.name, i, column, split[i][column], value)
					}
				}
			}
		}
	}
}

// rollupsAreFilled: samples that are older than the rollups come into them, once or more often, and what is shown of them is the same.
func (f fleet) rollupsAreFilled(t *testing.T) {
	all := func() (out [][]map[string]any) {
		for _, view := range []struct{ name, more, order string }{{"worker_minutes", anyWorker, "slot, minute"}, {"load_minutes", ", worker = '', slot = ''", "minute"},
			{"worker_hours", anyWorker, "slot, hour"}, {"gpu_minutes", "", "gpu_uuid, minute"}, {"gpu_hours", "", "gpu_uuid, hour"}} {
			out = append(out, f.of(t, view.name, "whole", view.more, view.order))
		}
		return out
	}
	// Nothing was stored when this store was made, so nothing is older than the rollups, and no start may add it to them once more.
	is(t, f.rows(t, "SELECT countIf(day = '1970-01-01') AS done FROM rollup_progress FINAL", nil)[0], map[string]any{"done": 5})
	before := all()
	clear := func(tables ...string) {
		for _, table := range tables {
			if err := f.store.exec(t.Context(), "TRUNCATE TABLE lowtide."+table); err != nil {
				t.Fatal(err)
			}
		}
	}
	clear(append(slices.Concat(keptMinutes, keptHours), "rollup_progress")...)
	clear(TableWorkers, TableGpus)
	for n, tick := range rollupEvents("whole") { // what is older has no number
		for _, rows := range Join(Block{Messages: []Message{{Sequence: 1, Time: rollupStart, Batch: &event.Batch{Host: tick[0].Host, Events: tick}}}}) {
			if err := f.store.InsertRows(t.Context(), fmt.Sprint("older:", n, rows.Table), rows); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, again := range []bool{false, true, false} {
		if again { // as after a crash before a day was recorded
			clear("rollup_progress")
		}
		if err := f.store.Backfill(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, rows := range all() {
			if !reflect.DeepEqual(rows, before[i]) {
				t.Errorf("view %d, again %v: %d rows differ from the %d of the samples as they came", i, again, len(rows), len(before[i]))
			}
		}
	}
	rows := f.rows(t, "SELECT uniqExact(rollup) AS rollups, countIf(day = '1970-01-01') AS done FROM rollup_progress FINAL", nil)
	is(t, rows[0], map[string]any{"rollups": 5, "done": 5})
}

func TestFillsComeFromTheViews(t *testing.T) {
	all, err := fills("lowtide")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range all {
		names = append(names, f.rollup+" of "+f.source)
	}
	if want := []string{"worker_minute_rollup of worker_samples", "instance_minute_rollup of worker_samples", "worker_hour_rollup of worker_samples", "gpu_minute_rollup of gpu_samples",
		"gpu_hour_rollup of gpu_samples"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

func TestSlicesOfADayAreBounded(t *testing.T) {
	day := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var counts [24]uint64
	counts[3], counts[4], counts[10], counts[11] = fillRows/2, fillRows/2, 1, 3*fillRows
	parts := slicesOf(day, counts)
	want := []string{"00:00 10:00", "10:00 11:00", "11:00 11:20", "11:20 11:40", "11:40 12:00"}
	var got []string
	for _, p := range parts {
		got = append(got, p[0].Format("15:04")+" "+p[1].Format("15:04"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if parts := slicesOf(day, [24]uint64{}); len(parts) != 0 {
		t.Errorf("%d slices of a day without a row", len(parts))
	}
	if parts := slicesOf(day, [24]uint64{5: 10}); len(parts) != 1 || !parts[0][1].Equal(day.Add(24*time.Hour)) {
		t.Errorf("a small day is %v", parts)
	}
}
