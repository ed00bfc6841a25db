package ruletest

import (
	"errors"
	"math"
	"testing"
	"time"

	"lowtide/rules"
)

const gib = 1 << 30

func valuesOf(t *testing.T, s *series, n int) []float64 {
	t.Helper()
	out := make([]float64, n)
	for i := range out {
		v, ok := s.at(i, 1)
		if !ok {
			v = math.NaN()
		}
		out[i] = v
	}
	return out
}

func TestTheNotationOfSeries(t *testing.T) {
	gap := math.NaN()
	for _, c := range []struct {
		text    string
		want    []float64
		ticks   int
		endless bool
	}{
		{"40GiB+12MiBx3", []float64{40 * gib, 40*gib + 12<<20, 40*gib + 24<<20, gap}, 3, false},
		{"5x2", []float64{5, 5, gap}, 2, false},
		{"5", []float64{5, 5, 5}, 1, true},
		{"0x60", []float64{0, 0}, 60, false},
		{"5x2 _x2 6-2x3", []float64{5, 5, gap, gap, 6, 4, 2, gap}, 7, false},
		{"1 2 3", []float64{1, 2, 3, gap}, 3, false},
		{"1,2", []float64{1, 2, gap}, 2, false},
		{"1+60/hx3", []float64{1, 2, 3, gap}, 3, false},
		{"1+1/sx2", []float64{1, 61, gap}, 2, false},
		{"7x1h", []float64{7}, 60, false},
		{"7x1d", []float64{7}, 1440, false},
		{"7x90s", []float64{7, 7, gap}, 2, false},
		{"1 7+1x*", []float64{1, 7, 8, 9}, 2, true},
		{"(1 2x2)x2 9", []float64{1, 2, 2, 1, 2, 2, 9, gap}, 7, false},
		{"((1 _)x2 3)x2", []float64{1, gap, 1, gap, 3, 1, gap, 1, gap, 3, gap}, 10, false},
		{"1e3x2", []float64{1000, 1000, gap}, 2, false},
		{"1.5KiB", []float64{1536}, 1, true},
		{"2MBx1", []float64{2e6, gap}, 1, false},
		{"-5+1x2", []float64{-5, -4, gap}, 2, false},
	} {
		s, err := readSeries(c.text, time.Minute, unitsOf("rss_bytes"))
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		for i, got := range valuesOf(t, s, len(c.want)) {
			if want := c.want[i]; got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
				t.Errorf("%q: tick %d is %g, want %g", c.text, i, got, want)
			}
		}
		if ticks, endless := s.ticks(); ticks != c.ticks || endless != c.endless {
			t.Errorf("%q: %d ticks, endless %v", c.text, ticks, endless)
		}
	}
}

func TestUnitsFollowTheField(t *testing.T) {
	for _, c := range []struct {
		field, text string
		want        float64
	}{{"kv_usage", "96%", 0.96}, {"ttft_p95_seconds", "200ms", 0.2}, {"ttft_p95_seconds", "2m", 120}, {"allocated_bytes", "1TiB", 1 << 40}, {"running", "5", 5}} {
		s, err := readSeries(c.text, time.Minute, unitsOf(c.field))
		if err != nil {
			t.Errorf("%s %s: %v", c.field, c.text, err)
		} else if got, _ := s.at(0, 1); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s %s is %g, want %g", c.field, c.text, got, c.want)
		}
	}
}

func TestMistakesInANotationHaveAPlace(t *testing.T) {
	for _, c := range []struct {
		text   string
		offset int
	}{
		{"", 0}, {"five", 0}, {"5x", 2}, {"5x0", 2}, {"5 6 y", 4}, {"5+1", 3}, {"(5x2", 4}, {"(5x2)", 5}, {"(5)x", 4}, {"5x* 6", 4}, {"5%x2", 1}, {"5±x2", 2}, {"5+1/yx2", 4},
		{"((((((((((5)x1)x1)x1)x1)x1)x1)x1)x1)x1)x1", 9}, {"5x9999999", 2}, {"5x999d", 2}, {"(5x*)x2", 6}, {"5x2y", 3}, {"1e99", 0}, {"(1 2)x19999", 11}, {"5x150000 5x150000", 17},
	} {
		_, err := readSeries(c.text, time.Minute, unitsOf("allocated_bytes"))
		var m *mistake
		if !errors.As(err, &m) {
			t.Errorf("%q: %v", c.text, err)
		} else if m.offset != c.offset || m.hint == "" || m.what == "" {
			t.Errorf("%q: %q at %d, hint %q; want it at %d", c.text, m.what, m.offset, m.hint, c.offset)
		}
	}
}

// Noise stays within its bounds, comes to both sides of the value, and is the same each time.
func TestNoiseIsSeeded(t *testing.T) {
	s, err := readSeries("40+-4x1000", time.Minute, unitsOf("running"))
	if err != nil {
		t.Fatal(err)
	}
	above, sum := 0, 0.0
	for i := range 1000 {
		v, _ := s.at(i, 7)
		again, _ := s.at(i, 7)
		if v < 36 || v > 44 || v != again {
			t.Fatalf("tick %d is %g, then %g", i, v, again)
		}
		if v > 40 {
			above++
		}
		sum += v
	}
	if above < 400 || above > 600 || math.Abs(sum/1000-40) > 0.3 {
		t.Errorf("%d of 1000 above, mean %g", above, sum/1000)
	}
	one, _ := s.at(0, 7)
	if other, _ := s.at(0, 8); one == other {
		t.Error("another seed makes the same noise")
	}
}

func TestQuietIsTheEndOfEveryStretch(t *testing.T) {
	q := quiet{every: time.Hour, lasts: 2 * time.Minute, from: 30 * time.Minute}
	for at, want := range map[time.Duration]bool{0: false, 58 * time.Minute: false, 88 * time.Minute: true, 89 * time.Minute: true, 90 * time.Minute: false, 148 * time.Minute: true} {
		if q.holds(at) != want {
			t.Errorf("%v: %v", at, !want)
		}
	}
}

func FuzzSeries(f *testing.F) {
	for _, text := range []string{"40GiB+12MiBx60", "5x60 _x10", "(1 2x2)x3", "40±4x6", "7x1h30m", "1e3", "x", "((", "5+-1/hx*"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := readSeries(text, time.Minute, unitsOf("allocated_bytes"))
		if err != nil {
			var m *mistake
			if !errors.As(err, &m) || m.offset < 0 || m.offset > len(text) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		ticks, _ := s.ticks()
		if ticks < 1 || ticks > maxTicks || len(s.pieces) > maxPieces {
			t.Fatalf("%q: %d ticks of %d pieces", text, ticks, len(s.pieces))
		}
		for _, i := range []int{0, ticks - 1, ticks, maxTicks} {
			s.at(i, 1)
		}
	})
}

// FuzzScenarios reads test files; whatever is in one, it is told and not fallen over, and what is accepted is bounded.
func FuzzScenarios(f *testing.F) {
	f.Add("scenarios:\n  - name: a\n    quiet: every 1h for 2m\n    series: {allocator.allocated_bytes: 40GiBx60}\n    events: [{at: 1m, oom: {kind: cuda}}]\n    expect: [{at: 30m, class: retention}]\n")
	f.Add("scenarios:\n  - name: b\n    beside: [{worker: {pid: 7}, series: {gpu.used_bytes: [1, 2]}}]\n    never: [page]\n")
	pack, err := rules.Builtin()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var problems rules.Problems
		for _, s := range readScenarios("x_test.yaml", []byte(text), pack, &problems) {
			if s.length/s.interval > maxTicks {
				t.Fatalf("%v of %v", s.length, s.interval)
			}
		}
		for _, p := range problems {
			if p.Message == "" {
				t.Fatal("a problem without a message")
			}
		}
	})
}
