package backtest

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/rules"
)

// maxListed is how many incidents a list for people has.
const maxListed = 20

// result is the answer, for programs as it stands.
type result struct {
	From        time.Time   `json:"from"`
	To          time.Time   `json:"to"`
	Lead        string      `json:"lead"`
	Oldest      time.Time   `json:"oldest,omitzero"` // where the history begins only within the time
	Source      string      `json:"source"`
	Rules       []string    `json:"files"`
	Against     string      `json:"against"` // active, or a file
	Hosts       int         `json:"hosts"`
	Workers     int         `json:"workers"`
	Tallies     []*tally    `json:"rules"`
	Silent      []string    `json:"silent"` // rules of the files that said nothing
	Incidents   []*incident `json:"incidents"`
	Comparison  pairing     `json:"comparison"`
	Events      int         `json:"events"`
	Samples     int         `json:"worker_samples"`
	Seconds     float64     `json:"seconds"`
	CPUSeconds  float64     `json:"cpu_seconds"` // of judging
	Evaluations uint64      `json:"evaluations"` // of conditions

	lead time.Duration
	pack *rules.Pack
	mine map[string]bool
}

// compare fills in what was said, and how that differs.
func (r *result) compare(tried, active []*incident) {
	r.Incidents = tried
	r.Comparison = pair(tried, active, r.To)
	r.Tallies = tallies(tried, active, r.Comparison)
	for _, t := range r.Tallies {
		t.Tried = r.mine[t.Rule]
	}
	slices.SortFunc(r.Tallies, func(a, b *tally) int {
		if a.Tried != b.Tried {
			if a.Tried {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Rule, b.Rule)
	})
	r.Silent = []string{}
	for _, rule := range r.pack.Rules {
		if r.mine[rule.ID] && rule.Enabled && !slices.ContainsFunc(r.Tallies, func(t *tally) bool { return t.Rule == rule.ID && t.Incidents > 0 }) {
			r.Silent = append(r.Silent, rule.ID)
		}
	}
}

func (r *result) printJSON(w io.Writer) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnwritten, err)
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("%w: %w", errUnwritten, err)
	}
	return nil
}

func (r *result) print(w io.Writer) error {
	var b strings.Builder
	against := "what the active rules said"
	if r.Against != "active" {
		against = names([]string{r.Against})
	}
	before := ""
	if r.lead > 0 {
		before = " (and " + short(r.lead) + " before)"
	}
	fmt.Fprintf(&b, "%s from %s to %s%s, against %s: %s, %s, from %s\n\n", names(r.Rules), stamp(r.From), stamp(r.To), before, against, count(r.Hosts, "host"), count(r.Workers, "worker"), r.Source)
	r.table(&b)
	if len(r.Silent) > 0 {
		fmt.Fprintf(&b, "said nothing: %s\n", strings.Join(r.Silent, ", "))
	}
	list(&b, "new", r.Comparison.New)
	list(&b, "gone", r.Comparison.Gone)
	for i, c := range r.Comparison.Changed {
		if i == 0 {
			b.WriteString("\nanother severity:\n")
		}
		if i == maxListed {
			fmt.Fprintf(&b, "  and %d more; --json has all\n", len(r.Comparison.Changed)-i)
			break
		}
		fmt.Fprintf(&b, "  %s, was %s\n", line(c.Incident), c.Was)
	}
	r.cost(&b)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("%w: %w", errUnwritten, err)
	}
	return nil
}

func (r *result) table(b *strings.Builder) {
	if len(r.Tallies) == 0 {
		b.WriteString("nothing would have been said, and nothing was\n")
		return
	}
	other := "ACTIVE"
	if r.Against != "active" {
		other = "OTHER"
	}
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "RULE\tCLASS\tFINDINGS\tINCIDENTS\tPAGES\tTICKETS\tWORKERS\tFIRST\tLAST\t%s\tNEW\tGONE\tSAME\n", other)
	for _, t := range r.Tallies {
		name := t.Rule
		if t.Tried {
			name += " *"
		}
		if t.Shadow {
			name += " (shadow)"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%d\t%d\t%d\t%d\n", name, t.Class, t.Findings, t.Incidents, t.Pages, t.Tickets, t.Workers, moment(t.First), moment(t.Last), t.Active, t.New, t.Gone, t.Same)
	}
	table.Flush() // into memory
	if len(r.mine) > 0 {
		fmt.Fprintf(b, "* of %s\n", names(r.Rules))
	}
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("01-02 15:04")
}

func list(b *strings.Builder, title string, all []*incident) {
	for i, in := range all {
		if i == 0 {
			fmt.Fprintf(b, "\n%s:\n", title)
		}
		if i == maxListed {
			fmt.Fprintf(b, "  and %d more; --json has all\n", len(all)-i)
			return
		}
		fmt.Fprintf(b, "  %s\n", line(in))
	}
}

// line is an incident in one.
func line(in *incident) string {
	name := in.Rule
	if in.Rule != in.Class {
		name += " (" + in.Class + ")"
	}
	end := ""
	if !in.ended.IsZero() {
		end = ", resolved " + moment(in.ended)
	}
	return fmt.Sprintf("%s  %s %s, %s%s  %s: %s", moment(in.Opened), name, in.State, in.Severity, end, in.Key, in.Summary)
}

// cost says what it took.
func (r *result) cost(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s, %s in %.1f s", count(r.Events, "event"), count(r.Samples, "worker-sample"), r.Seconds)
	if r.Seconds > 0 {
		fmt.Fprintf(b, ", %.0f a second", float64(r.Samples)/r.Seconds)
	}
	if r.CPUSeconds > 0 && r.Evaluations > 0 && r.Samples > 0 {
		fmt.Fprintf(b, "; judging took %.2f s of a core, %.1f µs a worker-sample, %.2f ms for 1000 of %d evaluations", r.CPUSeconds, r.CPUSeconds*1e6/float64(r.Samples), r.CPUSeconds*1e6/float64(r.Evaluations), r.Evaluations)
	}
	b.WriteString("\n")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// short writes a duration without its zeros.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
