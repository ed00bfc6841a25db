package scorecard

import (
	"testing"
)

// The example of scikit-learn's isotonic regression guide cannot be had in whole outcomes, so this one was worked out by hand:
// outcomes 0 1 0 0 1 1 over scores 1 to 6. The pair 1 0 0 pools to a third; 1 and 1 pool to one.
func TestIsotonicPoolsWhatFalls(t *testing.T) {
	var cases []outcome
	for n, right := range []bool{false, true, false, false, true, true} {
		cases = append(cases, outcome{value: float64(n + 1), right: right})
	}
	got := isotonic(cases)
	want := []block{{1, 0, 1}, {2, 1, 3}, {5, 2, 2}}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for n := range want {
		if got[n] != want[n] {
			t.Errorf("block %d is %+v, want %+v", n, got[n], want[n])
		}
	}
}

func TestStepsAreNeverCertain(t *testing.T) {
	got := steps([]block{{from: 0.512, right: 10, count: 30}, {from: 1.01, right: 5, count: 5}, {from: 2.03, right: 98, count: 98}})
	// The block of five joins the one below it: 15 of 35, with one more of each outcome 16/37; the last is 99/100.
	if len(got) != 2 || got[0].right != 0.43 || got[0].from != 0.5 || got[1].right != 0.99 || got[1].from != 2 {
		t.Errorf("%+v", got)
	}
}

func TestReliabilityCountsUndeclaredCachesAsWrong(t *testing.T) {
	right, wrong := found("retention", 1), found("retention", 1)
	right.suspected, wrong.suspected = 0.85, 0.85
	tables := reliability([]*trial{
		{scenario: leakScenario, onset: noon, planted: []incident{right}},
		{scenario: leakScenario, onset: noon, planted: []incident{right}},
		{scenario: leakScenario, onset: noon, planted: []incident{right}},
		{scenario: undeclaredScenario, healthy: []incident{wrong}},
	})
	if len(tables) != 1 || len(tables[0].Bins) != 1 {
		t.Fatalf("%+v", tables)
	}
	// Three of four are right; Brier is (3·0.15² + 0.85²)/4 = 0.1975.
	bin := tables[0].Bins[0]
	if bin.Findings != 4 || bin.Right != 0.75 || bin.From != 0.8 || bin.To != 0.9 || tables[0].Brier < 0.19749 || tables[0].Brier > 0.19751 {
		t.Errorf("%+v", tables[0])
	}
}
