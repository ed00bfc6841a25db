package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/notifier"
	"lowtide/processor/broker"
	"lowtide/sink"
	"lowtide/sink/engine"
)

const (
	benchToken  = "bench"
	benchAway   = "127.0.0.1:1" // where no ClickHouse listens
	benchBudget = 20 << 30      // of the stream: a run must not make its own events old
)

// pipeline is what `lowtide up` runs, with a Slack that notes times.
type pipeline struct {
	base, readers *parts // the readers are what of it judges, stores and announces
	js            jetstream.JetStream
	address       string // of the broker, for the fleet
	folder        string
	engine        *engine.Engine // nil without a store
	clickhouse    *sink.ClickHouse
	storer        *sink.Storer // nil without a store
	slack         *benchSlack
}

// startPipeline starts everything; what was started comes along with an error.
func (c *BenchCommand) startPipeline(ctx context.Context, log *slog.Logger) (*pipeline, error) {
	p := &pipeline{base: newParts(), readers: newParts(), folder: filepath.Join(c.Data, "nats")}
	server, err := broker.Start(ctx, broker.Options{StoreDir: p.folder, Listen: "127.0.0.1:0", Token: benchToken, MaxBytes: benchBudget, Log: log})
	if err != nil {
		return p, err
	}
	p.base.onStop("broker", func(context.Context) error { server.Close(); return nil })
	p.base.run("broker", server.Watch)
	p.address = strings.Replace(server.ClientURL(), "nats://", "nats://"+benchToken+"@", 1)
	conn, err := server.Connect()
	if err != nil {
		return p, err
	}
	p.base.onStop("connection", func(context.Context) error { conn.Close(); return nil })
	if p.js, err = jetstream.New(conn); err != nil {
		return p, fmt.Errorf("open jetstream: %w", err)
	}
	if err := broker.Ensure(ctx, p.js, server.Limits()); err != nil {
		return p, err
	}
	if err := c.startStore(ctx, p, log); err != nil {
		return p, err
	}
	if p.slack, err = newBenchSlack(ctx); err != nil {
		return p, err
	}
	p.base.onStop("slack", p.slack.close)
	if c.NoStore {
		log = slog.New(slog.DiscardHandler) // that the store is down is known
	}
	seats := watching{js: p.js, store: p.clickhouse, alone: true, log: log,
		announce: notifier.Options{SlackToken: "xoxb-bench", SlackChannel: "C1", SlackURL: p.slack.url, Log: log}}
	told, _, err := seats.start(ctx, p.readers)
	for _, one := range told {
		if storer, ok := one.(*sink.Storer); ok {
			p.storer = storer
		}
	}
	return p, err
}

// startStore starts the engine, or lets the store look for a ClickHouse that is down.
func (c *BenchCommand) startStore(ctx context.Context, p *pipeline, log *slog.Logger) error {
	o := sink.Options{Addr: benchAway, User: engine.RoleWriter, Log: log}
	if !c.NoStore {
		e, err := engine.Start(ctx, engine.Options{Library: c.Library, DataDir: filepath.Join(c.Data, "engine"), Log: log})
		if err != nil {
			return fmt.Errorf("%w\nhint: --no-store measures without ClickHouse", err)
		}
		p.engine = e
		p.base.onStop("engine", func(context.Context) error { return e.Close() })
		o.Addr, o.Password = e.Addr(), e.Password(engine.RoleWriter)
	}
	store, err := sink.Open(ctx, o)
	if err != nil {
		return err
	}
	p.base.onStop("store connection", func(context.Context) error { return store.Close() })
	p.clickhouse = store
	return nil
}

// ask runs a statement on the engine as an account and returns the answer, tab separated.
func (p *pipeline) ask(ctx context.Context, role, query string, body io.Reader) ([]byte, error) {
	address := "http://" + p.engine.Addr() + "/?database=lowtide"
	if body != nil {
		address += "&query=" + url.QueryEscape(query)
	} else {
		body = strings.NewReader(query)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, body)
	if err != nil {
		return nil, fmt.Errorf("ask the engine: %w", err)
	}
	request.SetBasicAuth(role, p.engine.Password(role))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the engine: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("ask the engine: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the engine: %s: %.300s", answer.Status, text)
	}
	return text, nil
}

func within(ctx context.Context, limit time.Duration, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s took longer than %s", what, limit))
}
