package processor

import (
	"testing"
	"time"

	"lowtide/event"
)

func (s *stage) says(name, status string) {
	s.apply(nil, &event.Event{Source: &event.SourceStatus{Name: name, Status: status}})
}

// A sensor that was well and is lost for ten minutes, by what the host says in the meantime.
func TestASensorGoesBlind(t *testing.T) {
	for name, test := range map[string]struct {
		first, then string
		told        bool
	}{
		"lost":                         {"ok", "lost", true},
		"it does not answer in time":   {"ok", "timeout", true},
		"it cannot be had":             {"ok", "unsupported", false},
		"nobody may read it":           {"ok", "denied", false},
		"it never was there":           {"absent", "lost", false},
		"it goes on":                   {"ok", "ok", false},
		"it was removed by its owner":  {"ok", "absent", false},
		"it never was well, and times": {"lost", "timeout", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newProbeStage(t)
			w := rank(10, "r1")
			s.says("nvml", test.first)
			for minute := range 20 {
				s.pass(time.Minute)
				s.apply(w, handles())
				if minute == 0 {
					s.says("nvml", test.then) // a status is told when it changes
				}
				if minute < 10 && len(s.findings) > 0 {
					t.Fatalf("told after %d minutes", minute)
				}
			}
			if (len(s.findings) > 0) != test.told {
				t.Fatalf("findings %v", s.findings)
			}
			if !test.told {
				return
			}
			f := s.findings[0]
			if f.Class != "blind" || f.Subject != (event.Subject{Kind: "source", Key: "c/h/nvml"}) || f.Worker != nil || f.Slot != "" || f.Summary != "nvml is "+test.then {
				t.Errorf("finding %+v", f)
			}
			s.says("nvml", "ok")
			s.live(w, 9*time.Minute)
			if len(s.findings) != 1 {
				t.Errorf("well for nine minutes, findings %v", s.findings)
			}
			s.live(w, time.Minute)
			if last := s.findings[len(s.findings)-1]; len(s.findings) != 2 || last.State != event.Resolved || last.Incident != f.Incident || last.Resolution == "" {
				t.Errorf("well again, findings %v", s.findings)
			}
		})
	}
}

// The clock leaps by ten hours in the moment in which a sensor fails once.
func TestALeapOfTheClockMakesNobodyBlind(t *testing.T) {
	s := newProbeStage(t)
	w := rank(10, "r1")
	s.says("nvml", "ok")
	s.pass(10 * time.Hour)
	s.says("nvml", "lost")
	s.apply(w, handles())
	s.pass(time.Minute)
	s.says("nvml", "ok")
	if len(s.findings) > 0 {
		t.Errorf("findings %v", s.findings)
	}
}

// A worker that says nothing is no loss of sight: its host is heard.
func TestSilenceOfOneWorkerIsNotBlindness(t *testing.T) {
	s := newProbeStage(t)
	w, other := rank(10, "r1"), rank(11, "r1")
	s.says("nvml", "ok")
	s.apply(w, handles())
	s.live(other, 2*time.Hour)
	if len(s.findings) > 0 {
		t.Errorf("findings %v", s.findings)
	}
}

// A host falls silent by the broker's time. That is told while others are heard, not when the broker brings nothing at all, and it
// ends with the host's next word. Its own clock is an hour slow, which is nobody's business here.
func TestAHostFallsSilent(t *testing.T) {
	s := newProbeStage(t)
	w := rank(10, "r1")
	names := []string{"a", "b", "c"}
	broker := s.at.Add(time.Hour)
	run := func(minutes int, speak ...string) {
		for range minutes {
			broker = broker.Add(time.Minute)
			s.pass(time.Minute)
			for _, name := range speak {
				s.host = &event.Host{Cluster: "c", Name: name, BootId: "b"}
				s.apply(w, handles())
			}
			s.judge.Tick(broker)
		}
	}
	run(10, names...)
	run(30) // the broker is away
	if len(s.findings) != 0 {
		t.Fatalf("nobody was heard, findings %v", s.findings)
	}
	run(3, names...)
	run(9, "a", "b")
	if len(s.findings) != 0 {
		t.Fatalf("after nine minutes: %v", s.findings)
	}
	run(4, "a", "b")
	if len(s.findings) != 1 || s.findings[0].Subject != (event.Subject{Kind: "source", Key: "c/c/collector"}) || s.findings[0].Summary != "collector is silent" {
		t.Fatalf("findings %v", s.findings)
	}
	run(9, names...)
	if len(s.findings) != 1 {
		t.Fatalf("heard for nine minutes: %v", s.findings)
	}
	run(3, names...)
	if len(s.findings) != 2 || s.findings[1].State != event.Resolved {
		t.Fatalf("findings %v", s.findings)
	}
}

// A sensor that works for a moment every twelve minutes is one trouble, which ends once it has worked for ten.
func TestASensorThatComesAndGoesIsOneTrouble(t *testing.T) {
	s := newProbeStage(t)
	w := rank(10, "r1")
	s.says("nvml", "ok")
	for range 10 {
		for range 12 {
			s.pass(time.Minute)
			s.says("nvml", "timeout")
			s.apply(w, handles())
		}
		s.pass(time.Minute)
		s.says("nvml", "ok")
	}
	if len(s.findings) != 1 {
		t.Fatalf("in two hours %d findings, want one", len(s.findings))
	}
	s.live(w, 11*time.Minute)
	if len(s.findings) != 2 || s.findings[1].State != event.Resolved || s.findings[1].Resolution != "nvml is well again since 2026-09-21T16:23:20Z" {
		t.Errorf("findings %+v", s.findings[1:])
	}
}

// A host is taken away while one of its sensors is lost. Nothing more is opened about it, all ends a day later, and what is no longer
// waited for is not missed again.
func TestAHostIsTakenAway(t *testing.T) {
	s := newProbeStage(t)
	gone, stays := &event.Host{Cluster: "c", Name: "gone", BootId: "b"}, s.host
	run := func(d time.Duration, hosts ...*event.Host) {
		for range int(d / time.Minute) {
			s.pass(time.Minute)
			for _, h := range hosts {
				s.host = h
				s.apply(rank(10, "r1"), handles())
			}
			s.judge.Tick(s.at)
		}
	}
	run(5*time.Minute, gone, stays)
	for _, status := range []string{"ok", "lost"} {
		s.host = gone
		s.says("nvml", status)
		s.says("process", status)
		s.says("engine", "ok")
		run(12*time.Minute, gone, stays)
	}
	s.host = gone
	s.says("engine", "lost") // just before the end
	told := s.at
	run(72*time.Hour, stays)
	open := map[string]time.Duration{}
	for _, f := range s.findings {
		switch at, seen := open[f.Subject.Key]; {
		case f.State != event.Resolved:
			open[f.Subject.Key] = 0
		case !seen || at != 0:
			t.Errorf("%s ends twice or never began", f.Subject.Key)
		default:
			open[f.Subject.Key] = f.Time.Sub(told)
		}
	}
	if len(open) != 3 {
		t.Errorf("incidents %v, want nvml, process and the collector", open)
	}
	for key, after := range open {
		if after < 23*time.Hour || after > 26*time.Hour {
			t.Errorf("%s ended after %v, want a day", key, after)
		}
	}
	if h := s.judge.hosts[hostName{"c", "gone"}]; h != nil && h.blind != 0 {
		t.Errorf("%d of its sensors are still waited for", h.blind)
	}
}
