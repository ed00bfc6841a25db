package scorecard

import (
	"cmp"
	"slices"
	"time"

	"lowtide/rules"
)

// ClassScore counts recordings of one class. A recording of which a class is said that was not planted, or of whose healthy workers
// something is said, counts as false for that class, once for each of the two; so does a finding before the trouble began.
type ClassScore struct {
	Class     string  `json:"class"`
	Planted   int     `json:"planted"`
	Right     int     `json:"right"`
	Confirmed int     `json:"confirmed"` // of those that are right
	False     int     `json:"false"`
	Precision float64 `json:"precision"`
	Recall    float64 `json:"recall"`
	F1        float64 `json:"f1"`
	Delay     *Delay  `json:"delay,omitempty"`
}

// Delay is the time from the onset to the first right finding, in hours, over the recordings that got one.
type Delay struct {
	Median float64 `json:"median_hours"`
	P90    float64 `json:"p90_hours"`
	Most   float64 `json:"most_hours"`
}

// Score is what the recordings with a known verdict came to.
type Score struct {
	Recordings int          `json:"recordings"`
	Classes    []ClassScore `json:"classes"`
	MacroF1    float64      `json:"macro_f1"` // the mean over the classes that were planted or said
}

// tally counts what was planted and what was said.
type tally struct {
	of     map[string]*ClassScore
	delays map[string][]float64
	count  int
}

func newTally() *tally {
	return &tally{of: make(map[string]*ClassScore), delays: make(map[string][]float64)}
}

func (t *tally) class(name string) *ClassScore {
	if t.of[name] == nil {
		t.of[name] = &ClassScore{Class: name}
	}
	return t.of[name]
}

// add counts one recording.
func (t *tally) add(one *trial) {
	t.count++
	if want := one.scenario.Class; want != "" {
		c := t.class(want)
		c.Planted++
		if found := one.found(); found != nil {
			c.Right++
			t.delays[want] = append(t.delays[want], max(0, found.first.Sub(one.onset).Hours()))
			if !found.confirmed.IsZero() {
				c.Confirmed++
			}
		}
	}
	said := make(map[string]bool)
	for _, wrong := range one.wrong() {
		said[wrong.class] = true
	}
	for class := range said {
		t.class(class).False++
	}
}

// score works out the ratios. A class of which nothing was planted counts, with the F1 of 0, once it is said.
func (t *tally) score() Score {
	s := Score{Recordings: t.count}
	order := rules.Classes()
	for _, c := range t.of {
		c.Precision, c.Recall = ratio(c.Right, c.Right+c.False), ratio(c.Right, c.Planted)
		if sum := 2*c.Right + c.False + c.Planted - c.Right; sum > 0 {
			c.F1 = 2 * float64(c.Right) / float64(sum)
		}
		c.Delay = delay(t.delays[c.Class])
		s.Classes = append(s.Classes, *c)
		s.MacroF1 += c.F1
	}
	if len(s.Classes) > 0 {
		s.MacroF1 /= float64(len(s.Classes))
	}
	slices.SortFunc(s.Classes, func(a, b ClassScore) int {
		return cmp.Compare(slices.Index(order, a.Class), slices.Index(order, b.Class))
	})
	return s
}

func ratio(part, all int) float64 {
	if all == 0 {
		return 0
	}
	return float64(part) / float64(all)
}

// delay is nil when nothing was found.
func delay(hours []float64) *Delay {
	if len(hours) == 0 {
		return nil
	}
	slices.Sort(hours)
	return &Delay{Median: quantile(hours, 0.5), P90: quantile(hours, 0.9), Most: hours[len(hours)-1]}
}

// quantile is the smallest of the sorted values that at least that part of all does not exceed.
func quantile(sorted []float64, part float64) float64 {
	n := 0
	for n < len(sorted)-1 && float64(n+1) < part*float64(len(sorted))-1e-9 {
		n++
	}
	return sorted[n]
}

// Calm is what was said of workers in which nothing was planted: look-alikes, and neighbours of what is sick.
type Calm struct {
	Recordings int            `json:"recordings"`
	Days       float64        `json:"worker_days"`
	Findings   int            `json:"false_findings"`
	Pages      int            `json:"false_pages"`
	PerDay     float64        `json:"false_findings_per_day"`
	Classes    map[string]int `json:"classes,omitempty"`
}

func (c *Calm) add(one *trial) {
	c.Recordings++
	c.Days += one.days
	for _, wrong := range one.healthy {
		if c.Classes == nil {
			c.Classes = make(map[string]int)
		}
		c.Classes[wrong.class]++
		c.Findings++
		if wrong.page {
			c.Pages++
		}
	}
	if c.Days > 0 {
		c.PerDay = float64(c.Findings) / c.Days
	}
}

// Punctual says how many recordings of one scenario were found in time.
type Punctual struct {
	Scenario string  `json:"scenario"`
	Planted  int     `json:"planted"`
	InTime   int     `json:"in_time"`
	Most     float64 `json:"most_hours"` // of those that were found
}

// punctual counts the recordings of a scenario that were found by their deadline.
func punctual(trials []*trial, scenario string, deadline func(*trial) time.Time) Punctual {
	p := Punctual{Scenario: scenario}
	for _, t := range trials {
		if t.scenario.Name != scenario {
			continue
		}
		p.Planted++
		if found := t.found(); found != nil {
			p.Most = max(p.Most, found.first.Sub(t.onset).Hours())
			if !found.first.After(deadline(t)) {
				p.InTime++
			}
		}
	}
	return p
}

// Mistake is one thing that was said wrongly or not at all.
type Mistake struct {
	Recording string    `json:"recording"` // how it is made again
	Want      string    `json:"want"`
	Got       string    `json:"got"`
	About     string    `json:"about,omitempty"` // planted or healthy
	Page      bool      `json:"page,omitempty"`
	Onset     time.Time `json:"onset,omitzero"`
	Time      time.Time `json:"time,omitzero"`
	Slot      string    `json:"slot,omitempty"`
	Summary   string    `json:"summary,omitempty"`
}

// mistakes lists what is wrong in a recording, in the order of time.
func (t *trial) mistakes() (out []Mistake) {
	base := Mistake{Recording: t.name(), Want: cmp.Or(t.scenario.Class, "none"), Onset: t.onset}
	if t.scenario.Undeclared {
		base.Want = "none (undeclared cache)"
	}
	if !t.isHealthy() && t.found() == nil {
		missed := base
		missed.Got, missed.About = "none", "planted"
		out = append(out, missed)
	}
	for n, one := range t.wrong() {
		m := base
		m.Got, m.Page, m.Time, m.Slot, m.Summary = one.class, one.page, one.first, one.slot, one.summary
		m.About = "planted"
		if n >= len(t.wrong())-len(t.healthy) {
			m.About = "healthy"
			if !t.isHealthy() {
				m.Want = "none"
			}
		}
		out = append(out, m)
	}
	return out
}

// Hidden says how often the reports of workers without a sensor named a class as not assessable, with the sensor.
type Hidden struct {
	Missing string `json:"missing"`
	Class   string `json:"class"`
	Sensor  string `json:"sensor"` // as it should be named
	Workers int    `json:"workers"`
	Told    int    `json:"told"`
	Instead string `json:"instead,omitempty"` // what was named where it was not
}

func hiddenOf(trials []*trial) (out []Hidden) {
	at := make(map[[2]string]int)
	for _, t := range trials {
		for _, b := range t.blind {
			key := [2]string{t.scenario.Sensors, b.class}
			n, known := at[key]
			if !known {
				n = len(out)
				at[key] = n
				out = append(out, Hidden{Missing: t.scenario.Sensors, Class: b.class, Sensor: b.want})
			}
			out[n].Workers++
			if b.told() {
				out[n].Told++
			} else {
				out[n].Instead = cmp.Or(b.got, "nothing")
			}
		}
	}
	slices.SortFunc(out, func(a, b Hidden) int {
		return cmp.Or(cmp.Compare(a.Missing, b.Missing), cmp.Compare(a.Class, b.Class))
	})
	return out
}
