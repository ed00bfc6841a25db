package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"time"

	"lowtide/collector/fleet"
	"lowtide/event"
	"lowtide/processor/bench"
)

// benchRun is one run in progress.
type benchRun struct {
	*BenchCommand
	*pipeline
	load     *load
	result   *bench.Result
	backlog  bench.Backlog
	readings []float64 // of messages that wait, while it is measured
	planted  int
	ready    time.Time
}

// moment is what was counted at a moment.
type moment struct {
	at                 time.Time
	report             fleet.Report
	backlog            bench.Backlog
	judged, stored     float64 // messages: what the judges were given, what the store acknowledged
	own, engine, fleet bench.Usage
	machine            time.Duration
}

// settled waits until every reader has its consumer: before that nothing seems to wait for it.
func (r *benchRun) settled(ctx context.Context) error {
	ctx, cancel := within(ctx, 2*time.Minute, "the start of the readers")
	defer cancel()
	pace := time.NewTicker(benchStep)
	defer pace.Stop()
	for {
		if err := r.look(ctx, false); err != nil {
			return err
		}
		if r.backlog.Judges == event.PartitionCount && (r.NoStore || r.backlog.Stores > 0) {
			return nil
		}
		select {
		case <-pace.C:
		case err := <-r.readers.ended:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *benchRun) run(ctx context.Context) error {
	if err := r.settled(ctx); err != nil {
		return err
	}
	r.result.Memory.IdleHeap = liveHeap()
	victims := 0
	if r.OOMEvery > 0 {
		victims = int(r.Duration/r.OOMEvery) + 1
	}
	var err error
	if r.load, err = r.startLoad(ctx, r.address, victims); err != nil {
		return err
	}
	starting, cancel := within(ctx, 2*time.Minute, "the start of the fleet")
	defer cancel()
	if err := r.load.ready(starting); err != nil {
		return err
	}
	r.ready = time.Now()
	if err := r.govern(ctx, r.ready.Add(r.Warmup), false); err != nil {
		return err
	}
	if r.Profile != "" {
		file, err := os.Create(r.Profile)
		if err != nil {
			return fmt.Errorf("write profile: %w", err)
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return fmt.Errorf("write profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	before, err := r.moment(ctx)
	if err != nil {
		return err
	}
	if err := r.govern(ctx, before.at.Add(r.Duration), true); err != nil {
		return err
	}
	after, err := r.moment(ctx)
	if err != nil {
		return err
	}
	pprof.StopCPUProfile()
	r.conclude(before, after)
	return r.finish(ctx)
}

// govern gives the fleet credit until a time, and plants failures where it is measured.
func (r *benchRun) govern(ctx context.Context, until time.Time, measured bool) error {
	pace := time.NewTicker(benchStep)
	defer pace.Stop()
	next := time.Now().Add(r.OOMEvery / 2)
	for step := 0; time.Now().Before(until); step++ {
		if step%benchLook == 0 {
			if err := r.look(ctx, measured); err != nil {
				return err
			}
		}
		if err := r.load.order(fleet.Order{Credit: r.credit()}); err != nil {
			return err
		}
		if measured && r.OOMEvery > 0 && !time.Now().Before(next) {
			next = next.Add(r.OOMEvery)
			r.planted++
			if err := r.load.order(fleet.Order{Fail: r.planted}); err != nil {
				return err
			}
		}
		select {
		case <-pace.C:
		case err := <-r.load.ended:
			return fmt.Errorf("the fleet ended: %w", err)
		case err := <-r.readers.ended:
			return err
		case err := <-r.base.ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *benchRun) look(ctx context.Context, measured bool) error {
	limited, cancel := within(ctx, 20*time.Second, "reading the backlog")
	defer cancel()
	b, err := bench.ReadBacklog(limited, r.js)
	if err != nil {
		return err
	}
	if stored := r.storer.Stored(); stored > 0 { // newer than what the durable consumer shows
		b.StorePending, b.StoreUnacked = b.Messages-min(b.Messages, stored), 0
	}
	r.backlog = b
	if measured {
		waits := float64(b.JudgePending)
		if !r.NoStore {
			waits = max(waits, float64(b.StorePending+b.StoreUnacked))
		}
		r.readings = append(r.readings, waits)
	}
	return nil
}

// credit is how many worker-samples may have been sent by now: as many as the rate has come to, or a window more than everybody has read.
func (r *benchRun) credit() uint64 {
	elapsed := time.Since(r.ready).Seconds()
	if r.Rate > 0 {
		return uint64(r.Rate * elapsed)
	}
	report := r.load.report()
	read := samplesBut(r.backlog.JudgePending, r.backlog, report)
	if !r.NoStore {
		read = min(read, samplesBut(r.backlog.StorePending+r.backlog.StoreUnacked, r.backlog, report))
	}
	return uint64(read + max(windowLeast, windowTime*read/max(elapsed, 1)))
}

// samplesBut is how many worker-samples the stream took but for those in so many messages that wait: each message is a part of some. What
// the judges were given counts as judged, what the store acknowledged as stored.
func samplesBut(waiting uint64, b bench.Backlog, report fleet.Report) float64 {
	if report.Messages == 0 {
		return 0
	}
	return float64(b.Messages-min(b.Messages, waiting)) * float64(report.Samples) / float64(report.Messages)
}

func (r *benchRun) moment(ctx context.Context) (moment, error) {
	if err := r.look(ctx, false); err != nil {
		return moment{}, err
	}
	m := moment{at: time.Now(), report: r.load.report(), backlog: r.backlog}
	m.judged = float64(m.backlog.Messages) - float64(m.backlog.JudgePending)
	m.stored = float64(m.backlog.Messages) - float64(m.backlog.StorePending+m.backlog.StoreUnacked)
	return m, r.usages(&m)
}

func (r *benchRun) usages(m *moment) (err error) {
	if m.own, err = bench.ReadUsage("/proc", os.Getpid()); err != nil {
		return err
	}
	m.own.Garbage = bench.OwnGarbage()
	if r.load.pid != os.Getpid() {
		if m.fleet, err = bench.ReadUsage("/proc", r.load.pid); err != nil {
			return err
		}
	}
	if r.engine != nil {
		if m.engine, err = bench.ReadUsage("/proc", r.engine.ChildPID()); err != nil {
			return err
		}
	}
	m.machine, err = bench.MachineCPU("/proc")
	return err
}
