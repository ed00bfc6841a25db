package allocator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"lowtide/collector/snapshot"
	"lowtide/collector/status"
	"lowtide/event"
)

// evidenceName is under which failed snapshots are told. No `source` event of this name ever says ok, so that nobody takes it for a
// sensor that was well and is blind now.
const evidenceName = "evidence"

// job is a raw snapshot to be read, with what the probe said of it; nil where the process ended before it could.
type job struct {
	*sent
	line *line
}

// heard takes a probe's answer. Only its connection's goroutine calls it.
func (p *peer) heard(l *line, now time.Time) {
	d := p.source.desk
	if d == nil {
		p.source.count(p.pid, bad, 1, "an answer to nobody")
		return
	}
	d.mu.Lock()
	a := d.asks[l.ID]
	known := a != nil && a.life == life{p.pid, p.ticks}
	if known && !a.hostile {
		if l.Kind == "recording" {
			d.Log.Info("allocation history", "pid", p.pid, "ask", l.ID, "history", l.History)
		} else {
			delete(d.asks, l.ID)
			d.enqueue(job{a, l})
		}
	}
	d.mu.Unlock()
	if !known { // it was given up, or comes from a probe of an earlier collector
		d.Log.Debug("an answer to nobody", "pid", p.pid, "ask", l.ID)
	}
}

// left notes that a connection is gone. What its process has written is looked at by tend.
func (d *desk) left(p *peer) {
	d.mu.Lock()
	for _, a := range d.asks {
		if (a.life == life{p.pid, p.ticks}) {
			a.away = true
		}
	}
	d.mu.Unlock()
	kick(d.wake)
}

// enqueue leaves a job to be read. The lock is held.
func (d *desk) enqueue(j job) {
	if len(d.jobs) >= maxJobs {
		d.drop(j.raw)
		d.failed(j.sent, "dropped", fmt.Errorf("%d raw snapshots wait to be read", len(d.jobs)), 0, time.Now())
		return
	}
	d.jobs = append(d.jobs, j)
	kick(d.work)
}

func (d *desk) next() (job, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.jobs) == 0 || d.ctx.Err() != nil {
		return job{}, false
	}
	j := d.jobs[0]
	d.jobs = append(d.jobs[:0], d.jobs[1:]...)
	return j, true
}

// read has one raw snapshot summarised, keeps it, and leaves its events for the next tick.
func (d *desk) read(ctx context.Context, j job) {
	started := time.Now()
	devices, result, err := d.take(ctx, j)
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		switch {
		case ctx.Err() != nil:
		case j.line != nil && j.line.Passing && !j.armed && !j.again:
			d.count(false, "again")
			d.Log.Info("allocator snapshot is asked for once more", "pid", j.life.pid, "ask", j.id, "after", againAfter, "error", err)
			j.again = true
			d.later = append(d.later, later{j.sent, now.Add(againAfter)})
		default:
			d.failed(j.sent, result, err, now.Sub(started), now)
		}
		return
	}
	d.count(j.armed, "ok")
	if j.armed { // the next one
		d.arms[j.life] = arming{next: now.Add(armEvery)}
	}
	at := now
	if j.line != nil {
		at = j.line.at()
	}
	if at.Before(j.at) || at.After(now) {
		at = now
	}
	for _, e := range devices {
		d.source.enqueue(j.life.pid, at, &event.Event{Worker: j.worker, Snapshot: e})
	}
	d.Log.Info("allocator snapshot", "pid", j.life.pid, "ask", j.id, "reason", j.Reason, "devices", len(devices), "file", devices[0].File, "bytes", devices[0].GetFileBytes(),
		"worker_seconds", devices[0].GetTookSeconds(), "read_seconds", now.Sub(started).Seconds())
	kick(d.wake)
}

// take reads the file that the probe has written, or a copy where somebody could still change it, and lets go of it.
func (d *desk) take(ctx context.Context, j job) (devices []*event.Snapshot, result string, err error) {
	raw := j.raw
	defer func() {
		d.mu.Lock()
		d.drop(raw)
		d.mu.Unlock()
	}()
	if j.line != nil && j.line.Status != "ok" || raw.Sealed() {
		return d.summarise(ctx, j)
	}
	d.Log.Info("raw snapshot is still open in its process or a child of it", "pid", j.life.pid, "ask", j.id)
	if j.sent.raw, err = raw.Copy(d.Bytes + overRoom); err != nil {
		j.sent.raw = raw
		return nil, "failed", err
	}
	defer j.sent.raw.Close()
	return d.summarise(ctx, j)
}

// summarise returns a snapshot's events, or the outcome and why there are none.
func (d *desk) summarise(ctx context.Context, j job) (devices []*event.Snapshot, result string, err error) {
	if j.line != nil && j.line.Status != "ok" {
		reason := j.line.Error
		if reason == "" {
			reason = "it says no more"
		}
		return nil, j.line.Status, fmt.Errorf("the probe answers %s: %s", j.line.Status, reason)
	}
	size, err := j.raw.Size()
	switch {
	case err != nil:
		return nil, "failed", err
	case size == 0:
		return nil, "failed", errors.New("the probe has written nothing")
	case size > d.Bytes+overRoom:
		return nil, "failed", fmt.Errorf("the probe has written %d bytes, more than %d", size, d.Bytes)
	case !j.raw.Ended():
		return nil, "failed", fmt.Errorf("%w: its end is missing after %d bytes", snapshot.ErrUnreadable, size)
	case j.line != nil && j.line.Bytes != nil && *j.line.Bytes != uint64(size):
		return nil, "failed", fmt.Errorf("the probe says that it wrote %d bytes; the file has %d", *j.line.Bytes, size)
	}
	raw, err := j.raw.Reader()
	if err != nil {
		return nil, "failed", err
	}
	defer raw.Close()
	d.mu.Lock()
	earlier := d.kept[j.life]
	d.mu.Unlock()
	var before *os.File
	if earlier.name != "" {
		if before, err = d.Store.Open(earlier.name); err == nil {
			defer before.Close()
		} // else it is gone by the rules of the folder: there is nothing to compare with
	}
	var gpus map[string]string
	if j.line != nil {
		gpus = j.line.Devices.uuids
	}
	devices, err = d.Reader.Summarise(ctx, raw, before, j.Reason, gpus)
	if err != nil {
		return nil, "unreadable", err
	}
	if len(devices) == 0 {
		return nil, "unreadable", fmt.Errorf("%w: it holds no device", snapshot.ErrUnreadable)
	}
	d.complete(j, devices, size, earlier, before != nil)
	return devices, "ok", nil
}

// complete adds what the raw file does not hold.
func (d *desk) complete(j job, devices []*event.Snapshot, size int64, earlier kept, compared bool) {
	now := time.Now()
	name, err := j.raw.Keep(d.Host, j.life.pid, now, j.Reason)
	var lacking []string
	if name != "" {
		d.mu.Lock()
		d.kept[j.life] = kept{name, now}
		d.mu.Unlock()
	} else {
		lacking = append(lacking, "file: the raw snapshot is not kept: "+event.Shorten(err.Error(), 200))
	}
	if err != nil {
		d.Log.Warn("raw snapshots are not kept as they should be", "error", err)
	}
	if j.line == nil {
		lacking = append(lacking, "devices: the process ended before its probe could name them")
	}
	if j.line != nil && j.line.Note != "" {
		lacking = append(lacking, "probe: "+j.line.Note)
	}
	for i, e := range devices {
		e.File, e.FileBytes = name, event.Ptr(uint64(size))
		if name == "" {
			e.FileBytes = nil
		}
		if e.GpuUuid == "" && len(devices) == 1 {
			e.GpuUuid = j.gpu
		}
		if l := j.line; l != nil {
			e.TookSeconds, e.HistorySeconds = l.TookSeconds, l.HistorySeconds
			if !j.armed && l.GILSeconds != nil { // after a failed allocation the program waits for all of it
				e.TookSeconds = l.GILSeconds
			}
			if c := l.Census; c != nil && i == 0 { // the process has it once
				e.Census = &event.SnapshotCensus{Tensors: c.Tensors, Bytes: c.Bytes, Complete: c.Complete, TookSeconds: c.TookSeconds}
			}
		}
		if compared && hasGrowth(e) {
			e.GrowthSeconds = event.Ptr(now.Sub(earlier.at).Seconds())
		}
		e.Lacking = append(e.Lacking, lacking...)
	}
}

func hasGrowth(e *event.Snapshot) bool {
	for _, s := range e.Stacks {
		if s.GrowthBytes != nil {
			return true
		}
	}
	return false
}

// failed counts and tells what became of an ask that brings no snapshot. The lock is held.
func (d *desk) failed(a *sent, result string, err error, took time.Duration, now time.Time) {
	d.count(a.armed, result)
	if a.armed && !d.arms[a.life].never {
		d.arms[a.life] = arming{next: now.Add(armAgain), never: result == "unsupported"}
	}
	if !a.armed && result == "refused" {
		delete(d.asked, a.life) // it has cost the process nothing; the probe has a pace of its own
	}
	said := status.Lost
	switch {
	case result == "unsupported":
		said = status.Unsupported
	case errors.Is(err, context.DeadlineExceeded):
		said = status.Timeout
	}
	what := "snapshot"
	if a.armed {
		what = "post-mortem"
	}
	text := fmt.Sprintf("%s %s of pid %d (%s): %v", what, a.id, a.life.pid, a.Reason, err)
	d.Log.Warn("no allocator snapshot", "pid", a.life.pid, "ask", a.id, "reason", a.Reason, "result", result, "error", err)
	d.source.enqueue(a.life.pid, now, &event.Event{Source: &event.SourceStatus{Name: evidenceName, Status: said, Error: event.Shorten(text, 2<<10), TookSeconds: event.Ptr(took.Seconds())}})
}
