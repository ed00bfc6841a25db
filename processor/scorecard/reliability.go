package scorecard

import (
	"lowtide/event"
)

// Bin counts the findings whose confidence lies in one range, and how many of their classes were right.
type Bin struct {
	From      float64 `json:"from"`
	To        float64 `json:"to"`
	Findings  int     `json:"findings"`
	Predicted float64 `json:"predicted"` // mean confidence
	Right     float64 `json:"right"`     // part of them
}

// ReliabilityTable compares predicted with observed, of findings in one state.
type ReliabilityTable struct {
	State string  `json:"state"`
	Bins  []Bin   `json:"bins"`
	Brier float64 `json:"brier"` // mean squared difference between confidence and outcome
}

var binEdges = [...]float64{0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.01}

// outcome is one finding with its confidence, or its score, and whether its class was right.
type outcome struct {
	class string
	value float64
	right bool
}

// outcomes are those of all incidents in one state: when they opened, or when they were confirmed later. Undeclared caches count as
// what they are: wrong.
func outcomes(trials []*trial, state string) (out []outcome) {
	add := func(one *incident, right bool) {
		switch {
		case state == event.Suspected && !one.atOnce:
			out = append(out, outcome{one.class, one.suspected, right})
		case state == event.Confirmed && !one.confirmed.IsZero():
			out = append(out, outcome{one.class, one.sure, right})
		}
	}
	for _, t := range trials {
		for n := range t.planted {
			one := &t.planted[n]
			add(one, one.class == t.scenario.Class && !one.first.Before(t.onset.Add(-beforehand)))
		}
		for n := range t.healthy {
			add(&t.healthy[n], false)
		}
	}
	return out
}

func reliability(trials []*trial) (out []ReliabilityTable) {
	for _, state := range []string{event.Suspected, event.Confirmed} {
		table := ReliabilityTable{State: state}
		all := outcomes(trials, state)
		for n, from := range binEdges[:len(binEdges)-1] {
			bin := Bin{From: from, To: min(1, binEdges[n+1])}
			for _, one := range all {
				if one.value < from || one.value >= binEdges[n+1] {
					continue
				}
				bin.Findings++
				bin.Predicted += one.value
				if one.right {
					bin.Right++
				}
			}
			if bin.Findings > 0 {
				bin.Predicted, bin.Right = bin.Predicted/float64(bin.Findings), bin.Right/float64(bin.Findings)
				table.Bins = append(table.Bins, bin)
			}
		}
		for _, one := range all {
			miss := one.value
			if one.right {
				miss = 1 - one.value
			}
			table.Brier += miss * miss / float64(len(all))
		}
		if len(all) > 0 {
			out = append(out, table)
		}
	}
	return out
}
