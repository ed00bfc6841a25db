package notifier

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"lowtide/event"
	"lowtide/processor/broker"
)

// act writes what a person did, on what the person could see. Whoever works on an incident, or says that it is over, says it of the
// message that tells about it too, as far as that says nothing worse: it is the message of which people are reminded.
func act(ctx context.Context, d *docket, c *docketCase, kind ActionKind, by, note string) error {
	one := Action{Kind: kind, By: me(by), Via: "cli", At: d.now, Note: note}.On(c.seen())
	both := []Action{one}
	if c.storm != "" && (kind == Acknowledge || kind == Resolve) {
		home := one
		home.Incident = c.storm
		both = []Action{home, one} // the incident last: until it says so, the command can be repeated
	}
	for _, one := range both {
		if _, err := d.actions.Add(ctx, one); err != nil {
			return broker.Explain("write what you did", err)
		}
	}
	return nil
}

// elsewhere says whose message tells about the incident, when it has none of its own.
func (c *docketCase) elsewhere(d *docket) string {
	if c.storm == "" {
		return ""
	}
	text := "; people read of it in the message of " + c.storm
	for _, home := range d.cases {
		if home.latest.Incident == c.storm && !(Action{}).On(c.seen()).Meant(home.seen()) {
			text += ", which says worse of others and is still to be acknowledged"
		}
	}
	return text
}

// IncidentsAcknowledgeCommand is `incidents acknowledge`.
type IncidentsAcknowledgeCommand struct {
	ID      string `arg:"" help:"ID of the incident; its beginning will do."`
	Message string `short:"m" placeholder:"TEXT" help:"What you are about to do."`
	By      string `env:"LOWTIDE_USER" placeholder:"NAME" help:"Who acknowledges; default: your account's name."`
	wire
}

// Run notes that a person works on the incident. What is over needs nobody.
func (c *IncidentsAcknowledgeCommand) Run(ctx context.Context) error {
	note, err := reason("--message", c.Message, false)
	if err != nil {
		return err
	}
	return c.openOne(ctx, "incidents acknowledge", c.ID, func(ctx context.Context, d *docket, one *docketCase) error {
		id := one.latest.Incident
		if !one.open() {
			return &broker.Failure{What: "incidents acknowledge: " + id + " is over since " + clock(one.latest.Time), Remedy: "`lowtide incidents` lists what is open"}
		}
		before := one.stance.AcknowledgedFor(one.seen())
		if before != nil && before.By == me(c.By) && note == "" {
			return c.say("%s was acknowledged by you at %s already", id, clock(before.At))
		}
		if err := act(ctx, d, one, Acknowledge, c.By, note); err != nil {
			return err
		}
		if before != nil && before.By != me(c.By) {
			return c.say("%s is acknowledged by %s, and was by %s at %s", id, me(c.By), plain(before.By), clock(before.At))
		}
		return c.say("%s is acknowledged by %s: nobody is reminded of it unless it becomes worse%s", id, me(c.By), one.elsewhere(d))
	})
}

// IncidentsResolveCommand is `incidents resolve`.
type IncidentsResolveCommand struct {
	ID      string `arg:"" help:"ID of the incident; its beginning will do."`
	Message string `short:"m" placeholder:"WHY" help:"Why it is over."`
	By      string `env:"LOWTIDE_USER" placeholder:"NAME" help:"Who says so; default: your account's name."`
	wire
}

// Run notes that a person says it is over.
func (c *IncidentsResolveCommand) Run(ctx context.Context) error {
	note, err := reason("--message", c.Message, true)
	if err != nil {
		return err
	}
	return c.openOne(ctx, "incidents resolve", c.ID, func(ctx context.Context, d *docket, one *docketCase) error {
		id := one.latest.Incident
		if !one.open() {
			text := "incidents resolve: the judge resolved " + id + " at " + clock(one.latest.Time)
			if one.latest.Resolution != "" {
				text += ": " + one.latest.Resolution
			}
			return &broker.Failure{What: text, Remedy: "there is nothing left to do; `lowtide incidents feedback " + id + " --was-right` or --not-a-leak says what you think of it"}
		}
		if err := act(ctx, d, one, Resolve, c.By, note); err != nil {
			return err
		}
		return c.say("%s is said to be over by %s: nobody is reminded of it unless it becomes worse. The judge goes on by itself and resolves it when that is proven%s", id, me(c.By), one.elsewhere(d))
	})
}

// IncidentsFeedbackCommand is `incidents feedback`.
type IncidentsFeedbackCommand struct {
	ID       string `arg:"" optional:"" help:"ID of the incident; its beginning will do. Without it what was said is counted by class."`
	WasRight bool   `xor:"word" help:"The verdict was right."`
	NotALeak bool   `name:"not-a-leak" xor:"word" help:"The verdict was wrong."`
	Message  string `short:"m" placeholder:"TEXT" help:"What it was instead, or how you know."`
	By       string `env:"LOWTIDE_USER" placeholder:"NAME" help:"Who says so; default: your account's name."`
	JSON     bool   `name:"json" help:"The count as one JSON object a line."`
	wire
}

// Run notes feedback, or counts it.
func (c *IncidentsFeedbackCommand) Run(ctx context.Context) error {
	note, err := reason("--message", c.Message, false)
	switch {
	case err != nil:
		return err
	case c.ID == "" && (c.WasRight || c.NotALeak || note != ""):
		return &broker.Failure{What: "incidents feedback: feedback on what?", Remedy: "name the incident: lowtide incidents feedback ID --was-right", Code: 2}
	case c.ID != "" && c.WasRight == c.NotALeak:
		return &broker.Failure{What: "incidents feedback: was it right or not?", Remedy: "say one of --was-right and --not-a-leak", Code: 2}
	}
	kind := WasRight
	if c.NotALeak {
		kind = NotALeak
	}
	const command = "incidents feedback"
	if c.ID == "" {
		return c.open(ctx, command, func(_ context.Context, d *docket) error { return c.count(d) })
	}
	return c.openOne(ctx, command, c.ID, func(ctx context.Context, d *docket, one *docketCase) error {
		if err := act(ctx, d, one, kind, c.By, note); err != nil {
			return err
		}
		return c.say("%s: %s, says %s; `lowtide incidents feedback` counts it under %s", one.latest.Incident, strings.ReplaceAll(string(kind), "_", " "), me(c.By), one.latest.Class)
	})
}

// opinion counts what people said of the verdicts of one class. An incident counts once, by the latest word.
type opinion struct {
	Class      string `json:"class"`
	Right      int    `json:"right"`
	Wrong      int    `json:"wrong"`
	Unanswered int    `json:"unanswered"`
}

// opinions counts by class, what was said most often to be wrong first. Feedback on incidents that the outbox has forgotten counts too.
func (d *docket) opinions() []opinion {
	by := map[string]*opinion{}
	of := func(class string) *opinion {
		class = cmp.Or(class, "unknown")
		if by[class] == nil {
			by[class] = &opinion{Class: class}
		}
		return by[class]
	}
	said := map[string]bool{}
	classes := map[string]string{}
	for _, c := range d.cases {
		classes[c.latest.Incident] = c.latest.Class
	}
	for incident, actions := range d.actions.All() {
		feedback := Standing(actions).Feedback
		if len(feedback) == 0 {
			continue
		}
		said[incident] = true
		last := feedback[len(feedback)-1]
		one := of(cmp.Or(classes[incident], last.Class))
		if last.Kind == WasRight {
			one.Right++
		} else {
			one.Wrong++
		}
	}
	for _, c := range d.cases {
		if !said[c.latest.Incident] && c.latest.Severity != event.Info {
			of(c.latest.Class).Unanswered++
		}
	}
	var all []opinion
	for _, one := range by {
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b opinion) int {
		return cmp.Or(b.Wrong-a.Wrong, b.Right-a.Right, strings.Compare(a.Class, b.Class))
	})
	return all
}

func (c *IncidentsFeedbackCommand) count(d *docket) error {
	all := d.opinions()
	if c.JSON {
		for _, one := range all {
			if err := c.sayJSON("feedback", one); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(c.Stderr, "no incident and no feedback yet")
		return err
	}
	table := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "CLASS\tRIGHT\tWRONG\tUNANSWERED\t")
	for _, one := range all {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t\n", one.Class, one.Right, one.Wrong, one.Unanswered)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print feedback: %w", err)
	}
	return nil
}
