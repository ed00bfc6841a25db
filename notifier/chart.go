package notifier

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"lowtide/event"
)

// Chart is one curve: levels over time, in a unit that people read.
type Chart struct {
	Title  string
	Unit   string // GiB, MiB, KiB, B, %, or empty for a count
	Times  []time.Time
	Values []float64
}

// Limits of a chart in a message: Slack's block data_visualization takes as many points and characters.
const (
	maxChartTitle = 50
	maxChartLabel = 20
)

// seriesWords are what people call a series.
var seriesWords = map[string]string{"live": "Live GPU memory", "outside": "GPU memory outside PyTorch", "anon": "Anonymous host memory", "pinned": "Pinned host memory",
	"fds": "File descriptors", "sockets": "Sockets in CLOSE_WAIT", "threads": "Threads", "graphs": "CUDA-graph pools", "awaiting": "Freed, pending on streams",
	"kv": "KV cache held", "orphan": "Memory of no process"}

// chartOf is the curve of a finding; empty with fewer than two points.
func chartOf(f *event.Finding) Chart {
	of := "ratio" // of the KV cache, whose growth is told as evidence
	if f.Growth != nil {
		of = f.Growth.Unit
	}
	if f.Growth == nil && f.Series != "kv" || len(f.Points) < 2 {
		return Chart{}
	}
	word := seriesWords[f.Series]
	if word == "" {
		word = f.Series
	}
	points := f.Points[:min(len(f.Points), event.MaxPoints)]
	highest := 0.0
	for _, p := range points {
		if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
			return Chart{}
		}
		highest = max(highest, math.Abs(p.Value))
	}
	size, unit := 1.0, ""
	switch of {
	case "bytes":
		unit = "B"
		for _, step := range []struct {
			size float64
			name string
		}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
			if highest >= step.size {
				size, unit = step.size, step.name
				break
			}
		}
	case "ratio":
		size, unit = 0.01, "%"
	}
	c := Chart{Title: clip(strings.TrimSpace(plain(word)+" when quiet"), maxChartTitle), Unit: unit}
	for _, p := range points {
		c.Times = append(c.Times, p.Time)
		c.Values = append(c.Values, math.Round(p.Value/size*1000)/1000)
	}
	return c
}

// Labels are the names of the points, no two the same.
func (c Chart) Labels() []string {
	form := "15:04"
	for _, f := range []string{"15:04", "01-02 15:04", "01-02 15:04:05", "01-02 15:04:05.000"} {
		form = f
		day := c.Times[0].UTC().Format(time.DateOnly) == c.Times[len(c.Times)-1].UTC().Format(time.DateOnly)
		if unique(c.Times, f) && (day || f != "15:04") {
			break
		}
	}
	seen := map[string]bool{}
	labels := make([]string, len(c.Times))
	for i, t := range c.Times {
		label := t.UTC().Format(form)
		if seen[label] {
			label = "#" + strconv.Itoa(i+1)
		}
		seen[label] = true
		labels[i] = clip(label, maxChartLabel)
	}
	return labels
}

func unique(times []time.Time, form string) bool {
	seen := map[string]bool{}
	for _, t := range times {
		text := t.UTC().Format(form)
		if seen[text] {
			return false
		}
		seen[text] = true
	}
	return true
}

// Line is the curve as one line of text: its ends, and a mark of the height of each point between them.
func (c Chart) Line() string {
	if len(c.Values) < 2 {
		return ""
	}
	marks := []rune("▁▂▃▄▅▆▇█")
	low, high := c.Values[0], c.Values[0]
	for _, v := range c.Values {
		low, high = min(low, v), max(high, v)
	}
	var b strings.Builder
	for _, v := range c.Values {
		at := 0
		if high > low {
			at = int(math.Round((v - low) / (high - low) * float64(len(marks)-1)))
		}
		b.WriteRune(marks[at])
	}
	last := len(c.Values) - 1
	return fmt.Sprintf("%s %s %s, %s to %s", c.amount(c.Values[0]), b.String(), c.amount(c.Values[last]),
		c.Times[0].UTC().Format("01-02 15:04"), c.Times[last].UTC().Format("01-02 15:04 UTC"))
}

func (c Chart) amount(v float64) string {
	return strings.TrimSpace(strconv.FormatFloat(v, 'g', 4, 64) + " " + c.Unit)
}
