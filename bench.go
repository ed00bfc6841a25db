package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/collector/fleet"
	"lowtide/event"
	"lowtide/processor/bench"
	"lowtide/processor/broker"
	"lowtide/sink/engine"
)

const (
	benchPast   = 48 * time.Hour // where the fleet's time begins: it runs faster than the clock and must not pass it
	benchStep   = 50 * time.Millisecond
	benchLook   = 5 // steps between two readings of the backlog
	windowTime  = 3 // seconds of what is read that may wait unread: more than a block waits to be filled and is stored
	windowLeast = 60_000
	drainLimit  = 3 * time.Minute
	cardLimit   = time.Minute // until the card of the last planted failure
	stageTime   = 3 * time.Second
)

// BenchCommand is `bench`: the whole pipeline under a simulated fleet, in this process and its children.
type BenchCommand struct {
	Hosts    int           `default:"250" placeholder:"N" help:"Simulated hosts."`
	Workers  int           `default:"8" placeholder:"N" help:"Workers of a host."`
	Rate     float64       `placeholder:"N" help:"Worker-samples a second; left out, as many as are judged and stored."`
	Duration time.Duration `default:"60s" help:"How long is measured."`
	Warmup   time.Duration `default:"20s" help:"How long before nothing counts."`
	NoStore  bool          `help:"Leave ClickHouse down: what is to be stored waits in the stream."`
	OOMEvery time.Duration `name:"oom-every" default:"3s" help:"How often an allocation fails in a worker that grows, to time its card at Slack; 0 for never. Slack takes one message a second."`
	NoStages bool          `help:"Leave out each stage alone and the ceilings."`
	JSON     bool          `name:"json" help:"As a JSON object."`
	Data     string        `type:"path" placeholder:"DIR" help:"An empty folder for broker and store, which stays; one that is removed when left out."`
	Library  string        `placeholder:"FILE" help:"libchdb.so; default: where make engine puts it."`
	Seed     uint64        `default:"1" help:"Seed of the fleet."`
	Profile  string        `name:"cpu-profile" type:"path" placeholder:"FILE" help:"Write a processor profile of the measured time, without the fleet and the engine."`

	Stdout    io.Writer                                   `kong:"-"`
	inProcess func(address string, victims int) generator // nil: a process of its own
	stageTime time.Duration                               // of each stage alone, at least; 3 s when zero
	log       *slog.Logger
}

// Run measures and prints. A check that fails is an error after the result.
func (c *BenchCommand) Run(ctx context.Context) error {
	if err := c.validate(); err != nil {
		return err
	}
	out := c.Stdout
	if out == nil {
		out = os.Stdout
	}
	c.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if c.stageTime == 0 {
		c.stageTime = stageTime
	}
	if c.Data == "" {
		folder, err := os.MkdirTemp("", "lowtide-bench-")
		if err != nil {
			return fmt.Errorf("make a folder: %w", err)
		}
		defer os.RemoveAll(folder)
		c.Data = folder
	} else if left, err := os.ReadDir(c.Data); err == nil && len(left) > 0 {
		return &broker.Failure{What: "bench: " + c.Data + " is not empty", Remedy: "name an empty folder: what is in the stream already would be counted", Code: 2}
	}
	result, err := c.measure(ctx)
	if result == nil {
		return err
	}
	if c.JSON {
		err = errors.Join(err, json.MarshalWrite(out, result, jsontext.WithIndent("  ")))
		fmt.Fprintln(out)
	} else {
		err = errors.Join(err, result.Write(out))
	}
	if err == nil && !result.OK() {
		err = errors.New("bench: a check failed")
	}
	return err
}

func (c *BenchCommand) validate() error {
	wrong := func(what, remedy string) error {
		return &broker.Failure{What: "bench: " + what, Remedy: remedy, Code: 2}
	}
	switch {
	case c.Hosts < 1 || c.Hosts > fleet.MaxHosts:
		return wrong(fmt.Sprintf("--hosts %d", c.Hosts), fmt.Sprintf("1 to %d", fleet.MaxHosts))
	case c.Workers < 1 || c.Workers > fleet.MaxWorkers:
		return wrong(fmt.Sprintf("--workers %d", c.Workers), fmt.Sprintf("1 to %d", fleet.MaxWorkers))
	case c.Rate < 0 || c.Rate > 10*bench.GoalPerSecond:
		return wrong(fmt.Sprintf("--rate %g", c.Rate), "worker-samples a second, such as 15000; left out, as many as possible")
	case c.Duration < time.Second || c.Duration > time.Hour:
		return wrong(fmt.Sprintf("--duration %v", c.Duration), "1s to 1h")
	case c.Warmup < 0 || c.Warmup > time.Hour:
		return wrong(fmt.Sprintf("--warmup %v", c.Warmup), "0s to 1h")
	case c.OOMEvery < 0 || c.OOMEvery > 0 && c.OOMEvery < 1100*time.Millisecond:
		return wrong(fmt.Sprintf("--oom-every %v", c.OOMEvery), "at least 1.1s, since Slack takes one message a second; or 0")
	}
	return nil
}

func (c *BenchCommand) measure(ctx context.Context) (result *bench.Result, err error) {
	p, err := c.startPipeline(ctx, c.log)
	defer func() {
		err = errors.Join(err, p.readers.stop(), p.base.stop())
	}()
	if err != nil {
		return nil, err
	}
	r := &benchRun{BenchCommand: c, pipeline: p, result: &bench.Result{Hosts: c.Hosts, Workers: c.Hosts * c.Workers, AskedPerSecond: c.Rate, Stored: !c.NoStore,
		Seconds: c.Duration.Seconds(), WarmSeconds: c.Warmup.Seconds(), CPUs: runtime.NumCPU()}}
	if err := r.run(ctx); err != nil {
		return nil, err
	}
	if !c.NoStages {
		err = r.stages(ctx) // what the run said stands, whatever becomes of them
	}
	return r.result, err
}

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
		if r.backlog.Judges == event.PartitionCount && (r.NoStore || r.backlog.Stores == broker.StoreLanes) {
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

// conclude fills in what the measured time says.
func (r *benchRun) conclude(a, b moment) {
	out, took := r.result, b.at.Sub(a.at).Seconds()
	out.Seconds = took
	out.PublishedPerSecond = float64(b.report.Samples-a.report.Samples) / took
	out.MessagesPerSecond = float64(b.report.Acked-a.report.Acked) / took
	samples := float64(b.report.Samples - a.report.Samples)
	each := samples / max(1, float64(b.report.Messages-a.report.Messages)) // of a message
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
	for {
		if err := r.look(context.WithoutCancel(ctx), false); err != nil { // has a limit of its own
			return err
		}
		waits := r.backlog.JudgePending
		if !r.NoStore {
			waits += r.backlog.StorePending + r.backlog.StoreUnacked
		}
		if waits == 0 && r.backlog.Messages >= sent.Acked {
			return nil
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
