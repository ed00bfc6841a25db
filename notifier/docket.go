package notifier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
)

// maxNamed is how many incidents or silences a sentence names.
const maxNamed = 8

// docket is what the broker knows of incidents: the outbox, joined with what people did and with what is silenced.
type docket struct {
	js       jetstream.JetStream
	cases    []*docketCase // open pages first, then open tickets, then what is over; the newest first
	actions  *Actions
	silences *Silences
	unread   int // records that cannot be read
	now      time.Time
}

// docketCase is one incident.
type docketCase struct {
	*record
	latest *event.Finding
	stance Stance
	silent []Silence // that cover it now
}

func (c *docketCase) open() bool { return c.latest.State != event.Resolved }

// readDocket reads all of it. The log hears of what cannot be read.
func readDocket(ctx context.Context, js jetstream.JetStream, now time.Time, log *slog.Logger) (*docket, error) {
	d := &docket{js: js, now: now}
	kv, err := js.KeyValue(ctx, Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, &broker.Failure{What: "this broker has no bucket " + Bucket, Remedy: "start `lowtide up`, or `lowtide process` against it", Err: err}
	}
	if err != nil {
		return nil, broker.Explain("open bucket "+Bucket, err)
	}
	if d.silences, err = OpenSilences(ctx, js, log); err != nil {
		return nil, missingBucket(err)
	}
	if d.actions, err = OpenActions(ctx, js, log); err != nil {
		return nil, missingBucket(err)
	}
	err = outbox{kv: kv}.all(ctx, func(r *record, err error) {
		switch {
		case err != nil:
			d.unread++
			log.Error("skip an incident that cannot be read", "error", err)
		case r.history.Latest.Class == stormClass: // a digest tells about incidents and is none
		default:
			f := r.history.Latest
			d.cases = append(d.cases, &docketCase{record: r, latest: f, stance: Standing(d.actions.Of(f.Incident)), silent: d.silences.Covering(f, now)})
		}
	})
	if err != nil {
		return nil, broker.Explain("read incidents", err)
	}
	slices.SortFunc(d.cases, func(a, b *docketCase) int {
		return cmp.Or(urgency(a)-urgency(b), b.history.First.Time.Compare(a.history.First.Time), strings.Compare(a.latest.Incident, b.latest.Incident))
	})
	return d, nil
}

// missingBucket gives a bucket that is not there the remedy that goes with it.
func missingBucket(err error) error {
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return &broker.Failure{What: err.Error(), Remedy: "the broker was set up by an older version: start `lowtide up` or `lowtide process` of this one once", Err: err}
	}
	return broker.Explain("read the broker", err)
}

func urgency(c *docketCase) int {
	switch {
	case !c.open():
		return 3
	case c.latest.Severity == event.Page:
		return 0
	case c.latest.Severity == event.Ticket:
		return 1
	}
	return 2
}

// find returns the incident whose ID is the word, else the one whose ID alone begins with it.
func (d *docket) find(command, word string) (*docketCase, error) {
	var found []*docketCase
	for _, c := range d.cases {
		if c.latest.Incident == word {
			return c, nil
		}
		if strings.HasPrefix(c.latest.Incident, word) && word != "" {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, &broker.Failure{What: fmt.Sprintf("%s: no incident is called %q, among the %d that are known here", command, event.Shorten(tidy(word), 64), len(d.cases)),
			Remedy: "`lowtide incidents --all` lists them; what was over for 30 days is only in the store: " + storeQuery(word)}
	}
	ids := incidentsOf(found)
	slices.Sort(ids)
	return nil, &broker.Failure{What: fmt.Sprintf("%s: %q begins the IDs of %d incidents: %s", command, event.Shorten(word, 64), len(ids), named(ids)), Remedy: "write more of the ID", Code: 2}
}

// storeQuery asks the store for what the outbox has forgotten.
func storeQuery(word string) string {
	return fmt.Sprintf(`lowtide sql "SELECT time, incident, class, state, severity, subject_key, summary FROM incidents FINAL WHERE startsWith(incident, '%s') ORDER BY time"`, quote(event.Shorten(word, 64)))
}

// covered returns the open incidents that a silence covers now.
func (d *docket) covered(s Silence) []*docketCase {
	return slices.DeleteFunc(slices.Clone(d.cases), func(c *docketCase) bool { return !c.open() || !s.Covers(c.latest, d.now) })
}

func incidentsOf(cases []*docketCase) []string {
	var ids []string
	for _, c := range cases {
		ids = append(ids, c.latest.Incident)
	}
	return ids
}

// named lists names for a sentence, a few of them.
func named(names []string) string {
	if len(names) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
	}
	return strings.Join(names, ", ")
}

// counted is "1 open incident", "3 open incidents".
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// me is who acts: the name that was given, else that of the account.
func me(by string) string {
	if by = tidy(by); by != "" {
		return event.Shorten(by, maxBy)
	}
	if account, err := user.Current(); err == nil && account.Username != "" {
		return event.Shorten(tidy(account.Username), maxBy)
	}
	return "somebody"
}

// reason checks what a person wrote.
func reason(flag, text string, needed bool) (string, error) {
	text = tidy(text)
	switch {
	case text == "" && needed:
		return "", &broker.Failure{What: flag + ": say why", Remedy: "for example -m 'known, release r42 mends it'", Code: 2}
	case len(text) > maxNote:
		return "", &broker.Failure{What: fmt.Sprintf("%s: %d bytes, the limit is %d", flag, len(text), maxNote), Remedy: "shorten it", Code: 2}
	}
	return text, nil
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// seen is the finding that a person who looks at the incident's card sees.
func (c *docketCase) seen() *event.Finding { return c.face() }

// card is what its message says.
func (c *docketCase) card(h Hints) Card {
	lines, n := c.workers()
	told := c.history
	told.Latest = c.seen()
	return Build(told).of(lines, n).ready(h).standing(told.Latest, c.stance, c.silent)
}
