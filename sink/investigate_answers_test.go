package sink

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

// investigate asks a saved question about the day of the recordings.
func (f fleet) investigate(t *testing.T, name string, given map[string]string) []map[string]any {
	t.Helper()
	i, err := lookUp(name)
	if err != nil {
		t.Fatal(err)
	}
	c := InvestigateCommand{Access: f.access, Now: time.Now, Limit: 1000, Worker: given["worker"], Slot: given["slot"], Host: given["host"], Release: given["release"], Incident: given["incident"]}
	if i.window > 0 {
		c.Since, c.Until = "2026-11-01", "2026-11-02"
	}
	bound, err := c.bind(i)
	if err != nil {
		t.Fatal(err)
	}
	return f.rows(t, i.query(""), bound)
}

// only is the row whose columns have these values.
func only(t *testing.T, rows []map[string]any, want map[string]any) map[string]any {
	t.Helper()
	var found []map[string]any
	for _, row := range rows {
		same := true
		for name, value := range want {
			same = same && row[name] == value
		}
		if same {
			found = append(found, row)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d rows with %v, want 1, of %d:\n%v", len(found), want, len(rows), rows)
	}
	return found[0]
}

// near fails unless a number is within a share of what is wanted.
func near(t *testing.T, row map[string]any, name string, want, share float64) {
	t.Helper()
	got, ok := row[name].(float64)
	if !ok || math.Abs(got-want) > math.Abs(want)*share {
		t.Errorf("%s = %v, want %v within %v %%", name, row[name], want, share*100)
	}
}

func is(t *testing.T, row map[string]any, want map[string]any) {
	t.Helper()
	for name, value := range want {
		if n, ok := value.(int); ok {
			value = float64(n)
		}
		if fmt.Sprint(row[name]) != fmt.Sprint(value) {
			t.Errorf("%s = %v, want %v", name, row[name], value)
		}
	}
}

const mib = 1 << 20

// The judge comes to the same numbers by other means, in Go; the scene's are written in its own comment.
func (f fleet) answers(t *testing.T) {
	leak, native := f.incident(t, "retention"), f.incident(t, "native_growth")
	t.Run("growth-by-release", func(t *testing.T) {
		rows := f.investigate(t, "growth-by-release", nil)
		b := only(t, rows, map[string]any{"release": "build-b"})
		is(t, b, map[string]any{"workers": 1, "rising": 1, "quiet_points": 16, "incidents": 1, "model": "chat"})
		near(t, b, "live_bytes_per_hour", leak.Growth.Value, 0.02)
		near(t, b, "live_bytes_per_abort", leak.PerAbort.Value, 0.03)
		if !strings.HasPrefix(fmt.Sprint(b["onset"]), leak.Onset.UTC().Format("2006-01-02 15:04:05")) {
			t.Errorf("onset = %v, want %v", b["onset"], leak.Onset)
		}
		c := only(t, rows, map[string]any{"release": "build-c"})
		is(t, c, map[string]any{"rising": 1, "incidents": 1})
		near(t, c, "outside_bytes_per_hour", native.Growth.Value, 0.02)
		is(t, only(t, rows, map[string]any{"release": "build-a"}), map[string]any{"workers": 2, "rising": 0, "incidents": nil, "live_bytes_per_abort": nil})
		if rows[0]["release"] != "build-b" {
			t.Errorf("first is %v, want the one that grows most", rows[0])
		}
		if one := f.investigate(t, "growth-by-release", map[string]string{"release": "build-a"}); len(one) != 1 || one[0]["release"] != "build-a" {
			t.Errorf("of one release: %v", one)
		}
	})
	t.Run("peers", func(t *testing.T) {
		rows := f.investigate(t, "peers", map[string]string{"worker": "h200-a"})
		if len(rows) != 4 { // of model chat, and none of model code
			t.Fatalf("%d peers, want 4: %v", len(rows), rows)
		}
		is(t, rows[0], map[string]any{"slot": "lab/h200-a/chat/0/0", "asked": true, "trend": "live rises"})
		for host, trend := range map[string]string{"h200-b": "level", "h200-c": "level", "h200-d": "outside rises"} {
			row := only(t, rows, map[string]any{"slot": "lab/" + host + "/chat/0/0"})
			is(t, row, map[string]any{"asked": false, "trend": trend})
			near(t, row, "aborts_per_hour", 50, 0.1) // they carry the same load
		}
	})
	t.Run("quiet-points", func(t *testing.T) {
		rows := f.investigate(t, "quiet-points", map[string]string{"slot": "lab/h200-a/chat/0/0"})
		if len(rows) != 17 || rows[0]["warming"] != true || rows[1]["warming"] != false {
			t.Fatalf("%d points, want the judge's 16 and one before the warm-up ended: %v", len(rows), rows)
		}
		is(t, rows[16], map[string]any{"kv_usage": 0, "aborted_total": 347, "live_step_bytes": rows[16]["live_bytes"].(float64) - rows[15]["live_bytes"].(float64)})
		near(t, rows[16], "live_bytes", evidence(t, leak, "live.level_bytes"), 0.001)
	})
	t.Run("per-abort", func(t *testing.T) {
		rows := f.investigate(t, "per-abort", nil)
		row := only(t, rows, map[string]any{"slot": "lab/h200-a/chat/0/0"})
		near(t, row, "live_bytes_per_abort", leak.PerAbort.Value, 0.03)
		is(t, row, map[string]any{"aborts": 321, "requests": 916, "follows": "cannot be told apart"}) // requests and aborts came in step
		is(t, only(t, rows, map[string]any{"slot": "lab/h200-b/chat/0/0"}), map[string]any{"trend": "level", "follows": "", "live_bytes_per_abort": 0})
	})
	t.Run("oom", func(t *testing.T) {
		rows := f.investigate(t, "oom", nil)
		told := only(t, rows, map[string]any{"slot": "lab/h200-x/first/0/0"})
		is(t, told, map[string]any{"kind": "cuda", "requested_bytes": 2 * gib, "failed": true, "before_bytes": 30 * gib, "at_bytes": 30 * gib, "running": 3})
		gone := only(t, rows, map[string]any{"slot": "lab/h200-x/second/0/0"})
		is(t, gone, map[string]any{"failed": false, "before_bytes": 20 * gib, "at_bytes": nil, "after_bytes": nil})
		silent := only(t, rows, map[string]any{"slot": "lab/h200-a/chat/0/0"})
		is(t, silent, map[string]any{"kind": "counter", "requested_bytes": nil, "change_bytes": 512 * mib})
		if times := f.investigate(t, "oom", map[string]string{"host": "h200-g"}); len(times) != 4 { // planted in the recording
			t.Errorf("%d OOMs of the worker with large requests, want 4", len(times))
		}
	})
	t.Run("oom-minutes", func(t *testing.T) {
		rows := f.investigate(t, "oom-minutes", map[string]string{"worker": "h200-x"})
		if len(rows) != 21 {
			t.Fatalf("%d minutes, want 10 before, the one, 10 after", len(rows))
		}
		is(t, rows[0], map[string]any{"minutes": -10, "used_bytes": 30 * gib, "live_bytes": 20 * gib, "cached_bytes": 4 * gib, "outside_bytes": 5 * gib})
		is(t, rows[20], map[string]any{"minutes": 10})
	})
	t.Run("first-xid", func(t *testing.T) {
		rows := f.investigate(t, "first-xid", nil)
		row := only(t, rows, map[string]any{"host": "h200-x"})
		is(t, row, map[string]any{"code": 31, "xids": 3, "followed_by": "[43]", "gpu_uuid": "GPU-x", "text": "MMU fault: ENGINE GRAPHICS",
			"ended": "[lab/h200-x/second/0/0 (signal 9 by kernel)]", "first_time": "2026-11-01 10:09:00.000000000"})
	})
	t.Run("orphans", func(t *testing.T) {
		rows := f.investigate(t, "orphans", nil) // the recordings' cards are shared with processes that were not recorded: not assessable
		is(t, only(t, rows, map[string]any{}), map[string]any{"host": "h200-x", "orphan_bytes": 20 * gib, "processes_bytes": 30 * gib,
			"since_time": "2026-11-01 10:10:00", "last_slot": "lab/h200-x/second/0/0", "last_slot_time": "2026-11-01 10:09:00"})
	})
	t.Run("card-budget", func(t *testing.T) {
		rows := f.investigate(t, "card-budget", nil)
		sums, totals := map[any]float64{}, map[any]float64{}
		for _, row := range rows {
			sums[row["host"]] += row["part_bytes"].(float64)
			totals[row["host"]] = row["total_bytes"].(float64)
		}
		for host, sum := range sums {
			if sum != totals[host] {
				t.Errorf("%v: the parts are %v bytes of %v", host, sum, totals[host])
			}
		}
		var x []map[string]any
		for _, row := range rows {
			if row["host"] == "h200-x" {
				x = append(x, row)
			}
		}
		for part, want := range map[string]float64{"driver": 1, "live": 20, "awaiting": 1, "cached": 4, "outside": 5, "no living process": 20, "free": 49} {
			is(t, only(t, x, map[string]any{"part": part}), map[string]any{"part_bytes": want * gib, "share_ratio": want / 100})
		}
		if len(x) != 7 {
			t.Errorf("%d parts, want 7", len(x))
		}
	})
	t.Run("kv-ttft", func(t *testing.T) {
		rows := f.investigate(t, "kv-ttft", map[string]string{"worker": "h200-e"})
		full := only(t, rows, map[string]any{"kv_from_ratio": 0.9})
		if full["minutes"].(float64) < 200 || full["waiting"].(float64) < 100 || full["ttft_p95_median_seconds"].(float64) < 10 {
			t.Errorf("with a full cache: %v, want hours of queue and latency", full)
		}
		total := 0.0
		for _, row := range rows {
			total += row["minutes"].(float64)
		}
		if total < 415 || total > 421 { // a sample a minute for seven hours
			t.Errorf("%v minutes in all", total)
		}
		for _, row := range f.investigate(t, "kv-ttft", map[string]string{"worker": "h200-a"}) {
			if row["ttft_p95_median_seconds"].(float64) > 0.01 {
				t.Errorf("a worker without pressure waits: %v", row)
			}
		}
	})
	t.Run("stacks", func(t *testing.T) {
		rows := f.investigate(t, "stacks", map[string]string{"worker": "h200-x"})
		if len(rows) != 4 {
			t.Fatalf("%d rows, want 2 stacks in 2 snapshots", len(rows))
		}
		is(t, rows[0], map[string]any{"stack_bytes": 4 * gib, "blocks": 40, "change_bytes": nil, "reason": "oom"})
		is(t, rows[2], map[string]any{"stack_bytes": 5 * gib, "change_bytes": gib, "frames": "[worker.py:153 serve model.py:20 forward]"})
		is(t, rows[3], map[string]any{"stack_bytes": 2 * gib, "change_bytes": 0})
	})
	t.Run("holders", func(t *testing.T) {
		rows := f.investigate(t, "holders", map[string]string{"incident": "feed"})
		if len(rows) != 2 {
			t.Fatalf("%d holders, want 2", len(rows))
		}
		is(t, rows[0], map[string]any{"stack_bytes": 5 * gib, "growth_bytes": gib, "blocks": 50, "class": "fragmentation", "snapshot_file": "x.pickle"})
		is(t, rows[1], map[string]any{"growth_bytes": nil, "frames": "[cache.py:7 put]"})
	})
	t.Run("incident", func(t *testing.T) {
		kill := f.incident(t, "external_kill")
		rows := f.investigate(t, "incident", map[string]string{"incident": kill.Incident[:8]})
		var order []string
		for _, row := range rows {
			order = append(order, fmt.Sprint(row["what"], " ", row["name"]))
		}
		want := []string{"xid 31", "xid 43", "xid 43", "finding external_kill confirmed page", "lifecycle exited", "oom cuda", "snapshot oom", "snapshot oom"}
		if !slices.Equal(order, want) {
			t.Errorf("order %q\nwant  %q", order, want)
		}
	})
	t.Run("before", func(t *testing.T) {
		rows := f.investigate(t, "before", map[string]string{"incident": leak.Incident})
		live := only(t, rows, map[string]any{"measure": "live"})
		near(t, live, "change", leak.Growth.Value, 0.15) // an hour apart, at 733 MiB an hour
		is(t, live, map[string]any{"unit": "bytes", "slot": "lab/h200-a/chat/0/0"})
		is(t, only(t, rows, map[string]any{"measure": "waiting"}), map[string]any{"hour_before": 0, "at_first": 0})
	})
	t.Run("incidents-by-week", func(t *testing.T) {
		rows := f.investigate(t, "incidents-by-week", nil)
		is(t, only(t, rows, map[string]any{"class": "retention"}), map[string]any{"week": "2026-10-26", "incidents": 1, "paged": 1, "confirmed": 1, "releases": "[build-b]"})
		total := 0.0
		for _, row := range rows {
			total += row["incidents"].(float64)
		}
		incidents := map[string]bool{}
		for _, one := range f.findings {
			incidents[one.Incident] = true
		}
		if int(total) != len(incidents) {
			t.Errorf("%v incidents, %d were announced", total, len(incidents))
		}
	})
	t.Run("noisy-rules", func(t *testing.T) {
		said := map[string]int{}
		for _, one := range f.findings {
			said[one.Rule]++
		}
		rows := f.investigate(t, "noisy-rules", nil)
		if len(rows) != len(said) {
			t.Errorf("%d rules, %d spoke", len(rows), len(said))
		}
		for rule, n := range said {
			is(t, only(t, rows, map[string]any{"rule": rule}), map[string]any{"transitions": n})
		}
		is(t, only(t, rows, map[string]any{"rule": "oversize_request"}), map[string]any{"never_confirmed": 1, "paged": 1})
	})
	t.Run("ends", func(t *testing.T) {
		is(t, only(t, f.investigate(t, "ends", nil), map[string]any{}), map[string]any{"slot": "lab/h200-x/second/0/0", "pid": 200, "by": "kernel", "signal": 9,
			"said_bye": nil, "xids_before": 3, "ooms_before": 0})
	})
	t.Run("sources", func(t *testing.T) {
		rows := f.investigate(t, "sources", map[string]string{"host": "h200-x"})
		is(t, only(t, rows, map[string]any{"source": "allocator"}), map[string]any{"status": "lost", "changes": 1, "error": "connection refused", "since_time": "2026-11-01 10:12:00.000000000"})
		is(t, only(t, rows, map[string]any{"source": "nvml"}), map[string]any{"status": "ok", "changes": 0})
		is(t, only(t, rows, map[string]any{"source": "any reading"}), map[string]any{"status": "silent", "since_time": "2026-11-01 10:30:00.000000000"})
	})
	for _, i := range investigations { // none was forgotten above
		if i.columns != "" {
			f.rows(t, i.query(i.columns), f.boundExample(t, i))
		}
	}
}

func evidence(t *testing.T, f *event.Finding, name string) float64 {
	t.Helper()
	for _, m := range f.Evidence {
		if m.Name == name {
			return m.Value
		}
	}
	t.Fatalf("no evidence %s in %v", name, f.Evidence)
	return 0
}

func (f fleet) boundExample(t *testing.T, i investigation) map[string]string {
	t.Helper()
	c := InvestigateCommand{Now: time.Now, Limit: 10, Since: "2026-11-01", Until: "2026-11-02"}
	if slices.Contains(i.needs, "worker") {
		c.Worker = "h200"
	}
	if slices.Contains(i.needs, "incident") {
		c.Incident, c.Since, c.Until = "f", "", ""
	}
	bound, err := c.bind(i)
	if err != nil {
		t.Fatal(err)
	}
	return bound
}
