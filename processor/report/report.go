// Package report owns what a person reads about one worker: a verdict, why, what speaks against it, a plot, and what is not known.
// It refuses to judge, to compute statistics and to read a clock: every word comes from a worker.Report or a finding.
//
// Output rules, the same in every command that prints a report:
//
//   - The first line is the verdict; for an incident with its state, severity and confidence.
//   - A worker that is well takes three lines: verdict and who, why and its memory, what cannot be assessed. They are not wrapped,
//     so that a line is a worker's for grep. Everything else is wrapped at 100 columns.
//   - What is unknown is left out or called unknown; it is never written as a zero.
//   - A forecast is an interval and says that it is a risk indicator. Symptoms are "seen together", with their lag, never "caused by".
//   - There are no colours and no cursor movements. Control characters of text from outside are dropped.
//   - With NO_COLOR, --ascii or a locale that is not UTF-8 every byte is printable ASCII.
//   - A plot with its axes fits into 72 columns and 10 lines.
//   - Times are UTC and event time.
package report

import (
	"fmt"
	"io"
	"strings"

	"lowtide/event"
	"lowtide/processor/worker"
)

// width is the number of columns that a line takes at most.
const width = 100

// Style says what the reader's terminal can show.
type Style struct {
	ASCII bool
}

// StyleOf returns the style for an environment, asked for by getenv: ASCII when it is wanted, with NO_COLOR, and where LC_ALL,
// LC_CTYPE or LANG, the first of them that is set, names no UTF-8 locale.
func StyleOf(ascii bool, getenv func(string) string) Style {
	if ascii || getenv("NO_COLOR") != "" {
		return Style{ASCII: true}
	}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := strings.ToLower(getenv(name)); locale != "" {
			return Style{ASCII: !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")}
		}
	}
	return Style{ASCII: true}
}

// Subject is one process life with the incidents that it had a part in, the worst first.
type Subject struct {
	worker.Report
	Cases []Case
}

// Well says that there is nothing to tell beyond the verdict's word: no incident, and nothing that grows unless it fills what it
// declared.
func (s Subject) Well() bool { return len(s.Cases) == 0 && !strings.HasSuffix(s.Verdict, " grows") }

// Write prints the whole report of one worker.
func Write(out io.Writer, s Subject, style Style) error {
	p := &page{style: style}
	s.write(p)
	return p.flush(out)
}

// WriteShort prints the three lines of a worker that is well.
func WriteShort(out io.Writer, s Subject, style Style) error {
	p := &page{style: style}
	verdict := s.Verdict + " · no finding"
	p.long(0, join(" · ", verdict, s.Slot, s.pid(), s.serves()))
	p.long(2, join(" · ", s.Why, memoryShort(s.Report)))
	p.long(2, join(" · ", notAssessableShort(s.Missing), prefixed("data quality: ", strings.Join(s.Quality, "; ")), strings.Join(s.Asked, "; ")))
	return p.flush(out)
}

// WriteCase prints an incident that belongs to no worker: of a card, a host, a sensor.
func WriteCase(out io.Writer, c Case, style Style) error {
	p := &page{style: style}
	latest := c.latest()
	p.line(0, title(c, ""))
	p.line(2, c.told().Summary)
	p.line(2, c.fate())
	p.table("", []row{{latest.Subject.Kind, latest.Subject.Key}})
	p.evidence(c, Subject{})
	p.table("Not assessable", missingRows(latest.NotAssessable))
	p.list("Advice", latest.Advice)
	return p.flush(out)
}

// WriteHeading prints the line that stands before the reports of one recording.
func WriteHeading(out io.Writer, text string, style Style) error {
	p := &page{style: style}
	p.long(0, "── "+text+" "+strings.Repeat("─", max(2, width-4-len([]rune(text)))))
	return p.flush(out)
}

func (s Subject) write(p *page) {
	if len(s.Cases) == 0 {
		p.line(0, join(" · ", s.Verdict, "no finding"))
		p.line(2, s.Why)
	}
	for i, c := range s.Cases {
		if i > 0 {
			p.blank()
			p.line(0, "and "+title(c, s.Key))
		} else {
			p.line(0, title(c, s.Key))
		}
		p.line(2, c.told().Summary)
		p.line(2, c.fate())
		if i == 0 {
			p.table("", s.who())
		} else if kind := c.latest().Subject.Kind; kind != "worker" {
			p.table("", []row{{kind, c.latest().Subject.Key}})
		}
		p.evidence(c, s)
	}
	if len(s.Cases) == 0 {
		p.table("", s.who())
		p.plot(s.Report, nil)
	} else {
		p.table("The worker by itself", []row{{"verdict", join(": ", s.Verdict, s.Why)}})
	}
	p.table("Memory now", memoryRows(s.Report))
	p.table("Series", seriesRows(s.Series))
	p.table("Quiet points", []row{{"compared", quietLine(s.Quiet)}})
	p.list("What would be needed to be surer", s.Lacking)
	missing := map[string]string{}
	for class, sensor := range s.Missing {
		missing[class] = sensor
	}
	for _, c := range s.Cases {
		for class, sensor := range c.latest().NotAssessable {
			missing[class] = sensor
		}
	}
	p.table("Not assessable", missingRows(missing))
	p.list("Data quality", s.Quality)
	p.list("Asked for", s.Asked)
	for _, c := range s.Cases {
		if c.Open() {
			p.list("Advice for "+c.latest().Class, c.told().Advice)
		}
	}
}

// pid is "pid 4242", or nothing.
func (s Subject) pid() string {
	if pid := s.Who.GetPid(); pid != 0 {
		return fmt.Sprintf("pid %d", pid)
	}
	return ""
}

func (s Subject) serves() string {
	return join(" ", s.Who.GetModel(), s.Who.GetRelease())
}

// who are the lines that say which process it is: only what is known.
func (s Subject) who() []row {
	w := s.Who
	process := join(", ", s.Slot, s.pid(), w.GetRole())
	if w != nil && w.Rank != nil {
		process = join(", ", process, fmt.Sprintf("rank %d", *w.Rank))
	}
	engine := w.GetEngine()
	if version := s.Config.GetEngineVersion(); version != "" {
		engine = join(" ", engine, version)
	}
	host, seen := "", ""
	if s.Host != nil {
		host = event.HostKey(s.Host)
	}
	if !s.First.IsZero() && !s.Last.IsZero() {
		seen = minute(s.First) + " to " + minute(s.Last) + ", " + duration(s.Last.Sub(s.First))
	}
	return []row{
		{"worker", process},
		{"model", w.GetModel()},
		{"release", w.GetRelease()},
		{"host", join(", ", host, strings.Join(w.GetGpuUuids(), ", "))},
		{"engine", join(", ", engine, prefixed("torch ", s.Config.GetTorchVersion()), s.Config.GetAllocConf())},
		{"seen", seen},
		{"ready", minute(s.Ready)},
	}
}
