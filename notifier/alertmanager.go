package notifier

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"lowtide/event"
)

// Refresher is a Sender whose medium forgets what it is not told again. The desk calls Update, with the card as it is, for every incident
// that is open and was told there, once Every has passed since it told it last, although the card reads the same.
type Refresher interface {
	Every() time.Duration
}

// An alert lives in Alertmanager until its endsAt. That lies so far ahead that a notifier that is away over lunch does not make
// Alertmanager say "resolved", and is told anew several times before it comes.
const (
	alertLife    = 4 * time.Hour
	alertRefresh = 30 * time.Minute
)

// The limits of an alert: what is longer is cut.
const (
	maxLabel      = 512  // bytes of a label's value
	maxAnnotation = 4096 // bytes
	maxLabels     = 40
)

// Alertmanager keeps one alert per incident in an Alertmanager, through its API v2. Its labels are those of the first post, so that
// the alert stays the same when a finding knows less or more; only alertname and severity follow the incident.
type Alertmanager struct {
	name    string
	token   string
	courier *courier
}

// AlertmanagerOptions configure NewAlertmanager.
type AlertmanagerOptions struct {
	Name      string // stable across restarts: receipts are kept under it; "alertmanager" when empty
	URL       string // or URLFile; of the server, to which /api/v2/alerts is added; never printed
	URLFile   string // mode 0600
	TokenFile string // mode 0600; sent as a bearer token
	Client    *http.Client
	Now       func() time.Time
}

// NewAlertmanager returns a Sender for one Alertmanager. It does not call it.
func NewAlertmanager(o AlertmanagerOptions) (*Alertmanager, error) {
	c, name, token, err := openCourier(errand{kind: "alertmanager", name: o.Name, url: o.URL, urlFile: o.URLFile, path: "/api/v2/alerts",
		secret: "token", secretFile: o.TokenFile, client: o.Client, now: o.Now})
	if err != nil {
		return nil, err
	}
	return &Alertmanager{name: name, token: token, courier: c}, nil
}

// Name is the key of receipts.
func (a *Alertmanager) Name() string { return a.name }

// Every is how often an open incident must be told again.
func (a *Alertmanager) Every() time.Duration { return alertRefresh }

// Post fires the alert of an incident. The receipt holds its labels, which are its identity there.
func (a *Alertmanager) Post(ctx context.Context, card Card) (Receipt, error) {
	labels := alertLabels(card)
	return Receipt{Channel: "alertmanager", TS: written(labels)}, a.send(ctx, labels, labels, card)
}

// Update fires it again, or ends it when the incident is resolved.
func (a *Alertmanager) Update(ctx context.Context, r Receipt, card Card) error {
	labels := followed(r, card)
	was := read(cmp.Or(r.Fires, r.TS))
	if was == nil {
		was = labels
	}
	return a.send(ctx, was, labels, card)
}

// Noted is the receipt with the labels that the alert was sent with, so that also another process can end it.
func (a *Alertmanager) Noted(r Receipt, card Card) Receipt {
	if r.Fires = written(followed(r, card)); r.Fires == r.TS {
		r.Fires = ""
	}
	return r
}

// followed are the labels of the first post, with what follows the incident; those of the card where the receipt knows none.
func followed(r Receipt, card Card) map[string]string {
	labels := read(r.TS)
	if labels == nil {
		return alertLabels(card)
	}
	labels["alertname"], labels["severity"] = card.Class, card.Severity
	return labels
}

// written are labels as a receipt holds them; text that is no UTF-8 is mended, as in the alert itself.
func written(labels map[string]string) string {
	text, err := json.Marshal(labels, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil { // a map of text is always written
		return ""
	}
	return string(text)
}

// read are the labels that a receipt holds; nil when it holds none.
func read(text string) map[string]string {
	var labels map[string]string
	if err := json.Unmarshal([]byte(text), &labels); err != nil || len(labels) == 0 {
		return nil
	}
	return labels
}

// alert is one of Alertmanager's API v2.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations,omitempty"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
}

// send posts the alert and, where its labels are others than before, the end of the one that it was.
func (a *Alertmanager) send(ctx context.Context, was, labels map[string]string, card Card) error {
	now := a.courier.now().UTC()
	start := card.FirstSeen.UTC()
	if start.After(now) { // a clock that is ahead; an alert must not end before it starts
		start = now
	}
	alerts := []alert{{Labels: labels, Annotations: annotations(card), StartsAt: start, EndsAt: now.Add(alertLife)}}
	if card.State == event.Resolved {
		alerts[0].EndsAt = now
	}
	if !maps.Equal(was, labels) {
		alerts = append(alerts, alert{Labels: was, StartsAt: start, EndsAt: now})
	}
	body, err := json.Marshal(alerts, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return &Failure{Err: fmt.Errorf("post to %s: write alert: %w", a.courier.what, err)}
	}
	var header map[string]string
	if a.token != "" {
		header = map[string]string{"Authorization": "Bearer " + a.token}
	}
	return a.courier.post(ctx, body, header)
}

var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// alertLabels are what an alert is routed and grouped by. The release is none of them: an incident outlives it.
func alertLabels(card Card) map[string]string {
	labels := map[string]string{}
	for name, value := range labelsOf(card) {
		if name != "release" && labelName.MatchString(name) && value != "" && len(labels) < maxLabels {
			labels[name] = event.Shorten(value, maxLabel)
		}
	}
	labels["alertname"], labels["incident"], labels["severity"] = card.Class, event.Shorten(card.Incident, maxLabel), card.Severity
	if f := card.Finding; f != nil && f.Rule != "" {
		labels["rule"] = f.Rule
	}
	return labels
}

// annotations are the card's words.
func annotations(card Card) map[string]string {
	all := map[string]string{
		"title": card.Title, "summary": card.Summary, "evidence": lined(card.Evidence), "other_explanations": lined(card.Against), "where": lined(card.Where),
		"seen_together": strings.Join(card.Together, "\n"), "forecast": card.Forecast, "advice": strings.Join(card.Advice, "\n"),
		"commands": strings.Join(card.Next, "\n"), "state": card.State, "people": lined(card.People), "workers": lined(card.Workers), "replicas": card.Replicas,
	}
	if strings.HasPrefix(card.Runbook, "https://") || strings.HasPrefix(card.Runbook, "http://") { // by custom this one is a link
		all["runbook_url"] = card.Runbook
	}
	if f := card.Finding; f != nil {
		all["release"] = matched(f, "release")
	}
	for name, text := range all {
		if text = event.Shorten(text, maxAnnotation); text == "" {
			delete(all, name)
		} else {
			all[name] = text
		}
	}
	return all
}

func lined(lines []Line) string {
	var list []string
	for _, line := range lines {
		list = append(list, line.Name+": "+line.Value)
	}
	return strings.Join(list, "\n")
}
