package notifier

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lowtide/event"
)

// IncidentsCommand is `incidents`: what is open, what is known of it, and what people say of it.
type IncidentsCommand struct {
	List        IncidentsListCommand        `cmd:"" default:"withargs" help:"List incidents, the worst first. This is what 'incidents' alone does."`
	Show        IncidentsShowCommand        `cmd:"" help:"Show one: its card, its growth as a chart, its life and who was told."`
	Acknowledge IncidentsAcknowledgeCommand `cmd:"" help:"Say that you work on it."`
	Resolve     IncidentsResolveCommand     `cmd:"" help:"Say that it is over. The judge still decides by itself, and what is worse is told again."`
	Feedback    IncidentsFeedbackCommand    `cmd:"" help:"Say whether a verdict was right; without an ID, count what was said by class."`
}

// IncidentsListCommand is `incidents list`.
type IncidentsListCommand struct {
	All      bool     `help:"Also those that are over, for 30 days."`
	Class    string   `placeholder:"CLASS" help:"Only this class; here and below a value may end in *."`
	Severity string   `placeholder:"SEVERITY" help:"Only this severity."`
	Cluster  string   `placeholder:"NAME" help:"Only this cluster."`
	Host     string   `placeholder:"NAME" help:"Only this host."`
	Model    string   `placeholder:"NAME" help:"Only this model."`
	Release  string   `placeholder:"NAME" help:"Only this release."`
	Team     string   `placeholder:"NAME" help:"Only this team."`
	Match    []string `placeholder:"KEY=VALUE" help:"As for a silence, for the other keys."`
	JSON     bool     `name:"json" help:"One JSON object a line."`
	wire
}

// Run prints the incidents.
func (c *IncidentsListCommand) Run(ctx context.Context) error {
	wanted, err := c.wanted()
	if err != nil {
		return err
	}
	return c.open(ctx, "incidents", func(_ context.Context, d *docket) error {
		open, over, hidden := 0, 0, 0
		shown := slices.DeleteFunc(slices.Clone(d.cases), func(one *docketCase) bool {
			if len(wanted.Match) > 0 && !wanted.Covers(one.latest, d.now) {
				return true
			}
			if one.open() {
				open++
				return false
			}
			if over++; !c.All {
				hidden++
			}
			return !c.All
		})
		if c.JSON {
			for _, one := range shown {
				if err := c.sayJSON("incident "+one.latest.Incident, one.line(d)); err != nil {
					return err
				}
			}
			return nil
		}
		if len(shown) > 0 {
			if err := incidentTable(c.Stdout, shown); err != nil {
				return err
			}
		}
		return c.foot(open, over, hidden)
	})
}

// foot says what the table does not show.
func (c *IncidentsListCommand) foot(open, over, hidden int) error {
	text := counted(open, "open incident")
	if open == 0 {
		text = "no open incident"
	}
	switch {
	case hidden > 0:
		text += fmt.Sprintf(", and %d that are over: `lowtide incidents --all`", hidden)
	case c.All:
		text += fmt.Sprintf(", %d that are over; those that were over for 30 days are only in the store: lowtide sql \"SELECT time, incident, class, state, severity, subject_key, summary FROM incidents FINAL ORDER BY time DESC LIMIT 100\"", over)
	}
	_, err := fmt.Fprintln(c.Stderr, text)
	return err
}

// wanted is the filter in the form of a silence, which knows how to match.
func (c *IncidentsListCommand) wanted() (Silence, error) {
	match, err := matchOf(c.Match)
	if err != nil {
		return Silence{}, err
	}
	for key, value := range map[string]string{"class": c.Class, "severity": c.Severity, "cluster": c.Cluster, "host": c.Host, "model": c.Model, "release": c.Release, "team": c.Team} {
		if value != "" {
			match[key] = value
		}
	}
	s := Silence{Match: match, Until: time.Unix(1<<40, 0)}
	if len(match) == 0 {
		return s, nil
	}
	return s, s.checkMatch()
}

func incidentTable(out io.Writer, shown []*docketCase) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "INCIDENT\tSEVERITY\tCLASS\tSTATE\tCONFIDENCE\tWHERE\tSINCE\tPEOPLE\tTOLD")
	for _, c := range shown {
		f := c.latest
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%.0f %%\t%s\t%s\t%s\t%s\n", plain(f.Incident), f.Severity, f.Class, c.stateText(), f.Confidence*100, plain(c.place()),
			c.history.First.Time.UTC().Format("2006-01-02 15:04 UTC"), orDash(plain(c.people())), orDash(c.toldWhere()))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print incidents: %w", err)
	}
	return nil
}

func (c *docketCase) stateText() string {
	if c.latest.MaskedRestarts > 0 && c.open() {
		return fmt.Sprintf("%s, masked (%d)", c.latest.State, c.latest.MaskedRestarts)
	}
	return c.latest.State
}

// place is the slot, else what the incident is about, and how many are like it.
func (c *docketCase) place() string {
	where := c.latest.Slot
	if where == "" {
		where = strings.TrimSpace(c.latest.Subject.Kind + " " + c.latest.Subject.Key)
	}
	if c.latest.Alike > 1 {
		where += fmt.Sprintf(" (one of %d alike)", c.latest.Alike)
	}
	return where
}

// people is in a few words who did what.
func (c *docketCase) people() string {
	var parts []string
	if a := c.stance.AcknowledgedFor(c.seen()); a != nil {
		parts = append(parts, "acknowledged by "+a.By)
	} else if a := c.stance.Acknowledged; a != nil && c.open() {
		parts = append(parts, "worse since "+a.By+" acknowledged it")
	}
	if a := c.stance.ResolvedFor(c.seen()); a != nil && c.open() {
		parts = append(parts, "said to be over by "+a.By)
	}
	if len(c.silent) > 0 && c.open() {
		parts = append(parts, "silenced until "+c.silent[0].Until.UTC().Format("2006-01-02 15:04 UTC"))
	}
	if n := len(c.stance.Feedback); n > 0 {
		parts = append(parts, strings.ReplaceAll(string(c.stance.Feedback[n-1].Kind), "_", " "))
	}
	return strings.Join(parts, ", ")
}

// toldWhere names the outputs that told about it, or whose message does.
func (c *docketCase) toldWhere() string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.deliveries)) {
		if c.deliveries[name].Status == told {
			names = append(names, name)
		}
	}
	if c.storm != "" {
		names = append(names, "with "+c.storm)
	}
	return strings.Join(names, ", ")
}

// incidentLine is an incident for programs. What is unknown is absent.
type incidentLine struct {
	Incident       string            `json:"incident"`
	Class          string            `json:"class"`
	Rule           string            `json:"rule,omitzero"`
	State          string            `json:"state"`
	Severity       string            `json:"severity"`
	Confidence     float64           `json:"confidence"`
	Summary        string            `json:"summary"`
	Where          string            `json:"where"`
	Labels         map[string]string `json:"labels"`
	Since          time.Time         `json:"since"`
	Changed        time.Time         `json:"changed"`
	MaskedRestarts int               `json:"masked_restarts,omitzero"`
	Resolution     string            `json:"resolution,omitzero"`
	Acknowledged   *Action           `json:"acknowledged,omitempty"`
	SaidOver       *Action           `json:"said_to_be_over,omitempty"`
	Feedback       []Action          `json:"feedback,omitempty"`
	SilencedUntil  time.Time         `json:"silenced_until,omitzero"`
	Silences       []string          `json:"silences,omitempty"`
	Told           []toldLine        `json:"told,omitempty"`
	ToldWith       string            `json:"told_with,omitzero"` // the incident or digest whose message tells about it

	Actions  []Action         `json:"actions,omitempty"`  // of `incidents show`: all that people did
	Findings []*event.Finding `json:"findings,omitempty"` // of `incidents show`: what the stream still has
}

// toldLine is what one output told last.
type toldLine struct {
	Output   string `json:"output"`
	State    string `json:"state,omitzero"`
	Severity string `json:"severity,omitzero"`
	Channel  string `json:"channel,omitzero"`
	TS       string `json:"ts,omitzero"`
}

func (c *docketCase) line(d *docket) incidentLine {
	f := c.latest
	line := incidentLine{Incident: f.Incident, Class: f.Class, Rule: f.Rule, State: f.State, Severity: f.Severity, Confidence: f.Confidence, Summary: f.Summary,
		Where: c.place(), Labels: labelsOf(Card{Finding: f}), Since: c.history.First.Time.UTC(), Changed: f.Time.UTC(), MaskedRestarts: f.MaskedRestarts,
		Resolution: f.Resolution, Acknowledged: c.stance.AcknowledgedFor(c.seen()), SaidOver: c.stance.ResolvedFor(c.seen()), Feedback: c.stance.Feedback, Told: c.toldLines(), ToldWith: c.storm}
	for _, s := range c.silent {
		line.Silences = append(line.Silences, s.ID)
		line.SilencedUntil = c.silent[0].Until
	}
	return line
}

func (c *docketCase) toldLines() []toldLine {
	var list []toldLine
	for _, name := range slices.Sorted(maps.Keys(c.deliveries)) {
		if one := c.deliveries[name]; one.Status == told {
			line := toldLine{Output: name, State: one.State, Severity: one.Level, Channel: one.Receipt.Channel}
			if slackTime(one.Receipt.TS) != (time.Time{}) { // others keep there what is for themselves
				line.TS = one.Receipt.TS
			}
			list = append(list, line)
		}
	}
	return list
}
