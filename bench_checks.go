package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"lowtide/collector/fleet"
	"lowtide/event"
	"lowtide/processor/bench"
	"lowtide/sink/engine"
)

// conclude fills in what the measured time says.
func (r *benchRun) conclude(a, b moment) {
	out, took := r.result, b.at.Sub(a.at).Seconds()
	out.Seconds = took
	out.PublishedPerSecond = float64(b.report.Samples-a.report.Samples) / took
	out.MessagesPerSecond = float64(b.report.Acked-a.report.Acked) / took
	samples := float64(b.report.Samples - a.report.Samples)
	each := samples / max(1, float64(b.report.Messages-a.report.Messages)) // of a message
	out.SamplesPerMessage = each
	out.JudgedPerSecond = (b.judged - a.judged) * each / took
	out.PerSecond = out.JudgedPerSecond
	if !r.NoStore {
		out.StoredPerSecond = (b.stored - a.stored) * each / took
		out.PerSecond = min(out.JudgedPerSecond, out.StoredPerSecond)
	}
	out.EventPace = b.report.EventTime.Sub(a.report.EventTime).Seconds() / took
	out.Busy = bench.CPU{Own: (b.own.CPU - a.own.CPU).Seconds() / took, Engine: (b.engine.CPU - a.engine.CPU).Seconds() / took, Fleet: (b.fleet.CPU - a.fleet.CPU).Seconds() / took}
	ours := out.Busy.Own + out.Busy.Engine + out.Busy.Fleet
	out.Others = max(0, (b.machine-a.machine).Seconds()/took-ours)
	if ours > 0 {
		out.Carries = out.PerSecond / ours * float64(out.CPUs)
	}
	if millions := out.PerSecond / 1e6; millions > 0 {
		out.Kernel, out.Garbage = (b.own.Kernel-a.own.Kernel).Seconds()/took/millions, (b.own.Garbage-a.own.Garbage).Seconds()/took/millions
		out.CPU = bench.CPU{Own: out.Busy.Own / millions, Engine: out.Busy.Engine / millions, Fleet: out.Busy.Fleet / millions}
	}
	if samples > 0 {
		out.Bytes.Payload = float64(b.report.Bytes-a.report.Bytes) / samples
		out.Bytes.Wire = float64(b.report.WireBytes-a.report.WireBytes) / samples
	}
	out.Backlog = bench.GrowthOf(r.readings, b.at.Sub(a.at))
	out.Memory.OwnPeakRSS, out.Memory.OwnRSS, out.Memory.EnginePeakRSS, out.Memory.FleetPeakRSS = b.own.PeakRSS, b.own.RSS, b.engine.PeakRSS, b.fleet.PeakRSS
	thousands := float64(out.Workers) / 1000
	out.Memory.PeakRSSPer1000 = float64(b.own.PeakRSS) / thousands
}

// finish stops the fleet, lets everything be read, and checks that nothing is missing.
func (r *benchRun) finish(ctx context.Context) error {
	draining, cancel := within(ctx, drainLimit, "the end of the fleet")
	defer cancel()
	if err := r.cards(draining); err != nil {
		return err
	}
	if err := r.load.stop(draining); err != nil {
		return err
	}
	sent := r.load.report()
	if err := r.drain(draining, sent); err != nil {
		return err
	}
	checking, cancel := within(ctx, drainLimit, "the checks") // afresh: they say what is missing when draining took too long
	defer cancel()
	out := r.result
	out.Memory.Heap = liveHeap()
	out.Memory.HeapPer1000 = float64(out.Memory.Heap-min(out.Memory.Heap, out.Memory.IdleHeap)) * 1000 / float64(out.Workers)
	out.Slack = bench.LatencyOf(r.planted, r.slack.took(r.load.failures()))
	out.Incidents = r.slack.count()
	if err := r.readers.stop(); err != nil { // what was judged is acknowledged by now
		return err
	}
	if err := r.look(checking, false); err != nil {
		return err
	}
	check := func(name string, got, want uint64) {
		out.Checks = append(out.Checks, bench.Check{Name: name, Got: strconv.FormatUint(got, 10), Want: strconv.FormatUint(want, 10), OK: got == want})
	}
	check("messages in the stream, of those published", r.backlog.Messages, sent.Messages)
	behind, err := bench.Unjudged(checking, r.js)
	if err != nil {
		return err
	}
	check("partitions with events left unjudged", uint64(len(behind)), 0)
	if r.OOMEvery > 0 {
		check("planted failures told to Slack", uint64(out.Slack.Arrived), uint64(r.planted))
	}
	out.Bytes.Stream = float64(r.backlog.Bytes) / float64(sent.Samples)
	disk, err := diskBytes(r.folder)
	if err != nil {
		return err
	}
	out.Bytes.StreamDisk = disk / float64(sent.Samples)
	if r.NoStore {
		return nil
	}
	check("messages left unstored", r.backlog.StorePending+r.backlog.StoreUnacked, 0)
	return r.checkRows(checking, sent, check)
}

// cards waits for the cards of the failures that were planted.
func (r *benchRun) cards(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cardLimit)
	defer cancel()
	pace := time.NewTicker(benchStep)
	defer pace.Stop()
	for len(r.slack.took(r.load.failures())) < r.planted {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return nil // the check says so
		}
	}
	return nil
}

// drain waits until the judges were given everything and the store has it.
func (r *benchRun) drain(ctx context.Context, sent fleet.Report) error {
	pace := time.NewTicker(benchStep * benchLook)
	defer pace.Stop()
	for empty := 0; ; {
		if err := r.look(context.WithoutCancel(ctx), false); err != nil { // has a limit of its own
			return err
		}
		waits := r.backlog.JudgePending
		if !r.NoStore {
			waits += r.backlog.StorePending + r.backlog.StoreUnacked
		}
		if waits > 0 || r.backlog.Messages < sent.Acked {
			empty = 0
		} else if empty++; empty > benchRest {
			return nil // what the judges were given is judged by now
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			r.log.Warn("not everything was read", "unjudged", r.backlog.JudgePending, "unstored", r.backlog.StorePending+r.backlog.StoreUnacked)
			return nil // the checks say so
		}
	}
}

// checkRows compares the rows with what was published: each of a worker's four sensors has one reading a worker-sample, in whatever
// rows they stand.
func (r *benchRun) checkRows(ctx context.Context, sent fleet.Report, check func(string, uint64, uint64)) error {
	for _, sensor := range []string{"used_bytes", "allocated_bytes", "kv_usage", "rss_bytes"} {
		rows, err := r.number(ctx, "SELECT count() FROM lowtide.worker_samples WHERE "+sensor+" IS NOT NULL")
		if err != nil {
			return err
		}
		check("rows with "+sensor+", of worker-samples", uint64(rows), sent.Samples)
	}
	refused, err := r.number(ctx, "SELECT count() FROM lowtide.events WHERE event = 'refused'")
	if err != nil {
		return err
	}
	check("refused events", uint64(refused), 0)
	for _, one := range []struct {
		into  *float64
		where string
	}{{&r.result.Bytes.Samples, "AND table = 'worker_samples'"}, {&r.result.Bytes.AllTables, ""}} {
		bytes, err := r.number(ctx, "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = 'lowtide' "+one.where)
		if err != nil {
			return err
		}
		*one.into = bytes / float64(sent.Samples)
	}
	return nil
}

func (r *benchRun) number(ctx context.Context, query string) (float64, error) {
	text, err := r.ask(ctx, engine.RoleWriter, query, nil)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		return 0, fmt.Errorf("ask the engine: %s answers %.100q", query, text)
	}
	return n, nil
}

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// diskBytes is what a stream's messages take in files.
func diskBytes(folder string) (float64, error) {
	total := 0.0
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(path, string(filepath.Separator)+event.StreamEvents+string(filepath.Separator)) {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			total += float64(info.Size())
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", folder, err)
	}
	return total, nil
}
