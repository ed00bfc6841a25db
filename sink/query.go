package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

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

// question is one query and how it is asked. Parameters are bound to the {name:Type} of the query; none is ever part of its text.
type question struct {
	query      string
	format     string // of the answer, where the query names none
	parameters map[string]string
	settings   map[string]string
}

// ask sends a query in the given format and copies the answer.
func (a Access) ask(ctx context.Context, query, format string, out io.Writer) error {
	return a.request(ctx, question{query: query, format: format}, out)
}

// request sends a question and copies the answer. An error wraps ErrNoStore, or ErrRefused with what the store said and what there is instead.
func (a Access) request(ctx context.Context, q question, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	address, password, err := a.resolve()
	if err != nil {
		return err
	}
	err = a.send(ctx, address, password, q, out)
	var refusal *refusal
	if errors.As(err, &refusal) {
		return a.instead(ctx, address, password, q.query, refusal)
	}
	return err
}

func (a Access) send(ctx context.Context, address, password string, q question, out io.Writer) error {
	values := url.Values{"database": {"lowtide"}, "default_format": {q.format}}
	for name, value := range q.settings {
		values.Set(name, value)
	}
	for name, value := range q.parameters {
		values.Set("param_"+name, parameterEscapes.Replace(value))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(address, "/")+"/?"+values.Encode(), strings.NewReader(q.query))
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
		return newRefusal(response.Header.Get("X-ClickHouse-Exception-Code"), redact(strings.TrimSpace(string(reason)), password))
	}
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// parameterEscapes writes a value the way ClickHouse reads a parameter: as a field of a tab-separated line.
var parameterEscapes = strings.NewReplacer("\\", "\\\\", "\t", "\\t", "\n", "\\n", "\r", "\\r", "\x00", "\\0")

// stamp writes a time as a parameter of type DateTime64(3, 'UTC').
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") }

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
	addr, err := engineAddress(a.DataDir)
	if err != nil {
		return "", "", err
	}
	password, err = engine.ReadPassword(filepath.Join(a.DataDir, "engine", engine.RoleReader+".password"))
	if err != nil {
		return "", "", err
	}
	return "http://" + addr, password, nil
}
