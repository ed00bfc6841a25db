package scorecard

import (
	"fmt"
	"time"
)

// What the product promises.
const (
	wantMacroF1     = 0.97
	wantPages       = 0
	wantPerDay      = 0.02 // false findings a healthy worker-day
	wantHealthyDays = 1000 // that the two above are measured on
	slowWithin      = 24 * time.Hour
	pointTold       = 10 * time.Minute // a quiet point is told when it is over, at the latest after so long
)

// Target is one promise and whether it was kept.
type Target struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Got  string `json:"got"`
	Met  bool   `json:"met"`
}

// targets compares a result with the promises. What was not played is left out.
func (r *Result) targets() (out []Target) {
	add := func(met bool, name, want, got string, args ...any) {
		out = append(out, Target{name, want, fmt.Sprintf(got, args...), met})
	}
	if len(r.Score.Classes) > 0 {
		add(r.Score.MacroF1 >= wantMacroF1, "macro-F1", "at least 0.97", "%.4f over %d recordings", r.Score.MacroF1, r.Score.Recordings)
	}
	if r.Healthy.Days > 0 {
		add(r.Healthy.Pages == wantPages, "false pages", "0", "%d in %.0f healthy worker-days", r.Healthy.Pages, r.Healthy.Days)
		add(r.Healthy.PerDay <= wantPerDay, "false findings", "at most 0.02 a day", "%.4f a day, %d in %.0f healthy worker-days", r.Healthy.PerDay, r.Healthy.Findings, r.Healthy.Days)
	}
	for _, p := range r.Punctual {
		want := "within 24 h"
		if p.Scenario == fastRetention {
			want = "within four quiet points and three hours"
		}
		add(p.InTime == p.Planted, p.Scenario, want, "%d of %d, the slowest after %.1f h", p.InTime, p.Planted, p.Most)
	}
	if len(r.Hidden) > 0 {
		told, workers := 0, 0
		for _, h := range r.Hidden {
			told, workers = told+h.Told, workers+h.Workers
		}
		add(told == workers, "missing sensors", "each hidden class named", "%d of %d", told, workers)
	}
	if len(r.Real) > 0 {
		right := 0
		for _, v := range r.Real {
			if v.Right {
				right++
			}
		}
		add(right == len(r.Real), "real recordings", "all", "%d of %d", right, len(r.Real))
	}
	return out
}

// Met says whether every promise was kept.
func (r *Result) Met() bool {
	for _, t := range r.Targets {
		if !t.Met {
			return false
		}
	}
	return true
}

// The scenarios that a promise about delay is made for.
const (
	slowRetention = "retention-20mib"
	fastRetention = "retention-2gib"
)

// punctuality measures both promises about delay. Growth of 2 GiB an hour is to be called at the first quiet point after its onset
// that makes four, and three hours since the first of them: before that nothing can be known.
func punctuality(trials []*trial) (out []Punctual) {
	for scenario, deadline := range map[string]func(*trial) time.Time{
		slowRetention: func(t *trial) time.Time { return t.onset.Add(slowWithin) },
		fastRetention: func(t *trial) time.Time { return t.fourth.Add(pointTold) },
	} {
		if p := punctual(trials, scenario, deadline); p.Planted > 0 {
			out = append(out, p)
		}
	}
	if len(out) == 2 && out[0].Scenario != slowRetention {
		out[0], out[1] = out[1], out[0]
	}
	return out
}
