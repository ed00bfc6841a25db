package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/notifier"
	"lowtide/sink"
	"lowtide/sink/engine"
)

const (
	stageCards = 40
	rawTable   = "bench_samples"
)

// notify publishes findings one after another, each once the card of the one before is at Slack's door.
func (s *stageRun) notify(ctx context.Context, js jetstream.JetStream) error {
	slack, err := newBenchSlack(ctx)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- notifier.Run(running, js, notifier.Options{SlackToken: "xoxb-bench", SlackChannel: "C1", SlackURL: slack.url, Interval: time.Nanosecond, Log: s.log})
	}()
	err = s.time("notify", stageCards, func() error {
		for n := range stageCards {
			id := "bench-" + strconv.Itoa(n)
			f := &event.Finding{ID: id, Incident: id, Time: time.Now(), Rule: "retention", Class: "retention", State: event.Confirmed, Severity: event.Page, Confidence: 0.9,
				Subject: event.Subject{Kind: "worker", Key: "sim/host/" + id}, Slot: "sim/host/" + id, Summary: "Live memory rises 24.0 MiB/h across 8 quiet points"}
			text, err := event.MarshalFinding(f)
			if err != nil {
				return err
			}
			if _, err := js.Publish(ctx, event.FindingSubject(f), text, jetstream.WithMsgID(id)); err != nil {
				return err
			}
			for slack.count() <= n {
				select {
				case err := <-ended:
					return fmt.Errorf("the notifier ended: %w", err)
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(100 * time.Microsecond):
				}
			}
		}
		return nil
	})
	stop()
	if err == nil {
		err = <-ended
	}
	if err := errors.Join(err, slack.close(ctx)); err != nil {
		return err
	}
	s.benchRun.result.Stages = append(s.benchRun.result.Stages, s.result("notify", "cards, one after another", "finding to Slack without Slack's second"))
	return nil
}

// intoClickHouse stores the last block again and again under other tokens, and then the same rows as bytes that the engine wrote itself; one
// insert after another, as the seat of the events does.
func (s *stageRun) intoClickHouse(ctx context.Context) error {
	block := 0
	for began := time.Now(); time.Since(began) < s.stageTime; {
		if err := s.time("insert", s.samples, func() error {
			for _, rows := range sink.Join(sink.Block{Messages: s.messages}) {
				if err := s.clickhouse.InsertRows(ctx, fmt.Sprintf("stage-%d:%s", block, rows.Table), rows); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
		block++
	}
	s.benchRun.result.Stages = append(s.benchRun.result.Stages, s.result("insert", "worker-samples, block after block", "sink.Join and sink.ClickHouse.InsertRows"))
	ask := func(query string, body []byte) ([]byte, error) {
		if body == nil {
			return s.ask(ctx, engine.RoleWriter, query, nil)
		}
		return s.ask(ctx, engine.RoleWriter, query, bytes.NewReader(body))
	}
	if _, err := ask("CREATE TABLE lowtide."+rawTable+" AS lowtide.worker_samples", nil); err != nil {
		return err
	}
	rows, err := ask("SELECT * FROM lowtide.worker_samples ORDER BY time DESC LIMIT "+strconv.Itoa(s.samples)+" FORMAT Native", nil)
	if err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < s.stageTime; {
		if err := s.time("raw insert", s.samples, func() error {
			_, err := ask("INSERT INTO lowtide."+rawTable+" SETTINGS insert_deduplicate = 0 FORMAT Native", rows)
			return err
		}); err != nil {
			return err
		}
	}
	raw := s.result("raw insert", "rows", fmt.Sprintf("the same rows, %d at a time, as %d bytes each made before", s.samples, len(rows)/s.samples))
	raw.Name = "ClickHouse"
	s.benchRun.result.Ceilings = append(s.benchRun.result.Ceilings, raw)
	_, err = ask("DROP TABLE lowtide."+rawTable, nil)
	return err
}
