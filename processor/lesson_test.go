package processor

import (
	"strings"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/rules/variable"
)

const lessonGiB = 1 << 30

// lesson plays the worker whose live memory rises by 2 GiB an hour because aborted streams are kept: each keeps 32 MiB. Its reserve is
// level at 60 GiB of 64 that the allocator may have, and the process uses 66 of the card's 80.
type lesson struct {
	*stage
	t       *testing.T
	origin  time.Time
	who     *event.Worker
	level   float64 // GiB live when nothing runs and no stream was aborted yet
	aborted uint64
	done    uint64
}

func newLesson(t *testing.T) *lesson {
	s := newStage(t)
	return &lesson{stage: s, t: t, origin: s.at, level: 42, who: &event.Worker{Pid: 10, StartTicks: event.Ptr(uint64(100)), Role: "worker", Unit: "port-8000",
		Engine: "vllm", Model: "m", Release: "2026.10.3", GpuUuids: []string{"GPU-a"}}}
}

// read gives one reading of every sensor.
func (l *lesson) read(running uint64) {
	const gib = lessonGiB
	held := uint64(l.level*gib) + l.aborted*(32<<20) + running*gib/4
	l.apply(l.who, &event.Event{Allocator: &event.Allocator{AllocatedBytes: &held, ActiveBytes: &held, ReservedBytes: event.Ptr(uint64(60 * gib)),
		ReservedPeakBytes: event.Ptr(uint64(60 * gib)), LimitBytes: event.Ptr(uint64(64 * gib))}})
	l.apply(l.who, &event.Event{GpuProcess: &event.GpuProcess{GpuUuid: "GPU-a", UsedBytes: event.Ptr(uint64(66 * gib))}})
	l.apply(nil, &event.Event{Gpu: &event.Gpu{Uuid: "GPU-a", TotalBytes: event.Ptr(uint64(80 * gib)), UsedBytes: event.Ptr(uint64(66 * gib)), FreeBytes: event.Ptr(uint64(14 * gib))}})
	l.apply(l.who, &event.Event{Engine: &event.Engine{Running: &running, Waiting: event.Ptr(uint64(0)), KvUsage: event.Ptr(0.1 * float64(running)),
		FinishedTotal: &l.done, AbortedTotal: &l.aborted, GenerationTokensTotal: event.Ptr(100 * l.done)}})
}

// until works for some time, a request finished each minute and the streams that are aborted spread over it, then drains for three
// minutes: a quiet point at the given minute of the story.
func (l *lesson) until(minute int, aborts uint64) {
	end := l.origin.Add(time.Duration(minute) * time.Minute)
	from, minutes := l.aborted, uint64(end.Sub(l.at)/time.Minute)
	for n := range minutes {
		l.aborted, l.done = from+aborts*(n+1)/minutes, l.done+1
		l.read(3)
		l.at = l.at.Add(time.Minute)
	}
	for range 3 {
		l.read(0)
		l.at = l.at.Add(time.Minute)
	}
	l.read(3) // it works again, and what was read before is judged
}

func (l *lesson) say(e *event.Event) { l.apply(l.who, e) }

// next returns the transitions since it was asked last.
func (l *lesson) next() []*event.Finding {
	out := l.findings
	l.findings = nil
	return out
}

func (l *lesson) minute(f *event.Finding) float64 { return f.Time.Sub(l.origin).Minutes() }

// only wants one transition of the incident.
func (l *lesson) only(what string) *event.Finding {
	l.t.Helper()
	all := l.next()
	for _, f := range all {
		l.t.Log(told(f, l.origin))
	}
	if len(all) != 1 || all[0].Class != "retention" || all[0].Worker.GetPid() != l.who.Pid {
		l.t.Fatalf("%d transitions, want one of retention of pid %d: %s", len(all), l.who.Pid, what)
	}
	return all[0]
}

func (l *lesson) none(what string) {
	l.t.Helper()
	for _, f := range l.next() {
		l.t.Errorf("%s: %s", what, told(f, l.origin))
	}
}

// The incident of the lesson, from its first hour to the release in which it is fixed.
func TestTheLessonsIncident(t *testing.T) {
	l := newLesson(t)
	l.say(&event.Event{Lifecycle: &event.Lifecycle{State: "started"}})
	l.say(&event.Event{Lifecycle: &event.Lifecycle{State: "ready"}})

	// 42, 44, 46, 48 GiB at hourly quiet points: so far aborts and hours go together.
	l.until(60, 0)
	l.until(120, 64)
	l.until(180, 64)
	l.none("after three points")
	l.until(240, 64)
	f := l.only("at the fourth point")
	if m := l.minute(f); f.State != event.Suspected || f.Severity != event.Ticket || m < 240 || m > 245 {
		t.Errorf("%s %s in minute %v, want a suspicion, as a ticket, at the fourth point", f.State, f.Severity, m)
	}
	if h := f.HoursToLimit; h == nil || h.Low > 8.01 || h.High < 7.99 || h.Low < 6 || h.High > 10 {
		t.Errorf("hours to the limit: %v, want an interval about the 8 hours that (64 − 48) GiB take at 2 GiB/h", h)
	}
	if v, known := l.worker(l.who).Sample().Number(variable.Must("live.hours_to_limit")); !known || v < 7.99 || v > 8.01 {
		t.Errorf("%v hours to the limit (known %v), want 8", v, known)
	}
	if g := f.Growth; g == nil || g.Value < 1.99*lessonGiB || g.Value > 2.01*lessonGiB {
		t.Errorf("growth %v, want 2 GiB/h", g)
	}
	incident := f.Incident

	// From here on the streams are aborted in bursts, so that growth shows what it follows.
	l.until(260, 0)
	l.until(280, 0)
	l.until(300, 64)
	l.until(320, 0)
	l.until(340, 64)
	l.until(360, 0)
	l.until(380, 0)
	l.until(400, 64)
	f = l.only("confirmed before the OOM")
	if f.State != event.Confirmed || f.Severity != event.Ticket || f.Incident != incident {
		t.Errorf("%s %s of %s, want %s confirmed, and still a ticket", f.State, f.Severity, f.Incident, incident)
	}
	if p := f.PerAbort; p == nil || p.Value < 31<<20 || p.Value > 33<<20 {
		t.Errorf("per abort: %v, want 32 MiB", p)
	}

	// The OOM of the seventh hour.
	l.at = l.origin.Add(410 * time.Minute)
	l.say(&event.Event{Oom: &event.Oom{Kind: "cuda"}})
	f = l.only("with its OOM")
	if f.State != event.Confirmed || f.Severity != event.Page || f.Incident != incident {
		t.Errorf("%s %s of %s, want the page of %s", f.State, f.Severity, f.Incident, incident)
	}
	if len(f.Symptoms) == 0 || f.Symptoms[0].Name != "oom" {
		t.Errorf("symptoms %v, want the OOM", f.Symptoms)
	}

	// The process ends. That hides the trouble and cures nothing.
	l.at = l.origin.Add(415 * time.Minute)
	l.say(&event.Event{Lifecycle: &event.Lifecycle{State: "exited", ExitCode: event.Ptr(int64(1)), By: "self"}})
	f = l.only("masked by restart")
	if f.State != event.Confirmed || f.Severity != event.Page || f.Incident != incident || f.MaskedRestarts != 1 {
		t.Errorf("%s %s of %s, masked by %d restarts, want %s confirmed and masked by one", f.State, f.Severity, f.Incident, f.MaskedRestarts, incident)
	}

	// Its successor in the slot has the release in which the streams are let go of.
	l.at = l.origin.Add(420 * time.Minute)
	l.who = &event.Worker{Pid: 20, StartTicks: event.Ptr(uint64(200)), Role: "worker", Unit: "port-8000", Engine: "vllm", Model: "m", Release: "2026.10.4", GpuUuids: []string{"GPU-a"}}
	l.aborted, l.done = 0, 0
	l.say(&event.Event{Lifecycle: &event.Lifecycle{State: "started"}})
	l.say(&event.Event{Lifecycle: &event.Lifecycle{State: "ready"}})
	for _, minute := range []int{480, 540, 600} {
		l.until(minute, 64)
		l.level -= 2 // what the aborted ones kept is given back
		l.none("before the proof")
	}
	l.until(660, 64)
	f = l.only("resolved on proof")
	if m := l.minute(f); f.State != event.Resolved || f.Incident != incident || f.MaskedRestarts != 1 || m < 660 {
		t.Errorf("%s in minute %v, masked by %d restarts, want %s resolved at the fourth quiet point", f.State, m, f.MaskedRestarts, incident)
	}
	if !strings.Contains(f.Resolution, "2026.10.4") || !strings.Contains(f.Resolution, "4 quiet points") {
		t.Errorf("resolution %q, want the points and the release", f.Resolution)
	}
}

// A single tick of the same worker says what the memory is, and no more.
func TestTheLessonsNumbersInASingleTick(t *testing.T) {
	l := newLesson(t)
	l.read(0)
	l.judge.Flush()
	l.none("one tick")
	all := l.judge.Reports()
	if len(all) != 1 || len(all[0].Cards) != 1 {
		t.Fatalf("%d reports, want one with its card", len(all))
	}
	if c := all[0].Cards[0]; c.Total != 80*lessonGiB || c.Live != 42*lessonGiB || c.Reserved != 60*lessonGiB || c.Used != 66*lessonGiB ||
		c.Cached != 18*lessonGiB || c.Outside != 6*lessonGiB || c.Free != 14*lessonGiB {
		t.Errorf("card %+v, want 18 GiB cached, 6 outside and 14 free of 80", c)
	}
	if all[0].Verdict != "insufficient" {
		t.Errorf("verdict %s of one tick", all[0].Verdict)
	}
}
