package notifier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slack-go/slack"
)

// metadataType marks lowtide's messages in a channel's history, and replyType those in a thread; the payload names the incident, or the
// reply's key.
const (
	metadataType = "lowtide_incident"
	replyType    = "lowtide_reply"
)

// Slack keeps one message per incident in a channel, with a bot token: only a bot can update its own messages.
type Slack struct {
	client  *slack.Client
	name    string
	channel string
	secrets []string
	buttons bool

	mu      sync.Mutex
	noChart bool // the channel refused a chart
}

// SlackOptions configure NewSlack.
type SlackOptions struct {
	Token   string // xoxb-…, with chat:write; channels:history lets a crash between sending and noting be healed
	Channel string // a channel ID; with a name, earlier messages cannot be looked for
	URL     string // of the API, ending in "/"; empty for Slack's own
	Client  *http.Client

	Name     string // stable across restarts: receipts are kept under it; "slack" when empty
	AppToken string // xapp-…, with connections:write: cards have buttons, and Listen hears when they are pressed
}

// NewSlack returns a Sender for one channel. It does not call the API.
func NewSlack(o SlackOptions) (*Slack, error) {
	if o.Token == "" {
		return nil, errors.New("open slack: no token\nhint: set LOWTIDE_SLACK_TOKEN or name a token file")
	}
	if o.Channel == "" {
		return nil, errors.New("open slack: no channel\nhint: name the ID of the channel that the bot was invited to")
	}
	client := http.Client{}
	if o.Client != nil {
		client = *o.Client
	}
	// The token travels in the request body, and a redirect would carry it to whoever the answer names.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	options := []slack.Option{slack.OptionHTTPClient(&client)}
	if o.URL != "" {
		options = append(options, slack.OptionAPIURL(strings.TrimSuffix(o.URL, "/")+"/"))
	}
	s := &Slack{name: cmp.Or(o.Name, "slack"), channel: o.Channel, secrets: []string{o.Token}}
	if o.AppToken != "" {
		if !strings.HasPrefix(o.AppToken, "xapp-") {
			return nil, errors.New("open slack: the app token is none\nhint: Socket Mode needs an app-level token, which begins with xapp-, with connections:write")
		}
		s.buttons, s.secrets = true, append(s.secrets, o.AppToken)
		options = append(options, slack.OptionAppLevelToken(o.AppToken))
	}
	s.client = slack.New(o.Token, options...)
	return s, nil
}

// ReadToken reads a token file. Others than its owner must not be able to read it.
func ReadToken(path string) (string, error) { return ReadSecret("slack token", path) }

// Name is the key of receipts.
func (s *Slack) Name() string { return s.name }

// Post sends the card as a new message.
func (s *Slack) Post(ctx context.Context, card Card) (Receipt, error) {
	var r Receipt
	err := s.dressed(card, func(options []slack.MsgOption) (err error) {
		r.Channel, r.TS, err = s.client.PostMessageContext(ctx, s.channel, options...)
		return err
	})
	if err != nil {
		return Receipt{}, s.failure("post message", err)
	}
	return r, nil
}

// Update replaces the message of a receipt by the card.
func (s *Slack) Update(ctx context.Context, r Receipt, card Card) error {
	err := s.dressed(card, func(options []slack.MsgOption) error {
		_, _, _, err := s.client.UpdateMessageContext(ctx, r.Channel, r.TS, options...)
		return err
	})
	if err != nil {
		return s.failure("update message", err)
	}
	return nil
}

// dressed sends the card with all that the channel takes: without a chart where one was refused, and as text where blocks are.
func (s *Slack) dressed(card Card, send func([]slack.MsgOption) error) error {
	s.mu.Lock()
	d := dress{chart: !s.noChart, buttons: s.buttons}
	s.mu.Unlock()
	err := send(s.message(card, d))
	if tooMuch(err) && d.chart && chartBlock(card.Chart) != nil {
		d.chart = false
		if err = send(s.message(card, d)); err == nil {
			s.mu.Lock()
			s.noChart = true // it was the chart: this channel is not asked again
			s.mu.Unlock()
		}
	}
	if tooMuch(err) {
		err = send(append(marks(card), slack.MsgOptionText(inText(card), false)))
	}
	return err
}

// Reply answers below a card.
func (s *Slack) Reply(ctx context.Context, r Receipt, reply Reply) error {
	text := clip(escape(reply.Text), maxSection)
	if m := reply.Mention; m != "" {
		text = mention(m) + " " + text
	}
	_, _, err := s.client.PostMessageContext(ctx, r.Channel, slack.MsgOptionTS(r.TS), slack.MsgOptionText(text, false), slack.MsgOptionDisableLinkUnfurl(),
		slack.MsgOptionMetadata(slack.SlackMetadata{EventType: replyType, EventPayload: map[string]any{"key": reply.Key}}))
	if err != nil {
		return s.failure("reply", err)
	}
	return nil
}

// mention wakes a user (U… or W…) or a user group (S…).
func mention(id string) string {
	if strings.HasPrefix(id, "S") {
		return "<!subteam^" + id + ">"
	}
	return "<@" + id + ">"
}

// Replied looks for a reply in the thread of a card.
func (s *Slack) Replied(ctx context.Context, r Receipt, key string, since time.Time) (bool, error) {
	params := &slack.GetConversationRepliesParameters{ChannelID: r.Channel, Timestamp: r.TS, Limit: 200, IncludeAllMetadata: true, Inclusive: true,
		Oldest: strconv.FormatInt(since.Add(-time.Minute).Unix(), 10)}
	for range findPages {
		page, more, cursor, err := s.client.GetConversationRepliesContext(ctx, params)
		if err != nil {
			return false, s.failure("look for reply", err)
		}
		for _, m := range page {
			if m.Metadata.EventType == replyType && m.Metadata.EventPayload["key"] == key {
				return true, nil
			}
		}
		if params.Cursor = cursor; !more || cursor == "" {
			break
		}
	}
	return false, nil
}

// findPages bounds how far back Find looks, in pages of 200 messages.
const findPages = 5

// Find looks for the message of an incident in the channel's history from a minute before since.
func (s *Slack) Find(ctx context.Context, incident string, since time.Time) (Receipt, bool, error) {
	params := &slack.GetConversationHistoryParameters{
		ChannelID: s.channel, Limit: 200, IncludeAllMetadata: true, Inclusive: true,
		Oldest: strconv.FormatInt(since.Add(-time.Minute).Unix(), 10),
	}
	for range findPages {
		page, err := s.client.GetConversationHistoryContext(ctx, params)
		if err != nil {
			return Receipt{}, false, s.failure("look for message", err)
		}
		for _, m := range page.Messages {
			if m.Metadata.EventType == metadataType && m.Metadata.EventPayload["incident"] == incident {
				return Receipt{Channel: s.channel, TS: m.Timestamp}, true, nil
			}
		}
		if params.Cursor = page.ResponseMetaData.NextCursor; params.Cursor == "" {
			break
		}
	}
	return Receipt{}, false, nil
}

// message is the card as the arguments of a call.
func (s *Slack) message(card Card, d dress) []slack.MsgOption {
	return append(marks(card), slack.MsgOptionText(fallback(card), false), slack.MsgOptionBlocks(blocks(card, d)...))
}

// marks are what every form of a card's message has.
func marks(card Card) []slack.MsgOption {
	return []slack.MsgOption{
		slack.MsgOptionMetadata(slack.SlackMetadata{EventType: metadataType, EventPayload: map[string]any{
			"incident": card.Incident, "state": card.State, "class": card.Class}}),
		slack.MsgOptionDisableLinkUnfurl(),
	}
}

// inText is the card where blocks are refused.
func inText(card Card) string {
	text := clip(verbatim(renderText(card, "", false)), 3500)
	return "```\n" + strings.ReplaceAll(text, "```", "'''") + "\n```"
}

// tooMuch says that Slack refused the form of the message, not the message.
func tooMuch(err error) bool {
	switch code(err) {
	case "invalid_blocks", "invalid_blocks_format", "msg_blocks_too_long", "msg_too_long":
		return true
	}
	return false
}

// code is Slack's word for a refusal; empty when the error is none.
func code(err error) string {
	var refusal slack.SlackErrorResponse
	if errors.As(err, &refusal) {
		return refusal.Err
	}
	return ""
}

// failure sorts an error of the client by what it proves, and takes the token out of its text.
func (s *Slack) failure(verb string, err error) error {
	var limited *slack.RateLimitedError
	var status slack.StatusCodeError
	var dial *net.OpError
	word := code(err)
	clean := fmt.Errorf("%s: %s", verb, s.redact(err.Error()))
	switch {
	case errors.As(err, &limited):
		return &Failure{After: max(limited.RetryAfter, time.Second), Err: fmt.Errorf("%s: rate limited", verb)}
	case word == "ratelimited" || word == "rate_limited":
		return &Failure{After: 30 * time.Second, Err: clean}
	case word == "message_not_found" || word == "thread_not_found" || word == "cant_update_message" || word == "edit_window_closed":
		return &Failure{Err: fmt.Errorf("%s: %w: %s", verb, ErrGone, word)}
	case strings.HasPrefix(verb, "look for ") && (word == "missing_scope" || word == "channel_not_found" || word == "not_in_channel"):
		return fmt.Errorf("%s: %w: %s\nhint: give the bot channels:history and name the channel by its ID", verb, ErrCannotLook, word)
	case word == "internal_error" || word == "fatal_error" || word == "request_timeout" || word == "service_unavailable":
		return clean // Slack's own doc: some aspect of the operation may have succeeded
	case word != "":
		return &Failure{Err: fmt.Errorf("%w%s", clean, hint(word))}
	case errors.As(err, &status) && status.Code >= 400 && status.Code < 500:
		return &Failure{Err: clean}
	case errors.As(err, &dial) && dial.Op == "dial":
		return &Failure{Err: clean}
	}
	return clean
}

func hint(word string) string {
	switch word {
	case "invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive":
		return "\nhint: the token in LOWTIDE_SLACK_TOKEN or the token file is not valid; a bot token (xoxb-) is needed"
	case "channel_not_found", "not_in_channel", "is_archived":
		return "\nhint: name a channel by its ID and invite the bot to it"
	case "missing_scope":
		return "\nhint: give the bot chat:write"
	}
	return ""
}

// socketAddress is that of a Socket Mode connection: whoever has it can listen.
var socketAddress = regexp.MustCompile(`wss?://[^\s"]+`)

// redact takes the tokens out of text, as they are and as they stand in a form or a path, and the address of a socket.
func (s *Slack) redact(text string) string {
	for _, secret := range s.secrets {
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret)} {
			text = strings.ReplaceAll(text, form, "[token]")
		}
	}
	return socketAddress.ReplaceAllString(text, "[address]")
}
