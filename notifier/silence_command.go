package notifier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lowtide/event"
	"lowtide/processor/broker"
)

// longestSilence is how long a silence may last without --force: one that is forgotten hides what it was never meant for.
const longestSilence = 30 * 24 * time.Hour

// SilenceCommand is `silence`: it keeps incidents from being announced. They are judged, stored and listed all the same.
type SilenceCommand struct {
	Add  SilenceAddCommand  `cmd:"" help:"Silence what matches, for a while."`
	List SilenceListCommand `cmd:"" help:"List the silences that stand, and what each covers."`
	End  SilenceEndCommand  `cmd:"" help:"End a silence before its time."`
}

// SilenceAddCommand is `silence add`.
type SilenceAddCommand struct {
	Match            []string `placeholder:"KEY=VALUE" help:"What to silence: class, severity, rule, cluster, host, model, release, team, slot or incident; all must hold; a value may end in *."`
	Incident         string   `placeholder:"ID" help:"Silence this incident; the beginning of its ID will do."`
	Everything       bool     `help:"Silence every incident."`
	For              string   `placeholder:"DURATION" help:"How long, for example 4h, 90m or 2d."`
	Until            string   `placeholder:"TIME" help:"Until when, for example 2026-11-03T18:00Z or 18:00; without a zone it is UTC."`
	UntilNextRelease bool     `help:"Until the release that has the incident is replaced, at most 30 days."`
	Force            bool     `help:"Allow more than 30 days."`
	Message          string   `short:"m" placeholder:"WHY" help:"Why; whoever is on call next reads it."`
	By               string   `env:"LOWTIDE_USER" placeholder:"NAME" help:"Who silences; default: your account's name."`
	JSON             bool     `name:"json" help:"The silence as one JSON object."`
	wire
}

// Run adds the silence and says what it covers.
func (c *SilenceAddCommand) Run(ctx context.Context) error {
	match, err := matchOf(c.Match)
	if err != nil {
		return err
	}
	why, err := reason("--message", c.Message, true)
	if err != nil {
		return err
	}
	s := Silence{Match: match, By: me(c.By), Comment: why, Created: c.clock().UTC()}
	if err := c.complete(&s); err != nil {
		return err
	}
	return c.open(ctx, "silence add", func(ctx context.Context, d *docket) error {
		if err := c.about(&s, d); err != nil {
			return err
		}
		s, err := d.silences.Add(ctx, s)
		if err != nil {
			return broker.Explain("silence add", err)
		}
		covered := d.covered(s)
		if c.JSON {
			return c.sayJSON("silence", lineOf(s, covered, d.now))
		}
		if err := c.say("%s silences %s %s", s.ID, s.Matchers(), lasts(s)); err != nil {
			return err
		}
		if len(covered) == 0 {
			return c.say("covers no open incident now%s", d.instead(s))
		}
		return c.say("covers %s: %s", counted(len(covered), "open incident"), named(incidentsOf(covered)))
	})
}

// complete gives the silence its end, and says what is wrong with it as far as no broker is needed for that.
func (c *SilenceAddCommand) complete(s *Silence) error {
	switch {
	case c.Everything && (len(s.Match) > 0 || c.Incident != ""):
		return &broker.Failure{What: "silence add: --everything contradicts what else is to be matched", Remedy: "give one of them", Code: 2}
	case c.Everything:
		s.Match["class"] = "*"
	case len(s.Match) == 0 && c.Incident == "":
		return &broker.Failure{What: "silence add: it says nothing of what to silence", Remedy: "for example --match class=retention,host=gpu-*, or --incident ID; --everything for all", Code: 2}
	case s.Everything() && c.Incident == "":
		return &broker.Failure{What: "silence add: " + s.Matchers() + " matches every incident, pages too", Remedy: "match less, or say --everything", Code: 2}
	}
	if err := s.checkMatch(); err != nil {
		return err
	}
	ways := 0
	for _, given := range []bool{c.For != "", c.Until != "", c.UntilNextRelease} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return &broker.Failure{What: "silence add: it needs one end", Remedy: "give one of --for 4h, --until 2026-11-03T18:00Z and --until-next-release", Code: 2}
	}
	length, err := longestSilence, error(nil)
	switch {
	case c.For != "":
		length, err = lengthOf(c.For)
	case c.Until != "":
		s.Until, err = momentOf(c.Until, s.Created)
		length = s.Until.Sub(s.Created)
	}
	if err != nil {
		return err
	}
	if length > longestSilence && !c.Force {
		return &broker.Failure{What: fmt.Sprintf("silence add: %d days are more than 30", int(length.Hours()/24)), Remedy: "a silence that is forgotten hides what it was not meant for; shorten it, or say --force", Code: 2}
	}
	s.Until = s.Created.Add(length)
	return nil
}

// about gives the silence what depends on the incidents that are known: which one it is about, and which release is the present one.
func (c *SilenceAddCommand) about(s *Silence, d *docket) (err error) {
	if c.Incident != "" {
		one, err := d.find("silence add", c.Incident)
		if err != nil {
			return err
		}
		if old := s.Match["incident"]; old != "" && old != one.latest.Incident {
			return &broker.Failure{What: "silence add: --incident and --match incident= name two", Remedy: "give one of them", Code: 2}
		}
		s.Match["incident"] = one.latest.Incident
	}
	if c.UntilNextRelease {
		s.NotRelease, err = d.releaseOf(*s)
	}
	return err
}

// releaseOf is the release that is meant by "until the next": what is matched, else that of the open incidents that it covers.
func (d *docket) releaseOf(s Silence) (string, error) {
	if release := s.Match["release"]; release != "" && !strings.HasSuffix(release, "*") {
		return release, nil
	}
	found := map[string]bool{}
	for _, c := range d.covered(s) {
		if release := matched(c.latest, "release"); release != "" {
			found[release] = true
		}
	}
	all := slices.Sorted(maps.Keys(found))
	switch len(all) {
	case 1:
		return all[0], nil
	case 0:
		return "", &broker.Failure{What: "silence add: no open incident that it covers says of which release it is", Remedy: "name the release: --match release=R, or use --for", Code: 2}
	}
	return "", &broker.Failure{What: fmt.Sprintf("silence add: the open incidents that it covers are of %d releases: %s", len(all), named(all)), Remedy: "name one: --match release=R", Code: 2}
}

// instead says what the open incidents have where a silence that covers none of them asks for something else.
func (d *docket) instead(s Silence) string {
	for _, key := range slices.Sorted(maps.Keys(s.Match)) {
		one := Silence{Match: map[string]string{key: s.Match[key]}, Until: s.Until}
		have := map[string]bool{}
		for _, c := range d.cases {
			if c.open() && one.Covers(c.latest, d.now) {
				have = nil
				break
			}
			if value := matched(c.latest, key); value != "" && c.open() {
				have[value] = true
			}
		}
		if len(have) > 0 {
			return fmt.Sprintf("; the open ones have %s %s", key, named(slices.Sorted(maps.Keys(have))))
		}
	}
	return ""
}

// lasts says how long a silence stands.
func lasts(s Silence) string {
	if s.NotRelease != "" {
		return "until a release other than " + s.NotRelease + ", at most until " + clock(s.Until)
	}
	return "until " + clock(s.Until)
}

// silenceLine is a silence for programs.
type silenceLine struct {
	Silence
	Over   bool     `json:"over"`
	Covers []string `json:"covers"` // the open incidents
}

func lineOf(s Silence, covered []*docketCase, now time.Time) silenceLine {
	return silenceLine{Silence: s, Over: s.Over(now), Covers: incidentsOf(covered)}
}

// SilenceListCommand is `silence list`.
type SilenceListCommand struct {
	All  bool `help:"Also those that are over, for 30 days."`
	JSON bool `name:"json" help:"One JSON object a line."`
	wire
}

// Run prints the silences, the newest first.
func (c *SilenceListCommand) Run(ctx context.Context) error {
	return c.open(ctx, "silence list", func(_ context.Context, d *docket) error {
		all := d.silences.List()
		standing := slices.DeleteFunc(slices.Clone(all), func(s Silence) bool { return s.Over(d.now) })
		hidden := len(all) - len(standing)
		if c.All {
			standing, hidden = all, 0
		}
		if c.JSON {
			for _, s := range standing {
				if err := c.sayJSON("silence", lineOf(s, d.covered(s), d.now)); err != nil {
					return err
				}
			}
			return nil
		}
		if len(standing) == 0 {
			text := "no silence stands"
			if hidden > 0 {
				text += fmt.Sprintf("; %d are over, `lowtide silence list --all` shows them", hidden)
			}
			fmt.Fprintln(c.Stderr, text)
			return nil
		}
		table := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "ID\tUNTIL\tMATCHES\tCOVERS\tBY\tWHY")
		for _, s := range standing {
			fmt.Fprintf(table, "%s\t%s\t%s\t%d open\t%s\t%s\n", s.ID, ending(s, d.now), plain(s.Matchers()), len(d.covered(s)), orDash(plain(s.By)), orDash(plain(s.Comment)))
		}
		if err := table.Flush(); err != nil {
			return fmt.Errorf("print silences: %w", err)
		}
		return nil
	})
}

// ending says when a silence ends, or how it ended.
func ending(s Silence, now time.Time) string {
	switch {
	case s.Ended:
		return "ended " + clock(s.EndedAt) + " by " + orDash(plain(s.EndedBy))
	case s.Over(now):
		return "expired " + clock(s.Until)
	case s.NotRelease != "":
		return clock(s.Until) + ", or a release after " + plain(s.NotRelease)
	}
	return clock(s.Until)
}

// SilenceEndCommand is `silence end`.
type SilenceEndCommand struct {
	ID string `arg:"" help:"ID of the silence; its beginning will do."`
	By string `env:"LOWTIDE_USER" placeholder:"NAME" help:"Who ends it; default: your account's name."`
	wire
}

// Run ends the silence and says what is announced again.
func (c *SilenceEndCommand) Run(ctx context.Context) error {
	return c.open(ctx, "silence end", func(ctx context.Context, d *docket) error {
		s, err := d.silence(c.ID)
		if err != nil {
			return err
		}
		if s.Over(d.now) {
			return &broker.Failure{What: "silence end: " + s.ID + " is over: " + ending(s, d.now), Remedy: "`lowtide silence list` shows those that stand"}
		}
		covered := d.covered(s)
		if s, err = d.silences.End(ctx, s.ID, me(c.By), d.now); errors.Is(err, ErrNoSilence) {
			return &broker.Failure{What: "silence end: " + err.Error(), Remedy: "`lowtide silence list` shows those that stand", Err: err}
		} else if err != nil {
			return broker.Explain("silence end", err)
		}
		covered = slices.DeleteFunc(covered, func(one *docketCase) bool { return len(d.silences.Covering(one.latest, d.now)) > 0 })
		if len(covered) == 0 {
			return c.say("%s is over; no open incident is announced again because of that", s.ID)
		}
		return c.say("%s is over; announced again: %s", s.ID, named(incidentsOf(covered)))
	})
}

// silence returns the silence whose ID is the word, else the one whose ID alone begins with it, with or without its s-.
func (d *docket) silence(word string) (Silence, error) {
	var found []string
	var last Silence
	for _, s := range d.silences.List() {
		if s.ID == word {
			return s, nil
		}
		if word != "" && (strings.HasPrefix(s.ID, word) || strings.HasPrefix(s.ID, "s-"+word)) {
			found, last = append(found, s.ID), s
		}
	}
	switch len(found) {
	case 1:
		return last, nil
	case 0:
		return last, &broker.Failure{What: fmt.Sprintf("silence end: no silence is called %q", event.Shorten(tidy(word), 64)), Remedy: "`lowtide silence list` shows those that stand"}
	}
	return last, &broker.Failure{What: fmt.Sprintf("silence end: %q begins the IDs of %d silences: %s", word, len(found), named(found)), Remedy: "write more of the ID", Code: 2}
}
