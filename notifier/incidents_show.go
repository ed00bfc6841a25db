package notifier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/report"
)

// maxTransitions bounds how many findings of an incident are read, and maxLife how many of its moments are shown.
const (
	maxTransitions = 5000
	maxLife        = 40
)

// IncidentsShowCommand is `incidents show`.
type IncidentsShowCommand struct {
	ID    string `arg:"" help:"ID of the incident; its beginning will do."`
	JSON  bool   `name:"json" help:"As one JSON object, with its findings and what people did."`
	ASCII bool   `name:"ascii" help:"The chart in ASCII; also with NO_COLOR or a locale that is not UTF-8."`
	wire
}

// Run prints the incident.
func (c *IncidentsShowCommand) Run(ctx context.Context) error {
	return c.openOne(ctx, "incidents show", c.ID, func(ctx context.Context, d *docket, one *docketCase) error {
		findings, more, err := d.transitions(ctx, one.latest)
		if err != nil {
			return err
		}
		if more {
			fmt.Fprintf(c.Stderr, "only the first %d findings are read; the store has all: %s\n", maxTransitions, findingsQuery(one.latest.Incident))
		}
		if c.JSON {
			line := one.line(d)
			line.Actions, line.Findings = d.actions.Of(one.latest.Incident), findings
			return c.sayJSON("incident "+line.Incident, line)
		}
		return c.print(d, one, findings)
	})
}

func (c *IncidentsShowCommand) print(d *docket, one *docketCase, findings []*event.Finding) error {
	drawn := one.latest
	if len(drawn.Points) < 2 && one.history.Case != nil {
		drawn = one.history.Case
	}
	card := one.card(Hints{Flags: c.flags()})
	card.Chart = Chart{} // it is drawn in full below
	if err := c.say("%s", strings.TrimRight(renderText(card, "", NewTerminal(c.Stdout).colour), "\n")); err != nil {
		return err
	}
	if err := report.WriteLevels(c.Stdout, drawn, report.StyleOf(c.ASCII, os.Getenv)); err != nil {
		return err
	}
	if err := c.say("\nLife"); err != nil {
		return err
	}
	for _, line := range lifeOf(findings, d.actions.Of(one.latest.Incident), one.silent) {
		if err := c.say("  %s", plain(line)); err != nil {
			return err
		}
	}
	if len(findings) == 0 {
		fmt.Fprintf(c.Stderr, "the stream of findings no longer has any of this incident; the store does: %s\n", findingsQuery(one.latest.Incident))
	}
	if err := c.say("\nTold"); err != nil {
		return err
	}
	for _, line := range one.toldText() {
		if err := c.say("  %s", plain(line)); err != nil {
			return err
		}
	}
	return nil
}

// flags are what the commands on the card need where the folder is not the usual one.
func (c *IncidentsShowCommand) flags() string {
	if c.Data == "" || os.Getenv("LOWTIDE_DATA") != "" || c.Data == kong.ExpandPath("~/.local/share/lowtide") {
		return ""
	}
	return Flag("data", c.Data)
}

// transitions reads what the stream of findings has of an incident, in its order; more says that there was more than is read.
func (d *docket) transitions(ctx context.Context, f *event.Finding) (findings []*event.Finding, more bool, err error) {
	stream, err := d.js.Stream(ctx, event.StreamFindings)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, broker.Explain("open stream "+event.StreamFindings, err)
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{event.FindingSubject(f)}})
	if err != nil {
		return nil, false, broker.Explain("read findings", err)
	}
	left := uint64(0)
	if info := consumer.CachedInfo(); info != nil {
		left = info.NumPending
	}
	more = left > maxTransitions
	for left = min(left, maxTransitions); left > 0; {
		batch, err := consumer.Fetch(int(min(left, 256)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, false, broker.Explain("read findings", err)
		}
		got := uint64(0)
		for m := range batch.Messages() {
			got++
			// Two incidents may share a subject, whose letters are fewer than theirs.
			if one, err := event.UnmarshalFinding(m.Data()); err == nil && one.Incident == f.Incident {
				findings = append(findings, one)
			}
		}
		if batch.Error() != nil && ctx.Err() != nil {
			return nil, false, broker.Explain("read findings", ctx.Err())
		}
		if got == 0 { // they aged out of the stream meanwhile
			break
		}
		left -= min(left, got)
	}
	return findings, more, nil
}

// findingsQuery asks the store for all findings of an incident.
func findingsQuery(incident string) string {
	return fmt.Sprintf(`lowtide sql "SELECT time, state, severity, confidence, summary FROM findings WHERE incident = '%s' ORDER BY time"`, quote(incident))
}

// moment is something that happened to an incident.
type moment struct {
	at   time.Time
	text string
}

// lifeOf tells what happened to an incident, one line each, in the order of time: findings that changed something, what people did, and the silences
// that cover it.
func lifeOf(findings []*event.Finding, actions []Action, silences []Silence) []string {
	var moments []moment
	var last *event.Finding
	repeats := 0
	for _, f := range findings {
		if last != nil && last.State == f.State && last.Severity == f.Severity && last.Class == f.Class && last.MaskedRestarts == f.MaskedRestarts {
			repeats++
			continue
		}
		moments = append(moments, moment{f.Time, turn(last, f)})
		last = f
	}
	for _, a := range actions {
		text := strings.ReplaceAll(string(a.Kind), "_", " ")
		switch a.Kind {
		case Acknowledge:
			text = "acknowledged"
		case Resolve:
			text = "said to be over"
		case WasRight:
			text = "said to be right"
		case NotALeak:
			text = "said to be no leak"
		case Remark:
			text = "noted"
		}
		text += " by " + cmp.Or(a.By, "somebody")
		if a.Via != "" {
			text += " (" + a.Via + ")"
		}
		if a.Note != "" {
			text += ": " + a.Note
		}
		moments = append(moments, moment{a.At, text})
	}
	for _, s := range silences {
		text := "silenced " + lasts(s) + " by " + cmp.Or(s.By, "somebody")
		if s.Comment != "" {
			text += ": " + s.Comment
		}
		moments = append(moments, moment{s.Created, text})
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return a.at.Compare(b.at) })
	var lines []string
	if cut := len(moments) - maxLife; cut > 0 {
		lines, moments = append(lines, fmt.Sprintf("… %d earlier moments", cut)), moments[cut:]
	}
	for _, m := range moments {
		lines = append(lines, clock(m.at)+"  "+m.text)
	}
	if repeats > 0 {
		lines = append(lines, fmt.Sprintf("and %d findings that repeat these with newer numbers", repeats))
	}
	return lines
}

// turn says what a finding changed.
func turn(last, f *event.Finding) string {
	text := f.State + ", " + f.Severity
	switch {
	case f.State == event.Resolved:
		text = "resolved"
		if f.Resolution != "" {
			text += ": " + f.Resolution
		}
		return text
	case last != nil && f.MaskedRestarts > last.MaskedRestarts:
		text += fmt.Sprintf(", masked by restart (%d)", f.MaskedRestarts)
	case last != nil && last.State == event.Resolved:
		text += ", open again"
	case last != nil && f.Class != last.Class:
		text += ", now called " + f.Class
	}
	return text + fmt.Sprintf(", confidence %.0f %%: %s", f.Confidence*100, f.Summary)
}

// toldText says who was told what, or why nobody was.
func (c *docketCase) toldText() []string {
	var lines []string
	for _, one := range c.toldLines() {
		text := one.Output + ": " + strings.TrimSuffix(one.State+", "+one.Severity, ", ")
		if one.State == "" {
			text = one.Output + ": a message whose words are unknown"
		}
		if one.Channel != "" && one.Channel != one.Output {
			text += ", in " + one.Channel
		}
		if at := slackTime(one.TS); !at.IsZero() {
			text += ", first at " + clock(at)
		}
		lines = append(lines, text)
	}
	switch {
	case c.storm != "":
		lines = append(lines, "the message of "+c.storm+" tells about it")
	case len(lines) > 0:
	case c.latest.Severity == event.Info:
		lines = append(lines, "nobody: severity info is not announced")
	case len(c.silent) > 0:
		lines = append(lines, "nobody: it is silenced by "+c.silent[0].ID)
	default:
		lines = append(lines, "nobody yet")
	}
	return lines
}

// slackTime reads the time out of a message's name in Slack; zero when it is none.
func slackTime(ts string) time.Time {
	whole, part, found := strings.Cut(ts, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if !found || err != nil || len(part) != 6 || seconds < 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}
