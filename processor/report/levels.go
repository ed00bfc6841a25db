package report

import (
	"io"

	"lowtide/event"
	"lowtide/processor/worker"
)

// WriteLevels draws the levels that a finding's growth is the slope of, with its onset and symptoms on the time axis. A finding that has
// fewer than two draws nothing.
func WriteLevels(out io.Writer, f *event.Finding, style Style) error {
	if f == nil || f.Growth == nil || len(f.Points) < 2 {
		return nil
	}
	s := worker.SeriesReport{Name: f.Series, Unit: f.Growth.Unit, Called: true}
	for _, point := range f.Points {
		s.Points = append(s.Points, worker.Dot{At: point.Time, Value: point.Value})
	}
	s.Trace = s.Points // a line from level to level
	p := &page{style: style}
	p.draw(s, f, "level")
	return p.flush(out)
}
