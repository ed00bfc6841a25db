// Package engine owns the source that reads the metrics of LLM engines: Prometheus text over HTTP, within bounds, put into the
// fields of the vocabulary by one table (tables.yaml) that users extend. It refuses to follow redirects, to read more than
// 4 MiB, to wait longer than its deadline, and to make a value up: a family that is not there leaves its field absent.
package engine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"lowtide/event"
)

const (
	maxBody      = 4 << 20 // of one exposition, decompressed
	maxExtraBody = 1 << 20 // of /version and its like
	maxTargets   = 64      // that are read each tick
	maxAtOnce    = 8       // requests under way
	maxProbes    = 16      // candidates tried per tick: the rest wait for the next one
	maxCandidate = 1024    // endpoints that are remembered
)

// Target is an endpoint that may serve an engine's metrics.
type Target struct {
	URL        string        // http or https; without a path, the paths of the engines are tried
	Engine     string        // a table's name; empty: recognised by its families. Of a discovered target it is only a hint
	Worker     *event.Worker // whose endpoint it is; nil: told by a discovered target of the same address, else by its port
	Configured bool          // asked for by name: that it cannot be read is an error, not a reason to forget it
}

// SLO is what the requests of some models are promised. A zero duration is no objective.
type SLO struct {
	Model          string // glob over the whole name, slashes included; the first SLO that matches holds
	TTFT, ITL, E2E time.Duration
}

// Options say what is read. The zero value reads nothing.
type Options struct {
	Targets []Target // configured ones, at most 64

	// Discover returns the endpoints where processes that are watched listen. nil means that this is not known yet: what is
	// found by the first answer that is not nil was there before, and says no `ready`. Only Collect calls it.
	Discover func() []Target

	Tables   []Table       // LoadTables() when nil
	SLOs     []SLO         // in the order in which they are tried
	Client   *http.Client  // its redirect policy is replaced; nil: one without a proxy that keeps connections
	Deadline time.Duration // of one request; 2 s when zero
	Log      *slog.Logger  // told once where an SLO's threshold lies between the edges of a histogram; nil discards
}

// Source reads the metrics of engines. It is not safe for concurrent use.
type Source struct {
	o          Options
	client     *http.Client
	mappings   []*mapping
	paths      []string // that are tried where nothing says which
	wanted     wanted
	configured []*target
	found      map[string]*target // by address
	scratch    []*scratch
	begun      time.Time // the first tick
	looked     bool      // Discover has given an answer
}

// New checks the options: addresses, engine names, tables and SLOs. It asks nothing yet.
func New(o Options) (*Source, error) {
	if o.Tables == nil {
		tables, err := LoadTables()
		if err != nil {
			return nil, err
		}
		o.Tables = tables
	}
	if o.Deadline <= 0 {
		o.Deadline = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s := &Source{o: o, found: make(map[string]*target), client: client(o.Client)}
	var err error
	if s.mappings, s.wanted, err = compile(o.Tables, slices.ContainsFunc(o.SLOs, func(slo SLO) bool { return slo.ITL > 0 })); err != nil {
		return nil, err
	}
	for _, m := range s.mappings {
		s.paths = appendNew(s.paths, m.table.Paths...)
	}
	if len(o.Targets) > maxTargets {
		return nil, fmt.Errorf("read engines: %d targets, at most %d; hint: leave out those that discovery finds", len(o.Targets), maxTargets)
	}
	var problems []error
	seen := make(map[string]bool)
	for _, t := range o.Targets {
		t.Configured = true
		made, err := s.target(t)
		switch {
		case err != nil:
			problems = append(problems, err)
			continue
		case seen[made.url.String()]:
			problems = append(problems, fmt.Errorf("engine target %s: is named twice", made.name))
		}
		seen[made.url.String()] = true
		made.configured, made.given = true, t.Worker
		s.configured = append(s.configured, made)
	}
	for _, slo := range o.SLOs {
		if _, err := path.Match(flat(slo.Model), ""); err != nil {
			problems = append(problems, fmt.Errorf("slo %q: not a glob: %w", slo.Model, err))
		}
		if slo.TTFT < 0 || slo.ITL < 0 || slo.E2E < 0 || slo.TTFT+slo.ITL+slo.E2E == 0 {
			problems = append(problems, fmt.Errorf("slo %q: has no objective; hint: give ttft, itl or e2e a duration above zero", slo.Model))
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	for range maxAtOnce {
		s.scratch = append(s.scratch, newScratch())
	}
	return s, nil
}

// Name implements collector.Source.
func (s *Source) Name() string { return "engine" }

// Close lets go of the connections that are kept.
func (s *Source) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// client never follows a redirect: it could lead off this host.
func client(given *http.Client) *http.Client {
	c := http.Client{Transport: &http.Transport{
		DialContext:            (&net.Dialer{}).DialContext, // the deadline is the request's context
		MaxIdleConns:           2 * maxTargets,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      false,
	}}
	if given != nil {
		c = *given
	}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

// target reads an address. A target without a path has the paths of its engine, or of all.
func (s *Source) target(t Target) (*target, error) {
	u, err := url.Parse(t.URL)
	if err != nil {
		return nil, errors.New("engine target: not a URL; hint: write it as http://127.0.0.1:8000/metrics") // the error would quote a password
	}
	made := &target{url: u, name: safe(u), worker: t.Worker}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("engine target %s: is no http or https address; hint: write it as http://127.0.0.1:8000/metrics", made.name)
	}
	made.engine = s.mapping(t.Engine)
	if t.Engine != "" && made.engine == nil && t.Configured {
		return nil, fmt.Errorf("engine target %s: no table is named %q; hint: one of %s", made.name, t.Engine, strings.Join(s.engines(), ", "))
	}
	switch {
	case u.Path != "" && u.Path != "/":
		made.paths = []string{u.Path}
	case made.engine != nil:
		made.paths = appendNew(nil, made.engine.table.Paths...)
	default:
		for _, m := range s.mappings { // the port says which engine is likely, not which it is
			if m.listens(u.Port()) {
				made.paths = appendNew(made.paths, m.table.Paths...)
			}
		}
	}
	if (u.Path == "" || u.Path == "/") && (made.engine == nil || !t.Configured) {
		made.paths = appendNew(made.paths, s.paths...)
	}
	return made, nil
}

func (s *Source) mapping(name string) *mapping {
	for _, m := range s.mappings {
		if m.table.Name == name {
			return m
		}
	}
	return nil
}

func (s *Source) engines() []string {
	var names []string
	for _, m := range s.mappings {
		names = append(names, m.table.Name)
	}
	return names
}

// safe is an address as it may stand in an error: neither credentials nor the query, which may hold a token.
func safe(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// flat makes a glob's * pass over the slash in a model's name.
func flat(name string) string { return strings.ReplaceAll(name, "/", "\x00") }

// matches says whether the SLO is of the model.
func (o SLO) matches(model string) bool {
	ok, err := path.Match(flat(o.Model), flat(model))
	return err == nil && ok
}

func appendNew(list []string, more ...string) []string {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}
