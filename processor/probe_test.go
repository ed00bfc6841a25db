package processor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"lowtide/event"
	"lowtide/rules"
	"lowtide/rules/variable"
)

// probes are rules that only say what the judge set: the tests of the judge do not depend on the thresholds of the shipped ones.
const probes = `rules:
  - {id: external_kill, class: external_kill, scope: worker, when: "symptom.kill", severity: {alone: page}, pair: 1h, keep: 1h, evidence: [kill.signal, kill.victim_bytes, kill.culprit_bytes], summary: "killed {{kill.signal}}"}
  - {id: crash_loop, class: crash_loop, scope: worker, when: "restarts.hour >= 3", severity: {alone: ticket}, evidence: [restarts.hour], summary: "{{restarts.hour}} restarts"}
  - {id: device_fault, class: device_fault, scope: gpu, when: "symptom.device", severity: {alone: page}, explains: [software_fault], evidence: [xid.first, xid.last, xid.count], summary: "Xid {{xid.first}}"}
  - {id: cotenant, class: cotenant, scope: worker, when: "orphan.ratio > 0.1", severity: {alone: ticket}, evidence: [orphan.now], summary: "{{orphan.now}} of nobody"}
  - {id: kv_pressure, class: kv_pressure, scope: instance, when: "waiting.now > 5", severity: {alone: ticket}, evidence: [waiting.now], summary: "{{waiting.now}} wait"}
  - {id: kv_block_leak, class: kv_block_leak, scope: instance, when: "running.now > 5", severity: {alone: ticket}, summary: "{{running.now}} run"}
  - {id: blind, class: blind, scope: host, when: "blind.seconds >= 600", severity: {alone: ticket}, evidence: [blind.seconds], summary: "{{blind.source}} is {{blind.status}}"}
`

func probePack(t testing.TB) *rules.Pack {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probes.yaml")
	if err := os.WriteFile(path, []byte(probes), 0o600); err != nil {
		t.Fatal(err)
	}
	pack, err := rules.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	pack.Rules = slices.DeleteFunc(pack.Rules, func(r *rules.Rule) bool { return r.File != path })
	return pack
}

func newProbeStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{at: time.Unix(1_790_000_000, 0).UTC(), host: &event.Host{Cluster: "c", Name: "h", BootId: "b"}}
	s.judge = NewJudge(probePack(t), func(f *event.Finding) { s.findings = append(s.findings, f) })
	return s
}

// rank is a worker of the unit u, in its place's pid-th life.
func rank(pid int64, release string) *event.Worker {
	return &event.Worker{Pid: pid, StartTicks: event.Ptr(uint64(pid)), Role: "worker", Unit: "u", Model: "m", Release: release, GpuUuids: []string{"GPU-a"}}
}

func exited(change func(*event.Lifecycle)) *event.Event {
	l := &event.Lifecycle{State: "exited"}
	if change != nil {
		change(l)
	}
	return &event.Event{Lifecycle: l}
}

func code(n int64) *event.Event {
	return exited(func(l *event.Lifecycle) { l.ExitCode, l.By = &n, "self" })
}

func signal(n int64, by string) *event.Event {
	return exited(func(l *event.Lifecycle) { l.Signal, l.By = &n, by })
}

func bye(e *event.Event) *event.Event {
	e.Lifecycle.SaidBye = event.Ptr(true)
	return e
}

func (s *stage) pass(d time.Duration) { s.at = s.at.Add(d) }

// live lets a process speak for some time, a minute at a time.
func (s *stage) live(w *event.Worker, d time.Duration) {
	for range int(d / time.Minute) {
		s.pass(time.Minute)
		s.apply(w, handles())
	}
}

func (s *stage) flag(w *event.Worker, name string) string {
	v, known := s.worker(w).Sample().Bool(variable.Must(name))
	switch {
	case !known:
		return "unknown"
	case v:
		return "yes"
	}
	return "no"
}

func (s *stage) number(w *event.Worker, name string) float64 {
	v, known := s.worker(w).Sample().Number(variable.Must(name))
	if !known {
		return -1
	}
	return v
}
