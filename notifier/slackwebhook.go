package notifier

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/slack-go/slack"

	"lowtide/event"
)

// SlackWebhook posts to a channel through an incoming webhook, which needs no bot. It cannot edit what it posted, has no threads and hears no
// buttons: another state or severity is another message, and what changes between is not told.
type SlackWebhook struct {
	name    string
	courier *courier
}

// SlackWebhookOptions configure NewSlackWebhook.
type SlackWebhookOptions struct {
	Name    string // stable across restarts: receipts are kept under it; "slack_webhook" when empty
	URL     string // or URLFile; never printed
	URLFile string // mode 0600
	Client  *http.Client
	Now     func() time.Time
}

// NewSlackWebhook returns a Sender for one incoming webhook. It does not call it.
func NewSlackWebhook(o SlackWebhookOptions) (*SlackWebhook, error) {
	c, name, _, err := openCourier(errand{kind: "slack_webhook", name: o.Name, url: o.URL, urlFile: o.URLFile, client: o.Client, now: o.Now})
	if err != nil {
		return nil, err
	}
	return &SlackWebhook{name: name, courier: c}, nil
}

// Name is the key of receipts.
func (s *SlackWebhook) Name() string { return s.name }

// Fixed says that a message cannot be edited.
func (s *SlackWebhook) Fixed() bool { return true }

// Limits says what it cannot do.
func (s *SlackWebhook) Limits() string {
	return "an incoming webhook of Slack cannot edit a message, answer in a thread or have buttons: each change of state or severity is a message of its own, " +
		"and a post of which nobody knows whether it arrived is sent again; give a bot's token (xoxb-) for one card per incident"
}

// Post sends the card as a message.
func (s *SlackWebhook) Post(ctx context.Context, card Card) (Receipt, error) {
	return Receipt{Channel: "slack_webhook"}, s.send(ctx, card)
}

// Update sends the card as another message, which says that it is one.
func (s *SlackWebhook) Update(ctx context.Context, _ Receipt, card Card) error {
	if card.State != event.Resolved {
		card.Title = "changed: " + card.Title
	}
	return s.send(ctx, card)
}

func (s *SlackWebhook) send(ctx context.Context, card Card) error {
	body, err := json.Marshal(map[string]any{"text": fallback(card), "blocks": blocks(card, dress{}), "unfurl_links": false, "unfurl_media": false})
	if err != nil {
		return &Failure{Err: fmt.Errorf("post to %s: %w", s.courier.what, err)}
	}
	err = s.courier.post(ctx, body, nil)
	if err == nil || !strings.Contains(err.Error(), "invalid_blocks") && !strings.Contains(err.Error(), "msg_too_long") {
		return err
	}
	if body, err = json.Marshal(slack.WebhookMessage{Text: inText(card)}); err != nil {
		return &Failure{Err: fmt.Errorf("post to %s: %w", s.courier.what, err)}
	}
	return s.courier.post(ctx, body, nil)
}
