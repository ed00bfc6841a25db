package sink

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/klauspost/compress/gzip"

	"lowtide/event"
	"lowtide/processor/broker"
)

// ExportCommand is `lowtide export INCIDENT`: an incident as a recording, which `lowtide replay` judges again.
type ExportCommand struct {
	Access
	Out      string        `required:"" short:"o" placeholder:"FILE" help:"Where the recording is written; with gzip where its name ends in .gz."`
	Force    bool          `help:"Replace the file if it is there."`
	Partial  bool          `help:"Write what is left, where a part of the time is older than what the store keeps."`
	Before   time.Duration `default:"24h" placeholder:"24h" help:"So long before the onset it begins, unless the process began later."`
	Peers    int           `default:"4" placeholder:"N" help:"Also the hosts of at most so many others of the same model, those of other releases first: what the incident was compared with."`
	Incident string        `arg:"" help:"The incident of a card, or how it begins."`

	Stderr io.Writer `kong:"-"` // nil: the process's own
}

// exportTail is what follows the last transition, so that what was called then is called again.
const exportTail = 2 * time.Minute

// Run writes the recording and says on stderr what is in it.
func (c *ExportCommand) Run(ctx context.Context) error {
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Before < 0 || c.Peers < 0 || c.Peers > 1000 {
		return &broker.Failure{What: "export: --before and --peers are not below zero, and at most 1000 peers", Remedy: "for example `lowtide export af82 --out incident.ndjson.gz`", Code: 2}
	}
	if _, err := os.Stat(c.Out); err == nil && !c.Force {
		return existing(c.Out)
	}
	in, err := c.find(ctx)
	if err != nil {
		return err
	}
	s, err := c.scope(ctx, in)
	if err != nil {
		return err
	}
	n, err := c.write(ctx, s)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("export %s: the store has no sample or event of %s between %s and %s", in.id, strings.Join(s.hosts, ", "), s.from.Format(time.RFC3339), s.until.Format(time.RFC3339))
	}
	fmt.Fprintf(c.Stderr, "%s: %d events of %s from %s to %s, the time of incident %s (%s %s %s)\nhint: `lowtide replay %s` judges it again\n", c.Out, n, strings.Join(s.hosts, ", "),
		s.from.UTC().Format("2006-01-02 15:04:05"), s.until.UTC().Format("2006-01-02 15:04:05"), in.id, in.class, in.state, in.severity, c.Out)
	return nil
}

func existing(path string) error {
	return &broker.Failure{What: "export: " + path + " is there already", Remedy: "give another --out, or --force to replace it", Code: 1}
}

// exported is an incident as the store has it.
type exported struct {
	id, class, state, severity string
	onset, last                time.Time
	slots, hosts               []string // hosts as cluster/name
}

// find looks the incident up by how its id begins.
func (c *ExportCommand) find(ctx context.Context) (exported, error) {
	var rows []struct {
		Incident, Class, State, Severity string
		Onset, Last                      time.Time
		Slots, Hosts                     []string
	}
	if err := c.rows(ctx, `SELECT incident AS Incident, argMax(class, version) AS Class, argMax(state, version) AS State, argMax(severity, version) AS Severity,
			min(least(ifNull(onset, time), time)) AS Onset, max(time) AS Last, groupUniqArrayIf(slot, slot != '') AS Slots, groupUniqArrayIf(concat(cluster, '/', host), host != '') AS Hosts
		FROM findings WHERE startsWith(incident, {incident:String}) GROUP BY incident ORDER BY Last DESC LIMIT 6`, map[string]string{"incident": c.Incident}, &rows); err != nil {
		return exported{}, err
	}
	if len(rows) == 1 || len(rows) > 1 && rows[0].Incident == c.Incident {
		r := rows[0]
		if len(r.Hosts) == 0 {
			return exported{}, fmt.Errorf("export %s: it is about no host, so that there is nothing to replay", r.Incident)
		}
		return exported{r.Incident, r.Class, r.State, r.Severity, r.Onset, r.Last, r.Slots, r.Hosts}, nil
	}
	what := "there is no incident " + strconv.Quote(c.Incident)
	var names []string
	for _, r := range rows {
		names = append(names, r.Incident+" ("+r.Class+")")
	}
	if len(rows) > 1 {
		what = strconv.Quote(c.Incident) + " begins more than one incident: " + strings.Join(names, ", ")
	} else if near, err := c.nearest(ctx); err == nil && near != "" {
		what += "; the nearest are " + near
	}
	return exported{}, &broker.Failure{What: "export: " + what,
		Remedy: "`lowtide sql \"SELECT incident, class, state, slot, time FROM incidents FINAL ORDER BY time DESC LIMIT 20\"` lists them"}
}

// nearest are ids that a mistyped one may have meant, else the newest.
func (c *ExportCommand) nearest(ctx context.Context) (string, error) {
	var rows []struct{ Incident, Class string }
	if err := c.rows(ctx, `SELECT incident AS Incident, class AS Class FROM incidents FINAL
		ORDER BY editDistance(substring(incident, 1, length({incident:String})), {incident:String}), time DESC LIMIT 3`, map[string]string{"incident": c.Incident}, &rows); err != nil {
		return "", err
	}
	var names []string
	for _, r := range rows {
		names = append(names, r.Incident+" ("+r.Class+")")
	}
	return strings.Join(names, ", "), nil
}

// scope is which events a recording has: those of the hosts in the time from to until.
type scope struct {
	hosts       []string // cluster/name
	from, until time.Time
}

// scope asks for the hosts and the time that the judge needs, and refuses where the store has forgotten a part of it.
func (c *ExportCommand) scope(ctx context.Context, in exported) (scope, error) {
	s := scope{hosts: in.hosts, from: in.onset.Add(-c.Before), until: in.last.Add(exportTail)}
	bound := map[string]string{"hosts": textList(s.hosts), "slots": textList(in.slots), "from": stamp(s.from), "until": stamp(s.until), "peers": strconv.Itoa(c.Peers)}
	var kept []struct{ Oldest, Workers, Known *time.Time }
	var oldest []string
	for _, table := range []string{TableWorkers, TableGpus, TableHosts, TableEvents} {
		oldest = append(oldest, "SELECT minOrNull(time) AS oldest FROM "+table+exportWhere)
	}
	if err := c.rows(ctx, `SELECT (SELECT min(oldest) FROM (`+strings.Join(oldest, " UNION ALL ")+`)) AS Oldest, (SELECT minOrNull(time) FROM worker_samples`+exportWhere+`) AS Workers,
			(SELECT minOrNull(hour) FROM worker_hour_rollup WHERE concat(cluster, '/', host) IN {hosts:Array(String)} AND hour >= {from:DateTime64(9, 'UTC')}
				AND hour + INTERVAL 1 HOUR <= {until:DateTime64(9, 'UTC')}) AS Known`, s.bound(), &kept); err != nil {
		return s, err
	}
	if len(kept) == 1 && !c.Partial {
		if err := forgotten(in, s, kept[0].Oldest, kept[0].Workers, kept[0].Known); err != nil {
			return s, err
		}
	}
	var peers []struct{ Host string }
	if c.Peers > 0 && len(in.slots) > 0 {
		if err := c.rows(ctx, `WITH own AS (SELECT groupUniqArray(model) AS models, groupUniqArray(release) AS releases FROM worker_hour_rollup
				WHERE slot IN {slots:Array(String)} AND model != '' AND hour >= toStartOfHour({from:DateTime64(3, 'UTC')}) AND hour < {until:DateTime64(3, 'UTC')})
			SELECT concat(cluster, '/', host) AS Host FROM worker_hour_rollup
			WHERE hour >= toStartOfHour({from:DateTime64(3, 'UTC')}) AND hour < {until:DateTime64(3, 'UTC')} AND cluster IN arrayMap(h -> splitByChar('/', h)[1], {hosts:Array(String)})
				AND has((SELECT models FROM own), model) AND concat(cluster, '/', host) NOT IN {hosts:Array(String)}
			GROUP BY cluster, host ORDER BY max(NOT has((SELECT releases FROM own), release)) DESC, count() DESC, Host LIMIT {peers:UInt32}`, bound, &peers); err != nil {
			return s, err
		}
	}
	for _, p := range peers {
		s.hosts = append(s.hosts, p.Host)
	}
	return s, nil
}

// forgotten refuses where samples are missing: none of any kind, or those of a worker of which the rollup, which is kept longer, knows.
func forgotten(in exported, s scope, oldest, workers, known *time.Time) error {
	refuse := func(what string) error {
		return &broker.Failure{What: "export " + in.id + ": " + what, Remedy: "--partial writes what is left, which may not be judged the same; samples are kept for 30 days unless `lowtide schema up --keep-samples` said otherwise"}
	}
	switch {
	case oldest == nil:
		return refuse("its samples are gone: it was between " + in.onset.UTC().Format("2006-01-02 15:04") + " and " + in.last.UTC().Format("2006-01-02 15:04"))
	case known != nil && workers == nil:
		return refuse("the samples of its workers are gone: it was between " + in.onset.UTC().Format("2006-01-02 15:04") + " and " + in.last.UTC().Format("2006-01-02 15:04"))
	case known != nil && known.Add(time.Hour).Before(*workers):
		oldest = workers
	case !in.onset.Add(time.Hour).Before(*oldest):
		return nil
	}
	return refuse("its samples are there from " + oldest.UTC().Format("2006-01-02 15:04:05") + " on only; it needs those from " + s.from.UTC().Format("2006-01-02 15:04:05") + " on")
}

// rows decodes an answer, one JSON object a row, into a slice of structs whose fields are named like the columns.
func (a Access) rows(ctx context.Context, query string, parameters map[string]string, out any) error {
	var text strings.Builder
	text.WriteString("[")
	err := a.request(ctx, question{query: query, format: "JSONEachRow", parameters: parameters, settings: exportSettings}, &commas{out: &text})
	if err != nil {
		return err
	}
	text.WriteString("]")
	if err := json.Unmarshal([]byte(text.String()), out); err != nil {
		return fmt.Errorf("read answer of the store: %w", err)
	}
	return nil
}

// exportSettings make the store write numbers and times as recordings have them.
var exportSettings = map[string]string{"output_format_json_quote_64bit_integers": "0", "output_format_json_quote_denormals": "0", "date_time_output_format": "iso",
	"output_format_json_escape_forward_slashes": "0"}

// commas puts one between the lines that are written.
type commas struct {
	out   io.Writer
	ended bool // the last byte was the end of a line
}

func (w *commas) Write(p []byte) (int, error) {
	for _, b := range p {
		if w.ended {
			if _, err := w.out.Write([]byte{','}); err != nil {
				return 0, err
			}
		}
		if w.ended = b == '\n'; w.ended {
			continue
		}
		if _, err := w.out.Write([]byte{b}); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// textList writes texts as a parameter of type Array(String).
func textList(all []string) string {
	quoted := make([]string, len(all))
	for i, one := range all {
		quoted[i] = "'" + strings.NewReplacer("\\", "\\\\", "'", "\\'").Replace(one) + "'"
	}
	return "[" + strings.Join(quoted, ",") + "]"
}

// write puts the recording beside the place where it is to be, and then there in one step, so that no half of one stays.
func (c *ExportCommand) write(ctx context.Context, s scope) (n int, err error) {
	fail := func(err error) error {
		return &broker.Failure{What: "write " + c.Out + ": " + err.Error(), Remedy: "--out names a file in a folder that is there and may be written to", Err: err}
	}
	file, err := os.CreateTemp(filepath.Dir(c.Out), "."+filepath.Base(c.Out)+".*")
	if err != nil {
		return 0, fail(err)
	}
	defer os.Remove(file.Name())
	defer file.Close() // a second time does nothing
	out := bufio.NewWriterSize(file, 256<<10)
	var to io.Writer = out
	var zipped *gzip.Writer
	if strings.HasSuffix(c.Out, ".gz") {
		zipped = gzip.NewWriter(out)
		to = zipped
	}
	if n, err = c.record(ctx, s, event.NewWriter(to)); err != nil || n == 0 {
		return 0, err
	}
	if zipped != nil {
		err = zipped.Close()
	}
	for _, step := range []func() error{out.Flush, file.Sync, func() error { return file.Chmod(0o644) }, file.Close} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return 0, fail(err)
	}
	if c.Force {
		err = os.Rename(file.Name(), c.Out)
	} else if err = os.Link(file.Name(), c.Out); errors.Is(err, os.ErrExist) {
		return 0, existing(c.Out)
	}
	if err != nil {
		return 0, fail(err)
	}
	return n, nil
}
