package scorecard

import (
	"math"
	"testing"
	"time"

	"lowtide/collector/sim"
	"lowtide/event"
	"lowtide/processor/worker"
)

var noon = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)

func found(class string, after time.Duration) incident {
	return incident{class: class, first: noon.Add(after)}
}

// Three leaks, of which one is found, one is called by another name and one is told an hour before it began; a healthy worker of
// which the same is said; and a healthy neighbour that is left alone. Right 1, missed 2, false 2: the early one and the healthy one.
func TestTally(t *testing.T) {
	leak, calm := sim.Scenario{Name: "leak", Class: "retention"}, sim.Scenario{Name: "calm"}
	one := found("retention", 3*time.Hour)
	one.confirmed = noon.Add(4 * time.Hour)
	counts := newTally()
	for _, trial := range []*trial{
		{scenario: leak, onset: noon, planted: []incident{one}},
		{scenario: leak, onset: noon, planted: []incident{found("native_growth", time.Hour), found("native_growth", 5*time.Hour)}},
		{scenario: leak, onset: noon, planted: []incident{found("retention", -time.Hour)}},
		{scenario: calm, healthy: []incident{found("retention", time.Hour)}},
		{scenario: calm},
	} {
		counts.add(trial)
	}
	s := counts.score()
	if s.Recordings != 5 || len(s.Classes) != 2 {
		t.Fatalf("%+v", s)
	}
	got := s.Classes[0]
	if got.Class != "retention" || got.Planted != 3 || got.Right != 1 || got.Confirmed != 1 || got.False != 2 {
		t.Errorf("%+v", got)
	}
	// Precision 1/3, recall 1/3, so F1 is 1/3 too.
	if math.Abs(got.Precision-1./3) > 1e-12 || math.Abs(got.Recall-1./3) > 1e-12 || math.Abs(got.F1-1./3) > 1e-12 {
		t.Errorf("%+v", got)
	}
	if got.Delay == nil || *got.Delay != (Delay{3, 3, 3}) {
		t.Errorf("delay %+v", got.Delay)
	}
	// What was never planted and is said counts with nothing: one recording, although it had two incidents.
	if other := s.Classes[1]; other.Class != "native_growth" || other.False != 1 || other.F1 != 0 {
		t.Errorf("%+v", other)
	}
	if math.Abs(s.MacroF1-1./6) > 1e-12 {
		t.Errorf("macro %v", s.MacroF1)
	}
}

func TestQuantile(t *testing.T) {
	ten := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, test := range []struct{ part, want float64 }{{0.5, 5}, {0.9, 9}, {0.91, 10}, {1, 10}, {0, 1}} {
		if got := quantile(ten, test.part); got != test.want {
			t.Errorf("%v of 1 to 10 is %v, want %v", test.part, got, test.want)
		}
	}
	if got := quantile([]float64{7}, 0.5); got != 7 {
		t.Errorf("median of one is %v", got)
	}
}

func TestMistakesSayHowToMakeThemAgain(t *testing.T) {
	page := found("stall", time.Hour)
	page.page = true
	trial := &trial{scenario: sim.Scenario{Name: "leak", Class: "retention"}, seed: 7, onset: noon, healthy: []incident{page}}
	got := trial.mistakes()
	if len(got) != 2 || got[0].Got != "none" || got[0].About != "planted" || got[0].Recording != "lowtide simulate --scenario leak --seed 7" {
		t.Fatalf("%+v", got)
	}
	if m := got[1]; m.Want != "none" || m.Got != "stall" || m.About != "healthy" || !m.Page {
		t.Errorf("%+v", m)
	}
}

func TestIncidentsKeepTheFirstAndTheWorst(t *testing.T) {
	tell := func(minute int, id, class, state, severity, resolution string, confidence float64) *event.Finding {
		return &event.Finding{Incident: id, Class: class, State: state, Severity: severity, Resolution: resolution, Confidence: confidence, Time: noon.Add(time.Duration(minute) * time.Minute)}
	}
	got := incidents([]*event.Finding{
		tell(0, "a", "exhaustion", event.Suspected, event.Page, "", 0.5),
		tell(5, "b", "retention", event.Suspected, event.Ticket, "", 0.7),
		tell(5, "a", "exhaustion", event.Resolved, event.Page, "explained by retention", 0.5),
		tell(9, "b", "retention", event.Confirmed, event.Page, "", 0.9),
		tell(99, "b", "retention", event.Resolved, event.Page, "9 quiet points over 3.1 h", 0.9),
	})
	if len(got) != 2 || got[0].class != "exhaustion" || !got[0].page {
		t.Fatalf("%+v", got)
	}
	if b := got[1]; b.suspected != 0.7 || b.sure != 0.9 || !b.page || !b.first.Equal(noon.Add(5*time.Minute)) || !b.confirmed.Equal(noon.Add(9*time.Minute)) {
		t.Errorf("%+v", b)
	}
}

// Points every 50 minutes from ten past on: the fourth comes after two and a half hours, the one that makes three hours is the fifth.
func TestFourthPoint(t *testing.T) {
	var points []worker.Dot
	for n := range 8 {
		points = append(points, worker.Dot{At: noon.Add(10*time.Minute + time.Duration(n)*50*time.Minute)})
	}
	if got := fourthPoint(points, noon); !got.Equal(noon.Add(210 * time.Minute)) {
		t.Errorf("%v", got)
	}
	if got := fourthPoint(points, noon.Add(3*time.Hour)); !got.IsZero() {
		t.Errorf("four points that are not there: %v", got)
	}
}

func TestSeeds(t *testing.T) {
	for text, want := range map[string]Seeds{"7": {7, 7}, "1-99": {1, 99}, "1000-1009": {1000, 1009}} {
		var s Seeds
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: %v, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "-", "9-1", "1-99999999", "a-b", "-3"} {
		var s Seeds
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, s)
		}
	}
}
