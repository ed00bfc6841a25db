package report

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"lowtide/processor/worker"
)

// A straight rise ends in opposite corners of the area, and quiet levels stand on it.
func TestARiseGoesFromCornerToCorner(t *testing.T) {
	s := worker.SeriesReport{Name: "live", Unit: "bytes", Called: true}
	for i := range 97 {
		s.Trace = append(s.Trace, worker.Dot{At: at(float64(i) / 12), Value: (40 + float64(i)/12) * gib})
	}
	s.Points = []worker.Dot{{At: at(4), Value: 44 * gib}}
	lines := plotOf(s, []mark{{at(8), 'X'}, {at(9), 'Y'}}, letters)
	if len(lines) != plotLines {
		t.Fatalf("%d lines", len(lines))
	}
	if !strings.HasPrefix(lines[0], "48 GiB +") || !strings.HasSuffix(lines[0], ".") || len(lines[0]) != plotColumns {
		t.Errorf("top line %q", lines[0])
	}
	if !strings.HasPrefix(lines[7], "40 GiB +.") {
		t.Errorf("bottom line %q", lines[7])
	}
	if n := strings.Count(strings.Join(lines[:8], ""), "o"); n != 1 {
		t.Errorf("%d quiet levels", n)
	}
	if !strings.HasSuffix(lines[8], "X") || strings.Contains(lines[8], "Y") {
		t.Errorf("axis %q", lines[8])
	}
	if !strings.Contains(lines[9], "08:00") || !strings.HasSuffix(lines[9], "16:00 UTC") || !strings.Contains(lines[9], "8 h 00 min") {
		t.Errorf("times %q", lines[9])
	}
}

// Level memory with a noise of 20 MiB must not look like growth: it stays within two rows of the eight.
func TestNoiseOfALevelSeriesLooksLevel(t *testing.T) {
	s := worker.SeriesReport{Name: "live", Unit: "bytes"}
	for i := range 60 {
		s.Trace = append(s.Trace, worker.Dot{At: at(float64(i) / 6), Value: 42*gib + float64(i%3)*10*(1<<20)})
	}
	lines := plotOf(s, nil, letters)
	used := 0
	for _, line := range lines[:areaRows] {
		if strings.Contains(line[strings.IndexAny(line, "|+"):], ".") {
			used++
		}
	}
	if used < 1 || used > 2 {
		t.Errorf("the noise fills %d rows:\n%s", used, strings.Join(lines, "\n"))
	}
}

func TestNothingIsDrawnAcrossAGap(t *testing.T) {
	s := worker.SeriesReport{Name: "fds", Unit: "1"}
	for i := range 60 {
		if i < 20 || i >= 40 {
			s.Trace = append(s.Trace, worker.Dot{At: at(float64(i) / 6), Value: 100})
		}
	}
	text := strings.Join(plotOf(s, nil, letters)[:areaRows], "\n")
	if !strings.Contains(text, ".                  ") || strings.Count(text, ".") > 50 {
		t.Errorf("the gap is filled:\n%s", text)
	}
}

func TestWhatCannotBeDrawnIsNot(t *testing.T) {
	for name, s := range map[string]worker.SeriesReport{
		"nothing":   {Unit: "bytes"},
		"one":       {Unit: "bytes", Points: []worker.Dot{{At: at(1), Value: 1}}},
		"unknown":   {Unit: "bytes", Trace: []worker.Dot{{At: at(1), Value: math.NaN()}, {At: at(2), Value: math.Inf(1)}, {At: at(3), Value: 5}}},
		"no time":   {Unit: "bytes", Points: []worker.Dot{{At: at(1), Value: 1}, {At: at(1), Value: 2}}},
		"overflows": {Unit: "1", Points: []worker.Dot{{At: at(1), Value: -math.MaxFloat64}, {At: at(2), Value: math.MaxFloat64}}},
	} {
		if lines := plotOf(s, nil, braille); lines != nil {
			t.Errorf("%s is drawn:\n%s", name, strings.Join(lines, "\n"))
		}
	}
}

// FuzzPlot draws any values: never wider or higher than promised, and no panic.
func FuzzPlot(f *testing.F) {
	f.Add(42.0, 44.0, 48.0, int64(3600), "bytes", true)
	f.Add(-1e308, 1e308, 0.0, int64(1), "1", false)
	f.Add(0.0, 1e-300, 5e-324, int64(math.MaxInt64), "ratio", true)
	f.Fuzz(func(t *testing.T, a, b, c float64, seconds int64, unit string, called bool) {
		step := time.Duration(seconds % (1 << 31) * int64(time.Second))
		var dots []worker.Dot
		for i, v := range []float64{a, b, c} {
			dots = append(dots, worker.Dot{At: start.Add(time.Duration(i) * step), Value: v})
		}
		for _, g := range []glyphs{braille, letters} {
			lines := plotOf(worker.SeriesReport{Name: "x", Unit: unit, Called: called, Trace: dots, Points: dots}, []mark{{start, 'm'}, {start.Add(step), 'n'}}, g)
			if len(lines) > plotLines {
				t.Fatalf("%d lines", len(lines))
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); n > plotColumns {
					t.Fatalf("%d columns: %q", n, line)
				}
			}
		}
	})
}
