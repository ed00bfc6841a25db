package sink

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"lowtide/event"
	"lowtide/processor/broker"
)

// InvestigateCommand is `lowtide investigate [NAME]`: a saved query of the store, with its parameters bound.
type InvestigateCommand struct {
	Access
	JSON bool `name:"json" xor:"form" help:"One JSON object a row, numbers in base units."`
	CSV  bool `name:"csv" xor:"form" help:"CSV with a line of names."`

	Worker   string `placeholder:"WORKER" help:"A process id, or a part of a slot or of a pod's name; a host is a part of its slots."`
	Slot     string `placeholder:"SLOT" help:"A whole slot: cluster/host/unit/engine_index/rank."`
	Incident string `placeholder:"ID" help:"The incident of a card, or how it begins."`
	Release  string `placeholder:"RELEASE" help:"Only workers of this release."`
	Host     string `placeholder:"HOST" help:"Only this host, without its cluster."`
	Since    string `placeholder:"TIME" help:"Begin: an age such as 6h or 7d, a day 2026-11-01, or a time 2026-11-01T08:00:00Z. The default depends on the question."`
	Until    string `placeholder:"TIME" help:"End, in the same forms; default: now."`
	Limit    int    `default:"200" placeholder:"ROWS" help:"Most rows of an answer."`
	Name     string `arg:"" optional:"" help:"Which question; without it they are listed."`

	Now    func() time.Time `kong:"-"` // nil: the clock
	Stdout io.Writer        `kong:"-"`
	Stderr io.Writer        `kong:"-"`
}

// Run answers the question, or lists the questions that there are.
func (c *InvestigateCommand) Run(ctx context.Context) error {
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Name == "" {
		return writeInvestigations(c.Stdout)
	}
	i, err := lookUp(c.Name)
	if err != nil {
		return err
	}
	bound, err := c.bind(i)
	if err != nil {
		return err
	}
	format, columns := "JSONCompactEachRowWithNamesAndTypes", i.columns
	switch {
	case c.JSON:
		format, columns = "JSONEachRow", ""
	case c.CSV:
		format, columns = "CSVWithNames", ""
	}
	var out bytes.Buffer
	if err := c.request(ctx, question{query: i.query(columns), format: format, parameters: bound,
		settings: map[string]string{"output_format_json_quote_64bit_integers": "0"}}, &out); err != nil {
		return err
	}
	rows := bytes.Count(out.Bytes(), []byte("\n"))
	switch {
	case c.JSON:
		_, err = c.Stdout.Write(out.Bytes())
	case c.CSV:
		rows--
		_, err = c.Stdout.Write(out.Bytes())
	default:
		var a answer
		if a, err = readAnswer(out.Bytes()); err != nil {
			return err
		}
		if rows = len(a.rows); rows > 0 {
			err = a.write(c.Stdout)
		}
	}
	if err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	c.remark(ctx, i, bound, rows)
	return nil
}

// bind checks that the question takes what was given and has what it needs.
func (c *InvestigateCommand) bind(i investigation) (map[string]string, error) {
	wrong := func(what string) error {
		return &broker.Failure{What: "investigate " + i.name + ": " + what, Remedy: "for example `" + i.example() + "`", Code: 2}
	}
	given := map[string]string{"worker": c.Worker, "slot": c.Slot, "incident": c.Incident, "release": c.Release, "host": c.Host, "since": c.Since, "until": c.Until}
	takes := i.takes()
	for _, name := range []string{"worker", "slot", "incident", "release", "host", "since", "until"} {
		if given[name] != "" && !slices.Contains(takes, name) {
			return nil, wrong("it takes no --" + name + "; it takes --" + strings.Join(takes, ", --"))
		}
		if len(given[name]) > 512 {
			return nil, wrong("--" + name + " is longer than 512 bytes")
		}
	}
	if len(i.needs) > 0 && !slices.ContainsFunc(i.needs, func(name string) bool { return given[name] != "" }) {
		return nil, wrong("it needs --" + strings.Join(i.needs, " or --"))
	}
	if c.Limit < 1 || c.Limit > 1_000_000 {
		return nil, wrong("--limit " + strconv.Itoa(c.Limit) + " is not within 1 and 1,000,000")
	}
	bound := map[string]string{"rows": strconv.Itoa(c.Limit)}
	for _, name := range takes {
		bound[name] = given[name]
	}
	if i.window == 0 {
		return bound, nil
	}
	now := c.Now()
	since, until := now.Add(-i.window), now
	var err error
	if c.Until != "" {
		if until, err = moment(c.Until, now); err != nil {
			return nil, wrong("--until: " + err.Error())
		}
		since = until.Add(-i.window)
	}
	if c.Since != "" {
		if since, err = moment(c.Since, now); err != nil {
			return nil, wrong("--since: " + err.Error())
		}
	}
	if !since.Before(until) {
		return nil, wrong("--since " + stamp(since) + " is not before --until " + stamp(until))
	}
	bound["since"], bound["until"] = stamp(since), stamp(until)
	return bound, nil
}

// remark says on stderr what an empty answer may mean, and when rows were left out.
func (c *InvestigateCommand) remark(ctx context.Context, i investigation, bound map[string]string, rows int) {
	if rows >= c.Limit {
		fmt.Fprintf(c.Stderr, "the first %d rows; --limit gives more\n", c.Limit)
	}
	if rows > 0 {
		return
	}
	where := ""
	if i.window > 0 {
		where = " between " + bound["since"][:16] + " and " + bound["until"][:16] + " UTC"
	}
	fmt.Fprintf(c.Stderr, "nothing found%s\n", where)
	query, what := "", ""
	switch {
	case bound["incident"] != "":
		query, what = "SELECT concat(incident, ' (', class, ', ', state, ')') AS name FROM incidents FINAL ORDER BY time DESC LIMIT 12", "the newest incidents"
	case i.window > 0 && (bound["worker"] != "" || bound["slot"] != "" || bound["host"] != "" || bound["release"] != ""):
		query, what = `SELECT slot AS name FROM worker_samples WHERE time >= {since:DateTime64(3, 'UTC')} AND time < {until:DateTime64(3, 'UTC')}
			GROUP BY slot ORDER BY slot LIMIT 12`, "workers of that time"
	default:
		return
	}
	var out strings.Builder
	if err := c.request(ctx, question{query: query, format: "TabSeparatedRaw", parameters: bound}, &out); err != nil {
		return // the answer stands, only the hint is missing
	}
	names := strings.TrimSpace(out.String())
	if names == "" {
		names = "none"
	}
	fmt.Fprintf(c.Stderr, "hint: %s: %s\n", what, printable(strings.ReplaceAll(names, "\n", ", ")))
}

// moment reads an age, a day or a time; days and times without a zone are UTC.
func moment(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	for _, form := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.Parse(form, text); err == nil {
			if t.Year() < 1971 || t.Year() > 2100 {
				return time.Time{}, fmt.Errorf("%s is outside the years 1971 to 2100", text)
			}
			return t, nil
		}
	}
	digits, unit := strings.TrimRight(text, "dw"), time.Duration(0)
	switch strings.TrimPrefix(text, digits) {
	case "d":
		unit = 24 * time.Hour
	case "w":
		unit = 7 * 24 * time.Hour
	}
	age, err := time.ParseDuration(text)
	if n, notWhole := strconv.Atoi(digits); unit > 0 && notWhole == nil && n >= 0 && n <= 4000 {
		age, err = time.Duration(n)*unit, nil
	}
	if err != nil || age < 0 || age > 30_000*24*time.Hour {
		return time.Time{}, fmt.Errorf("%q is no age (90m, 6h, 7d, 2w), day (2026-11-01) or time (2026-11-01T08:00:00Z)", text)
	}
	return now.Add(-age), nil
}

func lookUp(name string) (investigation, error) {
	var names []string
	for _, i := range investigations {
		if i.name == name || i.view == name {
			return i, nil
		}
		names = append(names, i.name)
	}
	what := "there is no investigation " + strconv.Quote(name)
	if near := event.Nearest(name, names); near != "" {
		what += "; did you mean " + near + "?"
	}
	return investigation{}, &broker.Failure{What: what, Remedy: "they are " + strings.Join(names, ", "), Code: 2}
}

// writeInvestigations lists the questions, one a line.
func writeInvestigations(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, i := range investigations {
		fmt.Fprintf(w, "%s\t%s\n", i.name, i.question)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write list: %w", err)
	}
	return nil
}
