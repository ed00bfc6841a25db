package sink

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestInvestigations asks everything of one engine, because starting it and playing seven recordings takes seconds.
func TestInvestigations(t *testing.T) {
	f := startFleet(t)
	t.Run("answers", f.answers)
	t.Run("values are bound", f.valuesAreBound)
	t.Run("empty answers", f.emptyAnswers)
	t.Run("documents", f.documents)
	t.Run("dashboards", f.dashboards)
	t.Run("refusals", f.refusals)
	t.Run("bounds of a reader", f.bounds)
	t.Run("sql", f.sql)
	t.Run("prompt", f.talk)
	t.Run("terminal", f.onTerminal)
}

// What is given is compared, never run: a quote, a brace, a tab and a backslash come through as they are.
func (f fleet) valuesAreBound(t *testing.T) {
	for _, value := range []string{"x' OR 1 = 1 --", `\`, `\t`, "a\tb\nc", "{since:String}", "%", "`", "ü'"} {
		rows := f.rows(t, "SELECT {value:String} AS value, lower(hex({value:String})) AS hex", map[string]string{"value": value})
		if rows[0]["value"] != value || rows[0]["hex"] != fmt.Sprintf("%x", value) {
			t.Errorf("%q came back as %v", value, rows[0])
		}
		if got := f.investigate(t, "stacks", map[string]string{"worker": value}); len(got) != 0 {
			t.Errorf("--worker %q found %d stacks", value, len(got))
		}
	}
}

func (f fleet) emptyAnswers(t *testing.T) {
	for _, test := range []struct {
		args InvestigateCommand
		want string
	}{
		{InvestigateCommand{Name: "peers", Worker: "h200-q", Since: "2026-11-01", Until: "2026-11-02"}, "nothing found between 2026-11-01 00:00 and 2026-11-02 00:00 UTC\nhint: workers of that time: lab/h200-a/chat/0/0, lab/h200-b"},
		{InvestigateCommand{Name: "holders", Incident: "nope"}, "nothing found\nhint: the newest incidents: feed0000held (fragmentation, confirmed)"},
		{InvestigateCommand{Name: "oom", Host: "h200-a", Since: "2026-10-01", Until: "2026-10-02"}, "hint: workers of that time: none\n"},
	} {
		var out, messages bytes.Buffer
		c := test.args
		c.Access, c.Limit, c.Stdout, c.Stderr = f.access, 10, &out, &messages
		if err := c.Run(t.Context()); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		if out.Len() > 0 || !strings.Contains(messages.String(), test.want) {
			t.Errorf("%s: stdout %q, stderr %q, want %q", c.Name, out.String(), messages.String(), test.want)
		}
	}
	var out, messages bytes.Buffer
	c := InvestigateCommand{Access: f.access, Name: "card-budget", Since: "2026-11-01", Until: "2026-11-02", Limit: 2, CSV: true, Stdout: &out, Stderr: &messages}
	if err := c.Run(t.Context()); err != nil || strings.Count(out.String(), "\n") != 3 || messages.String() != "the first 2 rows; --limit gives more\n" {
		t.Errorf("two rows of CSV: %v\n%s%s", err, out.String(), messages.String())
	}
}

func TestInvestigateUsage(t *testing.T) {
	for _, test := range []struct {
		c    InvestigateCommand
		want string
	}{
		{InvestigateCommand{Name: "growth-by-relase"}, `there is no investigation "growth-by-relase"; did you mean growth-by-release?`},
		{InvestigateCommand{Name: "peers"}, "investigate peers: it needs --worker or --slot"},
		{InvestigateCommand{Name: "before"}, "it needs --incident"},
		{InvestigateCommand{Name: "peers", Worker: "a", Release: "b"}, "it takes no --release; it takes --worker, --slot, --since, --until"},
		{InvestigateCommand{Name: "holders", Incident: "a", Since: "1h"}, "it takes no --since; it takes --incident"},
		{InvestigateCommand{Name: "oom", Since: "yesterday"}, `--since: "yesterday" is no age (90m, 6h, 7d, 2w)`},
		{InvestigateCommand{Name: "oom", Until: "1900-01-01"}, "--until: 1900-01-01 is outside the years"},
		{InvestigateCommand{Name: "oom", Since: "2026-11-02", Until: "2026-11-01"}, "is not before --until"},
		{InvestigateCommand{Name: "oom", Limit: -1}, "--limit -1"},
		{InvestigateCommand{Name: "peers", Worker: strings.Repeat("x", 513)}, "longer than 512 bytes"},
	} {
		if test.c.Limit == 0 {
			test.c.Limit = 10
		}
		err := test.c.Run(t.Context())
		coded, ok := err.(interface {
			ExitCode() int
			Hint() string
		})
		if !ok || coded.ExitCode() != 2 || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q and exit code 2", test.c.Name, err, test.want)
		} else if !strings.HasPrefix(coded.Hint(), "for example `lowtide investigate "+test.c.Name+" --") && !strings.HasPrefix(coded.Hint(), "they are growth-by-release, peers") {
			t.Errorf("%s: the hint is %q", test.c.Name, coded.Hint())
		}
	}
}

func TestInvestigationsAreListed(t *testing.T) {
	var out bytes.Buffer
	if err := (&InvestigateCommand{Stdout: &out}).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != len(investigations) || lines < 12 {
		t.Errorf("%d lines for %d investigations", lines, len(investigations))
	}
	for _, i := range investigations {
		if !regexp.MustCompile(`(?m)^` + i.name + ` +` + regexp.QuoteMeta(i.question) + `$`).Match(out.Bytes()) {
			t.Errorf("%s is not listed", i.name)
		}
		var grammar struct {
			Investigate InvestigateCommand `cmd:""`
		}
		if err := parse(&grammar, commandLine.FindAllString(strings.TrimPrefix(i.example(), "lowtide "), -1)); err != nil {
			t.Errorf("the example of %s: %v", i.name, err)
		}
		c := grammar.Investigate
		c.Now = func() time.Time { return tick }
		if _, err := c.bind(i); err != nil {
			t.Errorf("the example of %s: %v", i.name, err)
		}
	}
}

var viewParameter = regexp.MustCompile(`\{([a-z]+):`)

// A question gives its view exactly the parameters that the view has.
func TestQuestionsHaveTheParametersOfTheirViews(t *testing.T) {
	list, err := migrations("lowtide")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range investigations {
		at := -1 // the newest one
		for n, m := range list {
			if strings.HasPrefix(m.statement, "CREATE VIEW IF NOT EXISTS lowtide."+i.view+" AS") || strings.HasPrefix(m.statement, "CREATE OR REPLACE VIEW lowtide."+i.view+" AS") {
				at = n
			}
		}
		if at < 0 {
			t.Errorf("%s: no file makes the view %s", i.name, i.view)
			continue
		}
		var has []string
		for _, m := range viewParameter.FindAllStringSubmatch(list[at].statement, -1) {
			has = append(has, m[1])
		}
		slices.Sort(has)
		takes := i.takes()
		slices.Sort(takes)
		if has = slices.Compact(has); !slices.Equal(has, takes) {
			t.Errorf("%s takes %v, its view %v", i.name, takes, has)
		}
		if !strings.Contains(list[at].statement, "\nCOMMENT '") {
			t.Errorf("the view %s says nothing of itself", i.view)
		}
	}
}

func TestMomentsAreReadAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]string{"90m": "2026-03-01T10:30:00Z", "7d": "2026-02-22T12:00:00Z", "2w": "2026-02-15T12:00:00Z", "1h30m": "2026-03-01T10:30:00Z",
		"2026-11-01": "2026-11-01T00:00:00Z", "2026-11-01 08:00": "2026-11-01T08:00:00Z", "2026-11-01T08:00:00+02:00": "2026-11-01T06:00:00Z", " 0d ": "2026-03-01T12:00:00Z"} {
		if got, err := moment(text, tick); err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%q is %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-5h", "5", "9999999d", "1.5d", "2026-13-01", "now", "999999999h"} {
		if got, err := moment(text, tick); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

func FuzzMoment(f *testing.F) {
	for _, seed := range []string{"7d", "90m", "2026-11-01T00:00:00Z", "-1h", "9223372036854775807ns"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := moment(text, tick); err == nil && (got.Year() < 1900 || got.Year() > 2100) {
			t.Fatalf("%q is %v", text, got)
		}
	})
}
