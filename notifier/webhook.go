package notifier

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/event"
)

// WebhookVersion is the version of the document that a webhook gets. It rises when a field goes or changes its meaning; new fields may
// come at any time.
const WebhookVersion = 1

// maxDocument bounds the document of a webhook, in bytes. What is longer goes without the whole finding.
const maxDocument = 256 << 10

// minSecret is the least length of a secret that signs, in bytes.
const minSecret = 16

// Webhook posts one JSON document per card and per change of it. Docs/webhook.md describes the document and its signature.
type Webhook struct {
	name    string
	secret  []byte
	courier *courier
}

// WebhookOptions configure NewWebhook.
type WebhookOptions struct {
	Name       string // stable across restarts: receipts are kept under it; "webhook" when empty
	URL        string // or URLFile; never printed
	URLFile    string // mode 0600
	SecretFile string // mode 0600; what signs the documents; without it they are not signed
	Client     *http.Client
	Now        func() time.Time
}

// NewWebhook returns a Sender for one address. It does not call it.
func NewWebhook(o WebhookOptions) (*Webhook, error) {
	c, name, secret, err := openCourier(errand{kind: "webhook", name: o.Name, url: o.URL, urlFile: o.URLFile, secret: "secret", secretFile: o.SecretFile,
		client: o.Client, now: o.Now})
	if err != nil {
		return nil, err
	}
	w := &Webhook{name: name, courier: c}
	if o.SecretFile != "" {
		if len(secret) < minSecret {
			return nil, fmt.Errorf("open %s: its secret has %d bytes, it needs %d\nhint: openssl rand -hex 32 > %s", c.what, len(secret), minSecret, o.SecretFile)
		}
		w.secret = []byte(secret)
	}
	return w, nil
}

// Name is the key of receipts.
func (w *Webhook) Name() string { return w.name }

// Post sends the first document of an incident.
func (w *Webhook) Post(ctx context.Context, card Card) (Receipt, error) {
	return Receipt{Channel: "webhook"}, w.send(ctx, "post", card)
}

// Update sends a later one.
func (w *Webhook) Update(ctx context.Context, _ Receipt, card Card) error {
	return w.send(ctx, "update", card)
}

func (w *Webhook) send(ctx context.Context, what string, card Card) error {
	body, err := document(what, card)
	if err != nil {
		return &Failure{Err: fmt.Errorf("post to %s: %w", w.courier.what, err)}
	}
	header := map[string]string{"X-Lowtide-Event": what, "X-Lowtide-Incident": headerText(card.Incident)}
	if w.secret != nil {
		stamp := strconv.FormatInt(w.courier.now().Unix(), 10)
		header["X-Lowtide-Timestamp"], header["X-Lowtide-Signature"] = stamp, sign(w.secret, stamp, body)
	}
	return w.courier.post(ctx, body, header)
}

// sign is the HMAC-SHA256 over the time, a dot and the body: with the time in it, an old document cannot be played again.
func sign(secret []byte, stamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// headerText drops what a header cannot carry.
func headerText(text string) string {
	var out []byte
	for _, c := range []byte(text) {
		if c > ' ' && c < 0x7f {
			out = append(out, c)
		}
	}
	return string(out)
}

// webhookDocument is what a webhook gets of one card.
type webhookDocument struct {
	Version    int               `json:"version"`
	Event      string            `json:"event"` // post or update
	Incident   string            `json:"incident"`
	State      string            `json:"state"`
	Severity   string            `json:"severity"`
	Class      string            `json:"class"`
	Rule       string            `json:"rule,omitzero"`
	Confidence *float64          `json:"confidence,omitempty"` // absent when unknown
	Title      string            `json:"title"`
	Summary    string            `json:"summary"`
	FirstSeen  time.Time         `json:"first_seen"`
	Changed    time.Time         `json:"changed"`
	Labels     map[string]string `json:"labels"`
	People     []documentLine    `json:"people,omitempty"`
	Where      []documentLine    `json:"where,omitempty"`
	Workers    []documentLine    `json:"workers,omitempty"`
	Evidence   []documentLine    `json:"evidence,omitempty"`
	Held       []string          `json:"held,omitempty"`
	Together   []string          `json:"seen_together,omitempty"`
	Against    []documentLine    `json:"other_explanations,omitempty"`
	Forecast   string            `json:"forecast,omitzero"`
	Blind      []documentLine    `json:"not_assessable,omitempty"`
	Advice     []string          `json:"advice,omitempty"`
	Replicas   string            `json:"replicas,omitzero"`
	Commands   []string          `json:"commands,omitempty"`
	Links      map[string]string `json:"links,omitempty"`
	Finding    jsontext.Value    `json:"finding,omitempty"`
}

// documentLine is a name and its value, both for people; a list of them keeps its order.
type documentLine struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// document is the card as JSON, at most maxDocument bytes.
func document(what string, card Card) ([]byte, error) {
	d := webhookDocument{Version: WebhookVersion, Event: what, Incident: card.Incident, State: card.State, Severity: card.Severity, Class: card.Class,
		Title: card.Title, Summary: card.Summary, FirstSeen: card.FirstSeen.UTC(), Changed: card.Changed.UTC(), Labels: labelsOf(card),
		People: documentLines(card.People), Where: documentLines(card.Where), Workers: documentLines(card.Workers), Replicas: card.Replicas, Evidence: documentLines(card.Evidence), Held: card.Held, Together: card.Together, Against: documentLines(card.Against),
		Forecast: card.Forecast, Blind: documentLines(card.Blind), Advice: card.Advice, Commands: card.Next}
	if card.Runbook != "" {
		d.Links = map[string]string{"runbook": card.Runbook}
	}
	if f := card.Finding; f != nil && card.Class != stormClass { // a digest has no finding of its own
		d.Rule = f.Rule
		if f.Confidence >= 0 && f.Confidence <= 1 {
			d.Confidence = &f.Confidence
		}
		if whole, err := event.MarshalFinding(f); err == nil { // the words above are worth sending without it
			d.Finding = whole
		}
	}
	options := json.JoinOptions(jsontext.AllowInvalidUTF8(true), json.Deterministic(true))
	body, err := json.Marshal(d, options)
	if err == nil && len(body) > maxDocument {
		d.Finding = nil
		body, err = json.Marshal(d, options)
	}
	if err != nil {
		return nil, fmt.Errorf("write document of incident %q: %w", card.Incident, err)
	}
	if len(body) > maxDocument {
		return nil, errors.New("the document is too long even without its finding")
	}
	return body, nil
}

func documentLines(lines []Line) []documentLine {
	var list []documentLine
	for _, line := range lines {
		list = append(list, documentLine(line))
	}
	return list
}

// labelsOf is what an incident can be sorted and routed by: only what is known, and the finding's own labels beside it.
func labelsOf(card Card) map[string]string {
	labels := map[string]string{}
	f := card.Finding
	if f == nil {
		return labels
	}
	for name, value := range f.Labels {
		labels[name] = value
	}
	for _, name := range []string{"cluster", "host", "model", "release", "slot", "team"} {
		if value := matched(f, name); value != "" {
			labels[name] = value
		}
	}
	return labels
}
