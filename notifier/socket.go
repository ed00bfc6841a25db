package notifier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"slices"
	"time"

	"github.com/slack-go/slack"
	"github.com/slack-go/slack/socketmode"

	"lowtide/event"
)

// maxPresses bounds the presses of buttons that wait to be noted; more are refused.
const maxPresses = 256

// listener hears the buttons of one Slack app over Socket Mode. Slack wants an answer within three seconds, so that a press is
// acknowledged at once and noted after.
type listener struct {
	slack   *Slack
	o       Options
	box     outbox
	presses chan press
}

func newListener(s *Slack, o Options, box outbox) *listener {
	return &listener{slack: s, o: o, box: box, presses: make(chan press, maxPresses)}
}

// run listens until ctx ends, or Slack refuses the connection.
func (l *listener) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := socketmode.New(l.slack.client, socketmode.OptionLog(log.New(io.Discard, "", 0)), socketmode.OptionReadLimit(1<<20))
	handler := l.handler(ctx, client)
	ended := make(chan error, 1)
	go func() { ended <- client.RunContext(ctx) }()
	defer func() {
		cancel()
		for {
			select {
			case <-client.Events: // nobody must wait for us to read
			case <-ended:
				l.o.Gauge.listen(l.slack.name, false)
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			ended <- err
			return fmt.Errorf("listen to buttons: %s", l.slack.redact(err.Error()))
		case e := <-client.Events:
			switch e.Type {
			case socketmode.EventTypeConnected:
				l.o.Gauge.listen(l.slack.name, true)
				l.o.Log.Info("buttons are listened to", "sender", l.slack.name)
			case socketmode.EventTypeConnectionError:
				l.o.Gauge.listen(l.slack.name, false)
				if failed, ok := e.Data.(*slack.ConnectionErrorEvent); ok { // it is tried again by itself
					l.o.Log.Warn("buttons are not listened to", "sender", l.slack.name, "error", l.slack.redact(fmt.Sprint(failed.ErrorObj)), "wait", failed.Backoff)
				}
			case socketmode.EventTypeDisconnect:
				l.o.Gauge.listen(l.slack.name, false)
			case socketmode.EventTypeInteractive:
				handler.DispatchEvent(e)
			default:
				if e.Request != nil && e.Request.EnvelopeID != "" { // what nobody asked for, so that Slack does not send it again
					_ = client.AckCtx(ctx, e.Request.EnvelopeID, nil)
				}
			}
		case p := <-l.presses:
			l.note(ctx, p)
		}
	}
}

// handler acknowledges presses and hands them on.
func (l *listener) handler(ctx context.Context, client *socketmode.Client) *socketmode.SocketmodeHandler {
	h := socketmode.NewSocketmodeHandler(client)
	h.Default = func(e *socketmode.Event, c *socketmode.Client) { // a menu, a shortcut: not ours
		if e.Request != nil && e.Request.EnvelopeID != "" {
			_ = c.AckCtx(ctx, e.Request.EnvelopeID, nil)
		}
	}
	h.HandleInteraction(slack.InteractionTypeBlockActions, func(e *socketmode.Event, c *socketmode.Client) {
		callback, ok := e.Data.(slack.InteractionCallback)
		if !ok || e.Request == nil {
			return
		}
		if err := c.AckCtx(ctx, e.Request.EnvelopeID, nil); err != nil { // Slack sends it again, which does no harm
			l.o.Log.Warn("answer a button", "error", l.slack.redact(err.Error()))
		}
		for _, p := range pressesOf(callback, l.o.Now()) {
			select {
			case l.presses <- p:
			default:
				l.o.Log.Warn("too many buttons were pressed at once; one is lost", "incident", p.incident)
			}
		}
	})
	return h
}

// pressesOf are the presses of our buttons in a callback.
func pressesOf(callback slack.InteractionCallback, now time.Time) (list []press) {
	for _, a := range callback.ActionCallback.BlockActions {
		if a == nil || !slices.Contains([]string{pressAcknowledge, pressSilence, pressNextRelease, pressNotALeak, pressWasRight}, a.ActionID) {
			continue
		}
		if a.Value == "" || len(a.Value) > maxValue {
			continue
		}
		name := tidy(callback.User.Name)
		if name == "" {
			name = tidy(callback.User.ID)
		}
		p := press{action: a.ActionID, incident: a.Value, by: event.Shorten(name, maxBy), user: callback.User.ID, channel: callback.Channel.ID,
			message: callback.Container.MessageTs, at: now}
		if p.message == "" {
			p.message = callback.Message.Timestamp
		}
		list = append(list, p)
	}
	return list
}

// note writes down what a press means, or tells the person why it does not count.
func (l *listener) note(ctx context.Context, p press) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Timeout)
	defer cancel()
	answer, err := l.act(call, p)
	if err != nil {
		l.o.Log.Warn("note what somebody pressed", "incident", p.incident, "by", p.by, "error", err)
		answer = "That was not noted: the broker does not answer. Please press again."
	}
	l.answer(call, p, answer)
}

// answer tells the person who pressed, and nobody else.
func (l *listener) answer(call context.Context, p press, answer string) {
	if answer == "" || p.user == "" || p.channel == "" {
		return
	}
	if _, err := l.slack.client.PostEphemeralContext(call, p.channel, p.user, slack.MsgOptionText(escape(answer), false)); err != nil {
		l.o.Log.Warn("answer who pressed a button", "error", l.slack.redact(err.Error()))
	}
}

// act does what a press asks for. The answer is for the person who pressed, empty when the card says it all.
func (l *listener) act(ctx context.Context, p press) (answer string, err error) {
	r, err := l.box.load(ctx, p.incident)
	if err != nil {
		return "", err
	}
	if r.history.Latest == nil {
		return "This card is old: nothing is known of its incident any more.", nil
	}
	receipt := r.deliveries[l.slack.name].Receipt
	switch {
	case receipt.Channel != p.channel || receipt.TS == "":
		return "This card is not one of those that are kept up to date here, so its buttons do nothing. See lowtide incidents for the one that is.", nil
	case receipt.TS != p.message:
		return "This card is old, and its incident has a newer one: please press there.", nil
	}
	face := r.face()
	stance := Standing(l.o.actions.Of(face.Incident))
	add := func(kind ActionKind) error {
		_, err := l.o.actions.Add(ctx, Action{Kind: kind, By: p.by, Via: "slack", At: p.at}.On(face))
		return err
	}
	switch p.action {
	case pressAcknowledge:
		if a := stance.AcknowledgedFor(face); a != nil {
			return "It is acknowledged already, by " + a.By + ".", nil
		}
		if face.State == event.Resolved {
			return "It is resolved already.", nil
		}
		return "", add(Acknowledge)
	case pressNotALeak, pressWasRight:
		kind := NotALeak
		if p.action == pressWasRight {
			kind = WasRight
		}
		if slices.ContainsFunc(stance.Feedback, func(a Action) bool { return a.By == p.by && a.Kind == kind }) {
			return "That is noted already. Thank you.", nil
		}
		if err := add(kind); err != nil {
			return "", err
		}
		return "Noted. The verdict of the next ones is judged by it.", nil
	case pressSilence, pressNextRelease:
		if face.State == event.Resolved {
			return "It is resolved already.", nil
		}
		if p.action == pressNextRelease && release(face) == "" {
			return "Its release is not known, so nobody could say when the next one comes. Silence it for 4 h instead.", nil
		}
		if covering := l.o.silences.Covering(face, p.at); len(covering) > 0 && !covering[0].Until.Before(p.at.Add(silenceFor)) {
			return "It is silenced already, " + until(covering[0]) + ".", nil
		}
		one, err := l.o.silences.Add(ctx, silenceOf(p, r))
		if err != nil {
			return "", err
		}
		return "Silenced " + until(one) + ". It covers " + one.Matchers() + "; end it with lowtide silence end " + one.ID + ".", nil
	}
	return "", errors.New("unknown button")
}
