package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"lowtide/collector/exporter"
	"lowtide/event"
	"lowtide/notifier"
	"lowtide/processor"
	"lowtide/processor/broker"
	"lowtide/processor/ownership"
	"lowtide/processor/rulebook"
	"lowtide/sink"
)

// tellAgain is the pause before a notifier that could not start is started again.
const tellAgain = 2 * time.Second

// shelfBytes bounds what judges and store hold for each other of messages that one of them has decoded: about two seconds of a full load.
const shelfBytes = 64 << 20

// watching is what `up` and `process` have in common: judges, store and notifier, each seat of which one process has at a time.
type watching struct {
	js       jetstream.JetStream
	rules    []string         // files and folders over the pushed rules
	labels   processor.Labels // that the configuration adds
	asker    *processor.Asker // nil: no host is asked for evidence
	store    *sink.ClickHouse // nil: nothing is stored
	announce notifier.Options
	beat     string // the address of a dead man's switch; empty for none
	name     string // among the processors; drawn when empty
	alone    bool   // the broker is our own
	log      *slog.Logger
}

// start runs the seats that fall to this process, and returns what they tell of themselves.
func (w watching) start(ctx context.Context, all *parts) ([]prometheus.Collector, exporter.Checks, error) {
	boundMemory(w.log)
	if err := w.announce.Check(); err != nil {
		return nil, nil, err
	}
	if w.name == "" {
		w.name = strings.ToLower(rand.Text()[:12])
	}
	book, err := rulebook.Watch(ctx, rulebook.Options{JS: w.js, Paths: w.rules, Member: w.name, Version: version(), Log: w.log})
	if err != nil {
		return nil, nil, err
	}
	var shelf *event.Shelf
	if w.store != nil {
		shelf = event.NewShelf(shelfBytes)
	}
	judges, err := processor.NewJudges(ctx, processor.Options{JS: w.js, Pack: book.Pack(), Log: w.log, Evidence: w.asker, Labels: w.labels, Shelf: shelf})
	if err != nil {
		return nil, nil, err
	}
	all.run("rules", func(ctx context.Context) error { return book.Run(ctx, judges) })
	gauge, seats := new(notifier.Gauge), ownership.NewMetrics()
	w.announce.Gauge = gauge
	gather := []prometheus.Collector{judges, book, gauge, seats}
	checks := exporter.Checks{{Name: "judge", Well: judges.Ready}, {Name: "notifier", Well: gauge.Well}}
	roles := []ownership.Role{
		{Name: "judge", Seats: event.PartitionCount, Work: judges.Run},
		{Name: "notifier", Seats: 1, Work: func(ctx context.Context, _ int, _ uint64) error { return tell(ctx, w.js, w.announce) }},
	}
	if w.store != nil {
		storer, tables := sink.NewStorer(w.js, w.store, w.log), newSchema(w.store, w.log)
		storer.Share(shelf)
		all.run("schema", tables.run)
		gather = append(gather, storer)
		checks = append(checks, exporter.Check{Name: "schema", Well: tables.well}, exporter.Check{Name: "store", Well: storer.Ready})
		roles = append(roles, ownership.Role{Name: "store", Seats: sink.StoreSeats, Work: tables.first(storer.Run)})
	}
	beat, err := heartbeat(w.beat, checks, w.log)
	if err != nil {
		return nil, nil, err
	}
	if beat != nil {
		gather = append(gather, beat)
		all.run("heartbeat", beat.Run)
	}
	if w.asker != nil {
		gather = append(gather, w.asker)
		all.run("evidence", func(ctx context.Context) error { w.asker.Run(ctx); return nil })
	}
	all.run("seats", func(ctx context.Context) error {
		return ownership.Run(ctx, ownership.Options{JS: w.js, Member: w.name, Version: version(), Alone: w.alone, Log: w.log, Metrics: seats}, roles...)
	})
	return gather, checks, nil
}

// tell announces until ctx ends. A broker that does not answer while it starts is waited for: others judge and store meanwhile.
func tell(ctx context.Context, js jetstream.JetStream, o notifier.Options) error {
	for {
		err := notifier.Run(ctx, js, o)
		if err == nil || ctx.Err() != nil {
			return err
		}
		o.Log.Warn("nothing is announced; starting the notifier again", "error", err, "after", tellAgain)
		if !broker.Wait(ctx, tellAgain) {
			return nil
		}
	}
}
