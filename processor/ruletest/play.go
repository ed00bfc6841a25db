package ruletest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lowtide/event"
	"lowtide/processor"
	"lowtide/processor/worker"
	"lowtide/rules"
)

// course is what came of a scenario.
type course struct {
	start, end time.Time
	findings   []*event.Finding // in the order of their times
	reports    []worker.Report
	events     int
}

// since writes a time as it is counted in a scenario.
func (c *course) since(at time.Time) string { return short(at.Sub(c.start).Round(time.Second)) }

// play gives a scenario to a judge. Nothing reads a clock: the time is that of the scenario.
func (s *scenario) play(ctx context.Context, pack *rules.Pack) (*course, error) {
	c := &course{start: s.start}
	judge := processor.NewJudge(pack, func(f *event.Finding) { c.findings = append(c.findings, f) })
	var err error
	if s.recording != "" {
		err = s.playRecording(ctx, judge, c)
	} else {
		err = s.playSeries(ctx, judge, c)
	}
	if err != nil {
		return nil, err
	}
	judge.Flush()
	c.reports = judge.Reports()
	slices.SortStableFunc(c.findings, func(a, b *event.Finding) int { return a.Time.Compare(b.Time) })
	return c, nil
}

func (s *scenario) playRecording(ctx context.Context, judge *processor.Judge, c *course) error {
	file, err := os.Open(s.recording)
	if err != nil {
		return fmt.Errorf("open recording: %w", err)
	}
	defer file.Close()
	reader, err := event.NewReader(file, s.recording)
	if err != nil {
		return err
	}
	for ; ; c.events++ {
		if c.events%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if c.events == 0 && !s.given {
			c.start = e.At()
		}
		if c.end.Before(e.At()) {
			c.end = e.At()
		}
		judge.Apply(e)
	}
	if c.events == 0 {
		return fmt.Errorf("%s: holds no event", s.recording)
	}
	return nil
}

// stage is where the players of one scenario are.
type stage struct {
	*scenario
	judge *processor.Judge
	count *int
	lives []life
}

// life is the process that a player is at the moment.
type life struct {
	*player
	worker *event.Worker
	gone   bool
	busy   int // ticks in which something ran
}

// due is one moment of one player.
type due struct {
	at   time.Duration
	of   int
	body *event.Event
}

func (s *scenario) playSeries(ctx context.Context, judge *processor.Judge, c *course) error {
	c.end = s.start.Add(s.length)
	g := &stage{scenario: s, judge: judge, count: &c.events}
	var coming []due
	for i, p := range s.players {
		g.lives = append(g.lives, life{player: p, worker: p.worker})
		for _, m := range p.moments {
			for n := range m.count {
				coming = append(coming, due{m.at + time.Duration(n)*m.every, i, m.body})
			}
		}
	}
	slices.SortStableFunc(coming, func(a, b due) int { return cmp.Compare(a.at, b.at) })
	for tick := 0; ; tick++ {
		at := time.Duration(tick) * s.interval
		if at >= s.length {
			break
		}
		if tick%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		for len(coming) > 0 && coming[0].at <= at {
			if err := g.happen(coming[0]); err != nil {
				return err
			}
			coming = coming[1:]
		}
		for i := range g.lives {
			if err := g.sample(&g.lives[i], tick, at); err != nil {
				return err
			}
		}
		judge.Tick(s.start.Add(at))
	}
	for _, d := range coming {
		if d.at > s.length {
			break
		}
		if err := g.happen(d); err != nil {
			return err
		}
	}
	return nil
}

// give applies one event.
func (g *stage) give(e *event.Event, at time.Duration) error {
	e.Time = timestamppb.New(g.start.Add(at))
	if err := event.Validate(e); err != nil {
		return fmt.Errorf("at %s: %w", short(at), err)
	}
	*g.count++
	g.judge.Apply(e)
	return nil
}

// happen applies what comes at a moment. What ends a process silences its sensors, until the next one begins in its place.
func (g *stage) happen(d due) error {
	l := &g.lives[d.of]
	e := proto.CloneOf(d.body)
	e.Host = l.host
	switch {
	case e.Source != nil:
	case e.Xid != nil && e.Xid.Pid == nil: // the driver's library tells only of the device
	default:
		e.Worker = l.worker
	}
	card := ""
	if len(l.worker.GpuUuids) > 0 {
		card = l.worker.GpuUuids[0]
	}
	switch {
	case e.Xid != nil && e.Xid.GpuUuid == "":
		e.Xid.GpuUuid = card
	case e.Snapshot != nil && e.Snapshot.GpuUuid == "":
		e.Snapshot.GpuUuid = card
	case e.Lifecycle.GetState() == "started" && l.gone:
		next := proto.CloneOf(l.worker)
		next.Pid += maxWorkers
		next.StartTicks = event.Ptr(next.GetStartTicks() + uint64(d.at/(10*time.Millisecond)) + 1)
		next.StartTime = timestamppb.New(g.start.Add(d.at))
		l.worker, l.gone, e.Worker = next, false, next
	}
	if err := g.give(e, d.at); err != nil {
		return err
	}
	killed := e.Oom != nil && (e.Oom.Kind == "kernel" || e.Oom.Kind == "cgroup") && e.Oom.VictimPid == nil
	l.gone = l.gone || killed || e.Lifecycle.GetState() == "exited"
	return nil
}

// sample applies what the sensors of a player read in one tick.
func (g *stage) sample(l *life, tick int, at time.Duration) error {
	quiet := l.quiet.holds(at)
	bodies := map[string]*event.Event{}
	for _, t := range l.tracks {
		if l.gone && t.body != "gpu" && t.body != "machine" {
			continue
		}
		value, ok := t.value(tick, l.busy, quiet)
		if !ok {
			continue
		}
		e := bodies[t.body]
		if e == nil {
			e = g.fresh(l, t.body)
			bodies[t.body] = e
		}
		m := e.ProtoReflect().Mutable(e.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(t.body))).Message()
		switch t.field.Kind() {
		case protoreflect.StringKind:
			m.Set(t.field, protoreflect.ValueOfString(t.text))
		case protoreflect.BoolKind:
			m.Set(t.field, protoreflect.ValueOfBool(t.text == "true"))
		default:
			set(m, t.field, value)
		}
	}
	if !quiet {
		l.busy++
	}
	for _, name := range sampled {
		if e := bodies[name]; e != nil {
			if err := g.give(e, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// value is that of a tick; nothing runs and nothing waits while it is quiet.
func (t *track) value(tick, busy int, quiet bool) (float64, bool) {
	if t.series == nil {
		return 0, true
	}
	if t.resting {
		tick = busy
	}
	v, ok := t.series.at(tick, t.seed)
	if name := t.field.Name(); quiet && ok && t.body == "engine" && (name == "running" || name == "waiting") {
		return 0, true
	}
	return v, ok
}

// fresh is an event without its body's values.
func (g *stage) fresh(l *life, body string) *event.Event {
	e := &event.Event{Host: l.host, Worker: l.worker}
	card := ""
	if len(l.worker.GpuUuids) > 0 {
		card = l.worker.GpuUuids[0]
	}
	switch body {
	case "gpu":
		e.Worker, e.Gpu = nil, &event.Gpu{Uuid: card}
	case "gpu_process":
		e.GpuProcess = &event.GpuProcess{GpuUuid: card}
	case "allocator":
		e.Allocator = &event.Allocator{GpuUuid: card}
	case "machine":
		e.Worker = nil
	}
	return e
}
