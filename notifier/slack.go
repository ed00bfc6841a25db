package notifier

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/slack-go/slack"
)

// metadataType marks lowtide's messages in a channel's history; the payload names the incident.
const metadataType = "lowtide_incident"

// Slack keeps one message per incident in a channel, with a bot token: only a bot can update its own messages.
type Slack struct {
	client  *slack.Client
	channel string
	token   string
}

// SlackOptions configure NewSlack.
type SlackOptions struct {
	Token   string // xoxb-…, with chat:write; channels:history lets a crash between sending and noting be healed
	Channel string // a channel ID; with a name, earlier messages cannot be looked for
	URL     string // of the API, ending in "/"; empty for Slack's own
	Client  *http.Client
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
	return &Slack{client: slack.New(o.Token, options...), channel: o.Channel, token: o.Token}, nil
}

// ReadToken reads a token file. Others than its owner must not be able to read it.
func ReadToken(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read slack token: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return "", fmt.Errorf("read slack token: %s has mode %04o, others can read it\nhint: chmod 600 %s", path, mode, path)
	}
	if info.Size() > 4096 {
		return "", fmt.Errorf("read slack token: %s is %d bytes long, a token is not\nhint: put the token alone into the file", path, info.Size())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read slack token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("read slack token: %s is empty", path)
	}
	return token, nil
}

// Name is the key of receipts.
func (s *Slack) Name() string { return "slack" }

// Post sends the card as a new message.
func (s *Slack) Post(ctx context.Context, card Card) (Receipt, error) {
	channel, ts, err := s.client.PostMessageContext(ctx, s.channel, message(card, true)...)
	if tooMuch(err) {
		channel, ts, err = s.client.PostMessageContext(ctx, s.channel, message(card, false)...)
	}
	if err != nil {
		return Receipt{}, s.failure("post message", err)
	}
	return Receipt{Channel: channel, TS: ts}, nil
}

// Update replaces the message of a receipt by the card.
func (s *Slack) Update(ctx context.Context, r Receipt, card Card) error {
	_, _, _, err := s.client.UpdateMessageContext(ctx, r.Channel, r.TS, message(card, true)...)
	if tooMuch(err) {
		_, _, _, err = s.client.UpdateMessageContext(ctx, r.Channel, r.TS, message(card, false)...)
	}
	if err != nil {
		return s.failure("update message", err)
	}
	return nil
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

// message is the card as the arguments of a call; without blocks when Slack refuses them.
func message(card Card, withBlocks bool) []slack.MsgOption {
	options := []slack.MsgOption{
		slack.MsgOptionMetadata(slack.SlackMetadata{EventType: metadataType, EventPayload: map[string]any{
			"incident": card.Incident, "state": card.State, "class": card.Class}}),
		slack.MsgOptionDisableLinkUnfurl(),
	}
	if withBlocks {
		return append(options, slack.MsgOptionText(fallback(card), false), slack.MsgOptionBlocks(blocks(card)...))
	}
	text := clip(escape(renderText(card, "", false)), 3500)
	return append(options, slack.MsgOptionText("```\n"+strings.ReplaceAll(text, "```", "'''")+"\n```", false))
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
	case word == "message_not_found" || word == "cant_update_message" || word == "edit_window_closed":
		return &Failure{Err: fmt.Errorf("%s: %w: %s", verb, ErrGone, word)}
	case verb == "look for message" && (word == "missing_scope" || word == "channel_not_found" || word == "not_in_channel"):
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

// redact takes the token out of text, as it is and as it stands in a form or a path.
func (s *Slack) redact(text string) string {
	for _, form := range []string{s.token, url.QueryEscape(s.token), url.PathEscape(s.token)} {
		text = strings.ReplaceAll(text, form, "[token]")
	}
	return text
}
