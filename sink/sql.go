package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"lowtide/sink/engine"
)

// ErrNoStore says that no store is known or running.
var ErrNoStore = errors.New("no store is running")

// Access is how a command reaches the store as a reader.
type Access struct {
	URL     string `help:"Address of the ClickHouse HTTP interface, http://host:port. Default: the one that lowtide up wrote into the data folder."`
	DataDir string `name:"data" env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the running 'up'."`
	User    string `env:"LOWTIDE_CLICKHOUSE_USER" default:"reader" help:"Account that may only read."`
}

// SQLCommand is `lowtide sql QUERY`.
type SQLCommand struct {
	Access
	JSON  bool   `name:"json" xor:"form" help:"One JSON object a row."`
	CSV   bool   `name:"csv" xor:"form" help:"CSV with a line of names."`
	Query string `arg:"" help:"A query; tables: workers, worker_samples, gpu_samples, host_samples, events, findings, incidents."`
}

// Run asks the store and copies its answer to stdout.
func (c *SQLCommand) Run(ctx context.Context) error {
	format := "PrettyCompactNoEscapes"
	switch {
	case c.JSON:
		format = "JSONEachRow"
	case c.CSV:
		format = "CSVWithNames"
	}
	return c.ask(ctx, c.Query, format, os.Stdout)
}

// StatusCommand is `lowtide status`.
type StatusCommand struct {
	Access
	JSON bool `name:"json" help:"One JSON object a row."`
}

// fleetQuery has the newest reading of each sensor within the hour; one that was not read in that time stays empty.
const fleetQuery = `SELECT
    w.slot AS worker, w.host AS host, w.gpu AS gpu, w.model AS model, w.release AS release,
    %s, w.kv AS kv, w.running AS running, w.seen AS last_seen, i.verdict AS verdict
FROM (
    SELECT slot, gpu_uuid AS gpu, any(host) AS host, argMax(model, time) AS model, argMax(release, time) AS release,
        argMax(allocated_bytes, time) AS live,
        argMax(toInt64(used_bytes) - toInt64(reserved_bytes), time) AS outside,
        round(argMax(kv_usage, time), 3) AS kv, argMax(running, time) AS running, max(time) AS seen
    FROM workers WHERE time > now() - INTERVAL 1 HOUR OR slot IN (SELECT slot FROM incidents FINAL WHERE state != 'resolved')
    GROUP BY slot, gpu_uuid
) AS w
LEFT JOIN (
    SELECT slot, arrayStringConcat(arraySort(groupUniqArray(concat(class, ' ', state))), ', ') AS verdict
    FROM incidents FINAL WHERE state != 'resolved' GROUP BY slot
) AS i ON i.slot = w.slot
ORDER BY host, worker, gpu`

// Run prints one table of the fleet; bytes are numbers with --json and readable otherwise.
func (c *StatusCommand) Run(ctx context.Context) error {
	if c.JSON {
		return c.ask(ctx, fmt.Sprintf(fleetQuery, "w.live AS live_bytes, w.outside AS outside_bytes"), "JSONEachRow", os.Stdout)
	}
	return c.ask(ctx, fmt.Sprintf(fleetQuery, "formatReadableSize(w.live) AS live, formatReadableSize(w.outside) AS outside"),
		"PrettyCompactNoEscapes", os.Stdout)
}

// ask sends a query in the given format and copies the answer.
func (a Access) ask(ctx context.Context, query, format string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	address, password, err := a.resolve()
	if err != nil {
		return err
	}
	parameters := url.Values{"database": {"lowtide"}, "default_format": {format}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(address, "/")+"/?"+parameters.Encode(), strings.NewReader(query))
	if err != nil {
		return fmt.Errorf("ask store: address %q is no URL", address)
	}
	request.SetBasicAuth(a.User, password)
	transport := &http.Transport{ResponseHeaderTimeout: callLimit}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: callLimit}).Do(request)
	if err != nil {
		return fmt.Errorf("ask store at %s: %w\nhint: start it with `lowtide up`, or give --url", address, errors.Join(ErrNoStore, unwrapURL(err)))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10)) // what was read of it is the reason
		return fmt.Errorf("%w: %s", ErrRefused, redact(strings.TrimSpace(string(reason)), password))
	}
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// unwrapURL drops the address that net/http puts before the reason.
func unwrapURL(err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// resolve finds address and password: LOWTIDE_CLICKHOUSE_PASSWORD with --url, else the files of the data folder.
func (a Access) resolve() (address, password string, err error) {
	if a.URL != "" {
		return a.URL, os.Getenv("LOWTIDE_CLICKHOUSE_PASSWORD"), nil
	}
	path := filepath.Join(a.DataDir, "engine.json")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", "", fmt.Errorf("%w: cannot read %s\nhint: start `lowtide up`, or say where its data is with --data or LOWTIDE_DATA, or give --url", ErrNoStore, path)
	}
	var place struct {
		Addr string `json:"addr"`
	}
	if err := json.Unmarshal(content, &place); err != nil || place.Addr == "" {
		return "", "", fmt.Errorf("read %s: it has no addr\nhint: start `lowtide up` again, it writes the file", path)
	}
	password, err = engine.ReadPassword(filepath.Join(a.DataDir, "engine", engine.RoleReader+".password"))
	if err != nil {
		return "", "", err
	}
	return "http://" + place.Addr, password, nil
}
