package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"lowtide/event"
	"lowtide/processor/worker"
)

const maxRows = 24 // of one table: eight cards with all their series are too much to read

// evidence prints what an incident rests on: why, its growth and forecast, the plot, what speaks against it, what was seen with it.
func (p *page) evidence(c Case, s Subject) {
	f := c.told()
	var why []row
	for _, m := range f.Evidence {
		if !saidBelow(m, f) {
			why = append(why, row{m.Name, event.FormatQuantity(m.Value, m.Unit)})
		}
	}
	series, found := inQuestion(s.Report, f)
	if g := f.Growth; g != nil {
		why = append(why, row{"growth", growthText(g.Value, g.Low, g.High, g.Unit)})
	}
	for _, m := range []struct {
		name string
		*event.Measure
	}{{"per abort", f.PerAbort}, {"per request", f.PerRequest}} {
		if m.Measure != nil {
			why = append(why, row{m.name, event.FormatQuantity(m.Value, m.Unit)})
		}
	}
	if !f.Onset.IsZero() {
		why = append(why, row{"onset", minute(f.Onset)})
	}
	if found && c.Open() {
		why = append(why, row{"forecast", forecast(f, series)})
	}
	p.table("Why", why)
	if found {
		p.plot(s.Report, &c)
	}
	var against []row
	for _, one := range f.CounterEvidence {
		against = append(against, row{one.Name, join(": ", strings.ReplaceAll(one.State, "_", " "), one.Text)})
	}
	p.table("What speaks against it", against)
	var together []string
	for _, one := range f.Symptoms {
		together = append(together, join(": ", fmt.Sprintf("%s at %s, %s", one.Name, clock(one.Time), lag(one.LagSeconds)), one.Text))
	}
	p.list("Seen together", together)
	p.table(heldHeading(f.Class), heldRows(f))
	p.table("Course", c.course())
}

// heldHeading says what the stacks of a finding of the class hold.
func heldHeading(class string) string {
	switch class {
	case "stream_backlog":
		return "What waits on other streams, by the last snapshot"
	case "fragmentation":
		return "What lives in most pieces, by the last snapshot"
	}
	return "What holds the memory, by the last snapshot"
}

// heldRows are the stacks that a snapshot names, and where the whole of it lies. A stack is cut to what tells it apart.
func heldRows(f *event.Finding) []row {
	const most = 3 // frames
	var rows []row
	for _, h := range f.Holders {
		parts := []string{strings.Join(h.Frames[:min(len(h.Frames), most)], " < ")}
		switch {
		case h.Blocks == 1:
			parts = append(parts, "1 block")
		case h.Blocks > 1:
			parts = append(parts, fmt.Sprintf("%d blocks", h.Blocks))
		}
		if g := h.GrowthBytes; g != nil {
			parts = append(parts, event.FormatQuantity(float64(*g), "bytes")+" more than in an earlier snapshot")
			if *g <= 0 {
				parts[len(parts)-1] = "no more than in an earlier snapshot"
			}
		}
		rows = append(rows, row{event.FormatQuantity(float64(h.LiveBytes), "bytes"), join(", ", parts...)})
	}
	if f.Snapshot != "" {
		rows = append(rows, row{"file", join(", ", f.Snapshot, prefixed("on ", f.Labels["host"]))})
	}
	return rows
}

// saidBelow says that a piece of evidence is the growth or the slope against work that has a line of its own.
func saidBelow(m event.Measure, f *event.Finding) bool {
	_, field, _ := strings.Cut(m.Name, ".")
	switch field {
	case "growth":
		return f.Growth != nil && f.Growth.Value == m.Value
	case "per_abort":
		return f.PerAbort != nil && f.PerAbort.Value == m.Value
	case "per_request":
		return f.PerRequest != nil && f.PerRequest.Value == m.Value
	}
	return false
}

// inQuestion returns the series that a finding is about: of those that its evidence names the one that was called, else the first
// of them; without any, live, or what there is. Of several GPUs it is the one that was called, else the one that grows fastest.
func inQuestion(r worker.Report, f *event.Finding) (worker.SeriesReport, bool) {
	var named []string
	if f != nil {
		for _, m := range f.Evidence {
			name, _, _ := strings.Cut(m.Name, ".")
			named = append(named, name)
		}
	}
	rank := func(s worker.SeriesReport) float64 {
		place := slices.Index(named, s.Name)
		switch {
		case place >= 0 && s.Called:
			return 4000 - float64(place)
		case place >= 0:
			return 3000 - float64(place)
		case s.Called:
			return 2000
		case s.Name == "live":
			return 1000
		}
		return 0
	}
	best := -1
	for i, s := range r.Series {
		if len(s.Trace) < 2 && len(s.Points) < 2 {
			continue
		}
		switch {
		case best < 0 || rank(s) > rank(r.Series[best]):
			best = i
		case rank(s) == rank(r.Series[best]) && s.Name == r.Series[best].Name && s.Growth.Slope > r.Series[best].Growth.Slope:
			best = i
		}
	}
	if best < 0 {
		return worker.SeriesReport{}, false
	}
	return r.Series[best], true
}

// growthText is a slope per hour with its interval.
func growthText(value, low, high float64, unit string) string {
	if math.IsNaN(value) {
		return ""
	}
	text := event.FormatQuantity(value, unit+"/h")
	if math.IsNaN(low) || math.IsNaN(high) {
		return text + " (no interval: too few points)"
	}
	return fmt.Sprintf("%s (95 %%: %s to %s)", text, event.FormatQuantity(low, unit+"/h"), event.FormatQuantity(high, unit+"/h"))
}

// forecast is an interval and says that it is one. The time in the middle is the same distance at the slope itself; it is left out
// where the interval is not that distance at the bounds of the slope.
func forecast(f *event.Finding, s worker.SeriesReport) string {
	low, high := s.HoursLow, s.HoursHigh
	if f.HoursToLimit != nil {
		low, high = f.HoursToLimit.Low, f.HoursToLimit.High
	}
	if !(low >= 0) || math.IsInf(low, 1) {
		return ""
	}
	if math.IsNaN(high) {
		high = math.Inf(1)
	}
	slope, slopeLow, slopeHigh := s.Growth.Slope, s.Growth.Low, s.Growth.High
	if g := f.Growth; g != nil {
		slope, slopeLow, slopeHigh = g.Value, g.Low, g.High
	}
	between := hours(low) + " or more"
	if !math.IsInf(high, 1) {
		between = interval(low, high)
	}
	distance := low * slopeHigh
	agrees := slope > 0 && slopeHigh >= slope && (math.IsInf(high, 1) || math.Abs(high*slopeLow-distance) <= 0.05*distance)
	if !agrees {
		return between + " to the limit; a risk indicator, not a date"
	}
	said := fmt.Sprintf("about %s to the limit (%s)", hours(distance/slope), between)
	if s.Unit == "bytes" && !math.IsNaN(s.Level) {
		said += fmt.Sprintf(", where %s would be %s", s.Name, event.FormatQuantity(s.Level+distance, s.Unit))
	}
	return said + "; a risk indicator, not a date"
}

// hours is a time in hours, or in minutes below one.
func hours(v float64) string {
	if v < 1 {
		return rough(v*60) + " min"
	}
	return rough(v) + " h"
}

func interval(low, high float64) string {
	if high < 1 {
		return rough(low*60) + "–" + hours(high)
	}
	return rough(low) + "–" + hours(high)
}

// rough has two digits: a forecast has no more.
func rough(v float64) string {
	if v >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}

// memoryOf says where the memory of one card is. Each word is one residual of the identity
// process used = live + awaiting + cached + outside; where the allocator does not tell what awaits, cached has it too.
func memoryOf(c worker.CardReport) string {
	if math.IsNaN(c.Cached) && math.IsNaN(c.Awaiting) {
		c.Cached = c.Reserved - c.Live
	}
	if math.IsNaN(c.Outside) {
		c.Outside = c.Used - c.Reserved
	}
	part := func(name string, v float64, meaning string) string {
		if math.IsNaN(v) {
			return ""
		}
		return join(" ", name, event.FormatQuantity(v, "bytes"), meaning)
	}
	outside := "(context and native)"
	if c.Outside < 0 {
		outside = "(below what PyTorch reserves: the accounting is broken)"
	}
	awaiting := part("awaiting", c.Awaiting, "(freed, other streams)")
	if c.Awaiting == 0 {
		awaiting = "" // the usual case, and nothing to read
	}
	free := part("free", c.Free, "")
	if free == "" {
		free = part("free at most", c.Total-c.Used, "") // others on the card were not seen
	}
	if free != "" && !math.IsNaN(c.Total) {
		free += " of " + event.FormatQuantity(c.Total, "bytes")
	}
	return join(", ", part("live", c.Live, ""), awaiting, part("cached", c.Cached, "(reusable)"), part("outside", c.Outside, outside), free)
}

// memoryShort is the card with the least room, or the host's memory where there is no card.
func memoryShort(r worker.Report) string {
	var tightest *worker.CardReport
	for i := range r.Cards {
		c := &r.Cards[i]
		if tightest == nil || c.Free < tightest.Free || math.IsNaN(tightest.Free) && !math.IsNaN(c.Free) {
			tightest = c
		}
	}
	if tightest != nil {
		if text := memoryOf(*tightest); text != "" {
			if len(r.Cards) > 1 {
				text += fmt.Sprintf(" (the tightest of %d GPUs)", len(r.Cards))
			}
			return text
		}
	}
	for _, s := range r.Series {
		if s.Name == "anon" && !math.IsNaN(s.Now) {
			return "host memory " + event.FormatQuantity(s.Now, s.Unit)
		}
	}
	return "memory unknown"
}

func memoryRows(r worker.Report) []row {
	var rows []row
	for _, c := range r.Cards {
		room := ""
		if !math.IsNaN(c.Headroom) {
			room = "headroom at the peak " + event.FormatQuantity(c.Headroom, "bytes")
			if !math.IsNaN(c.Limit) {
				room += " of " + event.FormatQuantity(c.Limit, "bytes")
			}
		}
		name := short(c.UUID)
		if name == "" {
			name = "GPU"
		}
		rows = append(rows, row{name, join("; ", memoryOf(c), room)})
	}
	return rows
}

// seriesRows are the known series, those that were called first.
func seriesRows(all []worker.SeriesReport) []row {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b worker.SeriesReport) int {
		switch {
		case a.Called == b.Called:
			return 0
		case a.Called:
			return -1
		}
		return 1
	})
	var rows []row
	for _, s := range sorted {
		if text := seriesText(s); text != "" {
			rows = append(rows, row{join(" ", s.Name, short(s.GPU)), text})
		}
	}
	if more := len(rows) - maxRows; more > 0 {
		rows = append(rows[:maxRows], row{"…", fmt.Sprintf("%d more, see --json", more)})
	}
	return rows
}

// seriesText is the level of a series, how it moves, and what was concluded.
func seriesText(s worker.SeriesReport) string {
	value := ""
	switch {
	case !math.IsNaN(s.Level):
		value = event.FormatQuantity(s.Level, s.Unit) + " when quiet"
	case !math.IsNaN(s.Now):
		value = event.FormatQuantity(s.Now, s.Unit) + " now"
	default:
		return ""
	}
	g := s.Growth
	switch {
	case s.Called:
		return join(", ", value, growthText(g.Slope, g.Low, g.High, s.Unit), "grows"+prefixed(" since ", minute(s.Onset)))
	case g.Slope == 0 && g.Low == 0 && g.High == 0:
		return value + ", unchanged"
	}
	return join(", ", value, growthText(g.Slope, g.Low, g.High, s.Unit), prefixed("not called: ", s.Lacking))
}

// short is as much of a GPU's uuid as tells the GPUs of a host apart.
func short(uuid string) string {
	if runes := []rune(uuid); len(runes) > 12 {
		return string(runes[:4]) + "…" + string(runes[len(runes)-4:])
	}
	return uuid
}

func quietLine(q worker.QuietReport) string {
	if q.Count == 0 {
		return ""
	}
	kind := "quiet points"
	switch {
	case q.Matched:
		kind = "points at matched load, because the worker never drains"
	case q.Inferred:
		kind = "quiet points, inferred from utilisation or marks; confidence at most 60 %"
	}
	return join(", ", fmt.Sprintf("%d comparable %s over %s h since warm-up", q.Count, kind, rough(q.Hours)), prefixed("newest ", minute(q.Newest)))
}

func missingRows(missing map[string]string) []row {
	var rows []row
	for _, class := range slices.Sorted(maps.Keys(missing)) {
		rows = append(rows, row{class, "needs " + missing[class]})
	}
	return rows
}

// notAssessableShort names the missing sensors, each with the classes that it hides.
func notAssessableShort(missing map[string]string) string {
	if len(missing) == 0 {
		return "every class could be assessed"
	}
	hidden := make(map[string][]string)
	for _, class := range slices.Sorted(maps.Keys(missing)) {
		hidden[missing[class]] = append(hidden[missing[class]], class)
	}
	var parts []string
	for _, sensor := range slices.Sorted(maps.Keys(hidden)) {
		parts = append(parts, "without "+sensor+" "+strings.Join(hidden[sensor], ", "))
	}
	return "not assessable: " + strings.Join(parts, "; ")
}
