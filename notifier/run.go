package notifier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
)

// Consumer is the durable consumer of the findings stream.
const Consumer = "notify"

// Options configure Run.
type Options struct {
	Senders []Sender // nil: those of Notify, else Slack when there is a token, else the terminal

	Notify string // a settings file with outputs and routes; empty for one output
	Hints  Hints

	SlackToken     string // never logged; from LOWTIDE_SLACK_TOKEN
	SlackTokenFile string // read when SlackToken is empty; mode 0600
	SlackChannel   string // channel ID
	SlackURL       string // of the API; empty for Slack's own

	SlackAppToken     string // never logged; from LOWTIDE_SLACK_APP_TOKEN: cards have buttons
	SlackAppTokenFile string // read when SlackAppToken is empty; mode 0600

	Out io.Writer // several outputs may write to it at once

	Log      *slog.Logger
	Interval time.Duration // least time between two calls to one Sender; 1 s when zero, Slack's limit per channel
	Backoff  time.Duration // first wait after a failed call, doubled up to 15 s; 1 s when zero
	Timeout  time.Duration // of one call to a Sender or the broker; 10 s when zero
	Now      func() time.Time
	Gauge    *Gauge // what it tells of itself; nil for nobody

	routes   routing
	actions  *Actions
	silences *Silences
}

func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, one := range []struct {
		value   *time.Duration
		instead time.Duration
	}{{&o.Interval, time.Second}, {&o.Backoff, time.Second}, {&o.Timeout, 10 * time.Second}} {
		if *one.value <= 0 {
			*one.value = one.instead
		}
	}
	if len(o.Senders) > 0 {
		return nil
	}
	token, err := secretOr(o.SlackToken, "slack token", o.SlackTokenFile)
	if err != nil {
		return err
	}
	appToken, err := secretOr(o.SlackAppToken, "slack app token", o.SlackAppTokenFile)
	if err != nil {
		return err
	}
	if o.Notify != "" {
		s, err := ReadSettings(o.Notify, SettingsOptions{SlackToken: token, SlackAppToken: appToken, SlackURL: o.SlackURL, Out: o.Out})
		if err != nil {
			return err
		}
		o.Senders, o.routes = s.Senders, s.routes
		o.Hints = Hints{Runbooks: cmp.Or(s.Hints.Runbooks, o.Hints.Runbooks), Flags: cmp.Or(s.Hints.Flags, o.Hints.Flags)}
		return nil
	}
	if token == "" {
		o.Senders = []Sender{NewTerminal(o.Out)}
		return nil
	}
	sender, err := NewSlack(SlackOptions{Token: token, Channel: o.SlackChannel, URL: o.SlackURL, AppToken: appToken})
	if err != nil {
		return err
	}
	o.Senders = []Sender{sender}
	return nil
}

// secretOr is a secret, or what a file holds.
func secretOr(secret, what, path string) (string, error) {
	if secret != "" || path == "" {
		return secret, nil
	}
	return ReadSecret(what, path)
}

// Check says what is wrong with the options, such as a token that cannot be read, before Run would.
func (o Options) Check() error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("start notifier: %w", err)
	}
	return nil
}

// Run tells people about the findings of LOWTIDE_FINDINGS until the context ends, and then returns nil. A finding is written to
// the outbox before it is acknowledged, so that nothing is lost while a medium is away or across a restart; findings that arrive
// faster than a medium takes them become one update. A call that is under way when the context ends is finished and noted.
func Run(ctx context.Context, js jetstream.JetStream, o Options) error {
	if err := o.complete(); err != nil {
		return fmt.Errorf("start notifier: %w", err)
	}
	setup, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	kv, err := js.KeyValue(setup, Bucket)
	if err != nil {
		return fmt.Errorf("start notifier: open bucket %s: %w", Bucket, err)
	}
	consumer, err := js.CreateOrUpdateConsumer(setup, event.StreamFindings, jetstream.ConsumerConfig{
		Durable:       Consumer,
		AckPolicy:     jetstream.AckExplicitPolicy,
		FilterSubject: "lowtide.finding.>",
		AckWait:       30 * time.Second,
		MaxDeliver:    -1,
		MaxAckPending: 256,
	})
	if err != nil {
		return fmt.Errorf("start notifier: open consumer %s of %s: %w", Consumer, event.StreamFindings, err)
	}
	// What a notifier had that died is delivered now, not when its time to acknowledge is over: that may be a page. Twice does no harm.
	if _, err := js.ResetConsumer(setup, event.StreamFindings, Consumer); err != nil && ctx.Err() == nil {
		o.Log.Warn("findings that another notifier had come later; the NATS server should be 2.14 or newer", "error", err)
	}
	if o.actions, err = OpenActions(setup, js, o.Log); err != nil {
		return fmt.Errorf("start notifier: %w", err)
	}
	if o.silences, err = OpenSilences(setup, js, o.Log); err != nil {
		return fmt.Errorf("start notifier: %w", err)
	}
	o.actions.News() // what was read until here is seen by resume
	for _, changed := range []<-chan struct{}{o.actions.Changed(), o.silences.Changed()} {
		select {
		case <-changed:
		default:
		}
	}
	d := newDesk(o, outbox{kv: kv})
	if err := d.resume(setup); err != nil {
		return fmt.Errorf("start notifier: %w", err)
	}
	o.Gauge.start(o.Senders)
	defer o.Gauge.start(nil)
	beside, release := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer release()
	running.Go(func() { o.repeat(beside, "read what people did", o.actions.Watch) })
	running.Go(func() { o.repeat(beside, "read silences", o.silences.Watch) })
	for _, one := range o.Senders {
		switch s := one.(type) {
		case *Slack:
			if s.buttons {
				running.Go(func() { o.repeat(beside, "listen to Slack's buttons", newListener(s, o, outbox{kv: kv}).run) })
			}
		case *SlackWebhook:
			o.Log.Warn(s.Limits(), "sender", s.Name())
		}
	}

	messages := make(chan jetstream.Msg)
	feed, err := consumer.Consume(func(m jetstream.Msg) {
		select {
		case messages <- m:
		case <-ctx.Done(): // unacknowledged, so it comes again
		}
	}, jetstream.PullMaxMessages(64), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		if ctx.Err() == nil {
			o.Log.Warn("read findings", "error", err)
		}
	}))
	if err != nil {
		return fmt.Errorf("start notifier: read findings: %w", err)
	}
	defer func() {
		feed.Stop()
		<-feed.Closed()
	}()

	defer d.await()
	again := false // a review failed
	for {
		wait := min(d.dispatch(ctx), d.rest(ctx))
		if again {
			again, wait = d.review(ctx) != nil, min(wait, o.Backoff)
		}
		timer := time.NewTimer(wait)
		o.Gauge.see(d)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case note := <-d.ended:
			note()
		case m := <-messages:
			d.take(ctx, m)
		case <-o.actions.Changed():
			d.heed(ctx)
		case <-o.silences.Changed():
			if err := d.review(ctx); err != nil {
				o.Log.Warn("look what is silenced", "error", err)
				again = true
			}
		case <-feed.Closed(): // for good: the consumer was deleted, or the connection is closed
			timer.Stop()
			return fmt.Errorf("read findings: the broker ended consumer %s", Consumer)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// repeat does what should not end until ctx ends, again after it did.
func (o Options) repeat(ctx context.Context, what string, do func(context.Context) error) {
	for failures := 0; ctx.Err() == nil; failures++ {
		began := o.Now()
		err := do(ctx)
		if ctx.Err() != nil {
			return
		}
		if o.Now().Sub(began) > time.Minute {
			failures = 0
		}
		wait := min(o.Backoff<<min(failures, 10), time.Minute)
		o.Log.Warn("cannot "+what+", trying again", "error", err, "wait", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// take folds one message into the outbox and acknowledges it.
func (d *desk) take(ctx context.Context, m jetstream.Msg) {
	f, err := event.UnmarshalFinding(m.Data())
	if err == nil && (f.Incident == "" || f.ID == "") {
		err = errors.New("it has no id or no incident")
	}
	if err != nil {
		d.o.Log.Error("skip a finding that cannot be read", "subject", m.Subject(), "error", err)
		d.answered(m.TermWithReason("cannot be read"))
		return
	}
	if err := d.fold(ctx, f); err != nil {
		d.o.Log.Warn("keep a finding for later", "incident", f.Incident, "error", err)
		d.answered(m.NakWithDelay(d.o.Backoff))
		return
	}
	d.answered(m.Ack())
}

// answered logs an acknowledgement that could not be sent; the message comes again, which is harmless.
func (d *desk) answered(err error) {
	if err != nil {
		d.o.Log.Warn("answer the findings stream", "error", err)
	}
}
