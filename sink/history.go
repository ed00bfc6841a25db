package sink

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"

	"lowtide/event"
)

// maxHistoryHosts bounds the hosts of one question, whose names travel in its address.
const maxHistoryHosts = 5000

// Past is what the store has of a time.
type Past struct {
	Hosts  []string  // cluster/name, those that are heard in it
	Oldest time.Time // the oldest sample or event of these hosts in the whole store; zero where there is none
}

// Past says whose events the store has between two times, of the hosts that are named as cluster/name, or of all.
func (a Access) Past(ctx context.Context, hosts []string, from, until time.Time) (Past, error) {
	var parts, oldest []string
	where := " WHERE time >= {from:DateTime64(9, 'UTC')} AND time < {until:DateTime64(9, 'UTC')}"
	named := ""
	if len(hosts) > 0 {
		named = "concat(cluster, '/', host) IN {hosts:Array(String)}"
		where += " AND " + named
		named = " WHERE " + named
	}
	for _, table := range []string{TableWorkers, TableGpus, TableHosts, TableEvents} {
		parts = append(parts, "SELECT DISTINCT concat(cluster, '/', host) AS Host FROM "+table+where)
		oldest = append(oldest, "SELECT minOrNull(time) AS oldest FROM "+table+named)
	}
	bound := scope{hosts: hosts, from: from, until: until}.bound()
	var found []struct{ Host string }
	if err := a.rows(ctx, "SELECT DISTINCT Host FROM ("+strings.Join(parts, " UNION ALL ")+") ORDER BY Host LIMIT 100000", bound, &found); err != nil {
		return Past{}, err
	}
	var kept []struct{ Oldest *time.Time }
	if err := a.rows(ctx, "SELECT min(oldest) AS Oldest FROM ("+strings.Join(oldest, " UNION ALL ")+")", bound, &kept); err != nil {
		return Past{}, err
	}
	var p Past
	for _, one := range found {
		p.Hosts = append(p.Hosts, one.Host)
	}
	if len(kept) == 1 && kept[0].Oldest != nil {
		p.Oldest = kept[0].Oldest.UTC()
	}
	if len(p.Hosts) > maxHistoryHosts {
		return p, fmt.Errorf("read history: %d hosts, more than %d at once\nhint: name some of them", len(p.Hosts), maxHistoryHosts)
	}
	return p, nil
}

// Events visits what the store has of hosts (cluster/name) between two times, in the order of the times. It reads some minutes at a time,
// and ends with the visitor's first error. An event is the visitor's; it may keep it.
func (a Access) Events(ctx context.Context, hosts []string, from, until time.Time, visit func(*event.Event) error) error {
	parts, err := a.parts(ctx, scope{hosts: hosts, from: from, until: until})
	if err != nil {
		return err
	}
	for _, part := range parts {
		lines, err := a.slice(ctx, part)
		if err != nil {
			return err
		}
		if err := eachEvent(lines, visit); err != nil {
			return err
		}
	}
	return nil
}

// eachEvent visits the events of lines in the order of their times.
func eachEvent(lines []recordLine, visit func(*event.Event) error) error {
	slices.SortStableFunc(lines, func(a, b recordLine) int { return cmp.Or(strings.Compare(a.time, b.time), cmp.Compare(a.rank, b.rank)) })
	var text bytes.Buffer
	for _, l := range lines {
		text.Write(l.text)
		text.WriteByte('\n')
	}
	reader, err := event.NewReader(&text, "store")
	if err != nil {
		return err
	}
	for {
		e, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read event of the store: %w", err)
		}
		if err := visit(e); err != nil {
			return err
		}
	}
}

// Findings visits what was said between two times, in the order of the times, of the hosts that are named as cluster/name, or of all.
func (a Access) Findings(ctx context.Context, hosts []string, from, until time.Time, visit func(*event.Finding) error) error {
	const step = 6 * time.Hour // bounds what is read at once
	for at := from; at.Before(until); at = at.Add(step) {
		if err := a.findings(ctx, scope{hosts: hosts, from: at, until: earlier(at.Add(step), until)}, visit); err != nil {
			return err
		}
	}
	return nil
}

func (a Access) findings(ctx context.Context, s scope, visit func(*event.Finding) error) error {
	query := "SELECT body FROM findings WHERE time >= {from:DateTime64(9, 'UTC')} AND time < {until:DateTime64(9, 'UTC')}"
	if len(s.hosts) > 0 {
		query += " AND concat(cluster, '/', host) IN {hosts:Array(String)}"
	}
	var text bytes.Buffer
	if err := a.request(ctx, question{query: query + " ORDER BY time, id", format: "JSONEachRow", parameters: s.bound(), settings: exportSettings}, &text); err != nil {
		return err
	}
	for line := range bytes.Lines(text.Bytes()) {
		var row struct {
			Body string `json:"body"`
		}
		if err := json.Unmarshal(line, &row); err != nil {
			return fmt.Errorf("read row of findings: %w", err)
		}
		f, err := event.UnmarshalFinding([]byte(row.Body))
		if err != nil {
			return fmt.Errorf("read finding of the store: %w", err)
		}
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}
