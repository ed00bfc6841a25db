package report

import (
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

func TestLevelsAreDrawn(t *testing.T) {
	noon := time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)
	f := &event.Finding{Series: "live", Growth: &event.Growth{Value: 2 << 30, Unit: "bytes"}, Onset: noon,
		Symptoms: []event.Symptom{{Name: "oom", Time: noon.Add(3 * time.Hour)}}}
	for i := range 4 { // 42, 44, 46 and 48 GiB, an hour apart
		f.Points = append(f.Points, event.Point{Time: noon.Add(time.Duration(i) * time.Hour), Value: float64((42 + 2*i) << 30)})
	}
	var out strings.Builder
	if err := WriteLevels(&out, f, Style{ASCII: true}); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if len(lines) != 1+plotLines || lines[0] != "live (o level, ^ onset, x oom)" || strings.Count(strings.Join(lines[1:], ""), "o") != 4 {
		t.Errorf("drawn\n%s", got)
	}
	for _, want := range []string{"42 GiB +o", "48 GiB +", "12:00", "3 h 00 min", "15:00 UTC"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for line := range strings.Lines(got) {
		if len([]rune(line)) > plotColumns+1 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	out.Reset()
	f.Points = f.Points[:1]
	for _, one := range []*event.Finding{nil, {}, f} {
		if err := WriteLevels(&out, one, Style{}); err != nil || out.Len() != 0 {
			t.Errorf("drew %q, %v", out.String(), err)
		}
	}
}
