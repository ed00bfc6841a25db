package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"lowtide/event"
)

// rollup is a table that the store fills by itself from the samples. A block of samples that is inserted again must not count again in
// it, and one that the store took while it was killed must.
type rollup struct {
	table, time string
	span        time.Duration
	key         string   // SQL of what a row is about, beside its time
	columns     []string // SQL, each the value of a row
	of          func(*event.Event) (key string, value uint64, ok bool)
	values      func(a *amount) []uint64
}

// amount is what the samples of one row come to.
type amount struct{ count, sum, least, most uint64 }

func (a *amount) add(v uint64) {
	if a.count == 0 || v < a.least {
		a.least = v
	}
	a.count, a.sum, a.most = a.count+1, a.sum+v, max(a.most, v)
}

func rollups() []rollup {
	used := func(e *event.Event) (string, uint64, bool) {
		if e.Gpu == nil || e.Gpu.UsedBytes == nil {
			return "", 0, false
		}
		return event.HostKey(e.Host) + " " + e.Gpu.Uuid, *e.Gpu.UsedBytes, true
	}
	live := func(e *event.Event) (string, uint64, bool) {
		if e.Allocator == nil || e.Allocator.AllocatedBytes == nil {
			return "", 0, false
		}
		return event.HostKey(e.Host) + " " + event.WorkerKey(e.Host, e.Worker), *e.Allocator.AllocatedBytes, true
	}
	running := func(e *event.Event) (string, uint64, bool) {
		if e.Engine == nil || e.Engine.Running == nil {
			return "", 0, false
		}
		return event.HostKey(e.Host) + " " + event.InstanceKey(e.Host, e.Worker), *e.Engine.Running, true
	}
	sums := func(a *amount) []uint64 { return []uint64{a.count, a.sum} }
	bounds := func(a *amount) []uint64 { return []uint64{a.least, a.most} }
	return []rollup{
		{"gpu_minute_rollup", "minute", time.Minute, "uuid", []string{"sum(used_count)", "sum(used_sum)"}, used, sums},
		{"gpu_hour_rollup", "hour", time.Hour, "uuid", []string{"sum(used_count)", "sum(used_sum)"}, used, sums},
		{"worker_minute_rollup", "minute", time.Minute, "worker_key", []string{"min(live_least_bytes)", "max(live_most_bytes)"}, live, bounds},
		{"worker_hour_rollup", "hour", time.Hour, "worker_key", []string{"min(live_least_bytes)", "max(live_most_bytes)"}, live, bounds},
		{"instance_minute_rollup", "minute", time.Minute, "instance", []string{"sum(running_count)", "sum(running_sum)"}, running, sums},
	}
}

// expectedRollups visits what the samples of the ledger come to.
func (l *ledger) expectedRollups(visit func(reading)) {
	for _, r := range rollups() {
		rows := map[string]*amount{}
		for _, one := range l.events {
			if one.repeat {
				continue
			}
			for _, e := range one.batch.Events {
				about, value, ok := r.of(e)
				if !ok {
					continue
				}
				key := e.At().Truncate(r.span).Format(time.DateTime) + " " + about
				if rows[key] == nil {
					rows[key] = new(amount)
				}
				rows[key].add(value)
			}
		}
		for key, a := range rows {
			for i, value := range r.values(a) {
				visit(reading{r.table, key, r.columns[i], strconv.FormatUint(value, 10)})
			}
		}
	}
}

// storedRollups visits what the store's own sums say. Rows without any value of their column are not told of: there was no such sample.
func (w *world) storedRollups(ctx context.Context, visit func(reading)) error {
	for _, r := range rollups() {
		text, err := w.query(ctx, fmt.Sprintf("SELECT concat(toString(%s), ' ', cluster, '/', host, ' ', toString(%s)) AS about, %s, %s FROM lowtide.%s GROUP BY about FORMAT TabSeparated",
			r.time, r.key, r.columns[0], r.columns[1], r.table))
		if err != nil {
			return err
		}
		err = lines(text, 3, func(cells []string) {
			if cells[1] == `\N` || cells[1] == "0" && r.columns[0][:3] == "sum" {
				return
			}
			for i, cell := range cells[1:] {
				visit(reading{r.table, unescape(cells[0]), r.columns[i], cell})
			}
		})
		if err != nil {
			return fmt.Errorf("read %s: %w", r.table, err)
		}
	}
	return nil
}
