package scorecard

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// write prints the tables, the promises first and what went wrong last.
func (r *Result) write(out io.Writer) error {
	p := &printer{out: out}
	p.targets(r)
	p.classes(r)
	p.calm(r)
	p.hidden(r)
	p.reliability(r)
	p.real(r)
	p.mistakes(r)
	return p.err
}

// printer keeps the first error.
type printer struct {
	out io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format+"\n", args...)
	}
}

// table prints rows of cells that are separated by tabs, under a title.
func (p *printer) table(title, head string, rows []string) {
	if len(rows) == 0 || p.err != nil {
		return
	}
	p.line("%s", title)
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  "+head)
	for _, row := range rows {
		fmt.Fprintln(t, "  "+row)
	}
	if err := t.Flush(); p.err == nil {
		p.err = err
	}
	p.line("")
}

func (p *printer) targets(r *Result) {
	var rows []string
	for _, t := range r.Targets {
		met := "met"
		if !t.Met {
			met = "MISSED"
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s", t.Name, t.Want, t.Got, met))
	}
	p.table("Targets", "TARGET\tWANTED\tMEASURED\t", rows)
}

func (p *printer) classes(r *Result) {
	var rows []string
	for _, c := range r.Score.Classes {
		took := "\t\t"
		if c.Delay != nil {
			took = fmt.Sprintf("%.2f\t%.2f\t%.2f", c.Delay.Median, c.Delay.P90, c.Delay.Most)
		}
		rows = append(rows, fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%.3f\t%.3f\t%.3f\t%s", c.Class, c.Planted, c.Right, c.Confirmed, c.False, c.Precision, c.Recall, c.F1, took))
	}
	rows = append(rows, fmt.Sprintf("macro\t\t\t\t\t\t\t%.4f\t\t\t", r.Score.MacroF1))
	p.table(fmt.Sprintf("Simulated recordings: %d, seeds %s; hours from the onset to the finding", r.Score.Recordings, r.Seeds),
		"CLASS\tPLANTED\tRIGHT\tCONFIRMED\tFALSE\tPRECISION\tRECALL\tF1\tMEDIAN\tP90\tMOST", rows)
}

func (p *printer) calm(r *Result) {
	row := func(name string, c Calm) string {
		return fmt.Sprintf("%s\t%d\t%.1f\t%d\t%d\t%.4f\t%s", name, c.Recordings, c.Days, c.Findings, c.Pages, c.PerDay, counts(c.Classes))
	}
	var rows []string
	if r.Healthy.Days > 0 {
		rows = append(rows, row("look-alikes and neighbours", r.Healthy))
	}
	if r.Undeclared.Days > 0 {
		rows = append(rows, row("undeclared caches that fill for longer than 3 h", r.Undeclared))
	}
	p.table("Healthy workers", "WORKERS\tRECORDINGS\tDAYS\tFALSE\tPAGES\tFALSE A DAY\tCLASSES", rows)
}

func counts(of map[string]int) string {
	var all []string
	for _, class := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("%s %d", class, of[class]))
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

func (p *printer) hidden(r *Result) {
	var rows []string
	for _, h := range r.Hidden {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d of %d\t%s", h.Missing, h.Class, h.Sensor, h.Told, h.Workers, h.Instead))
	}
	p.table("What a missing sensor hides: workers whose report says that the class is not assessable, and which sensor is missing",
		"SENSORS\tCLASS\tSENSOR\tTOLD\tINSTEAD", rows)
}

func (p *printer) reliability(r *Result) {
	for _, t := range r.Confidence {
		var rows []string
		for _, b := range t.Bins {
			rows = append(rows, fmt.Sprintf("%.2f to %.2f\t%d\t%.3f\t%.3f", b.From, b.To, b.Findings, b.Predicted, b.Right))
		}
		p.table(fmt.Sprintf("Confidence of %s findings, undeclared caches among them; Brier score %.4f", t.State, t.Brier), "CONFIDENCE\tFINDINGS\tPREDICTED\tRIGHT", rows)
	}
}

func (p *printer) real(r *Result) {
	var rows []string
	for _, v := range r.Real {
		verdict := "right"
		if !v.Right {
			verdict = "WRONG"
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s", v.Recording, cmp.Or(v.Want, "none"), cmp.Or(strings.Join(v.Got, " "), "none"), verdict))
	}
	p.table("Real recordings", "RECORDING\tWANTED\tSAID\t", rows)
}

func (p *printer) mistakes(r *Result) {
	var rows []string
	for _, m := range r.Mistakes {
		got := m.Got
		if m.Page {
			got += " (page)"
		}
		after := ""
		if !m.Onset.IsZero() && !m.Time.IsZero() {
			after = fmt.Sprintf("%+.2f h", m.Time.Sub(m.Onset).Hours())
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", m.Recording, m.Want, got, m.About, after, m.Summary))
	}
	p.table("What was said wrongly or not at all", "RECORDING\tWANTED\tSAID\tOF\tAFTER ONSET\tSUMMARY", rows)
}
