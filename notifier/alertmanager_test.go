package notifier

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"lowtide/event"
)

// posted are the alerts of a call, as Alertmanager's API v2 names their fields.
func posted(t *testing.T, body []byte) []alert {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.DisallowUnknownFields()
	var list []struct {
		Labels       map[string]string `json:"labels"`
		Annotations  map[string]string `json:"annotations"`
		StartsAt     time.Time         `json:"startsAt"`
		EndsAt       time.Time         `json:"endsAt"`
		GeneratorURL string            `json:"generatorURL"`
	}
	if err := decoder.Decode(&list); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	var out []alert
	for _, one := range list {
		for name, value := range one.Labels {
			if !labelName.MatchString(name) || value == "" {
				t.Errorf("Alertmanager refuses the label %s=%q", name, value)
			}
		}
		if one.EndsAt.Before(one.StartsAt) {
			t.Errorf("Alertmanager refuses an alert from %v to %v", one.StartsAt, one.EndsAt)
		}
		out = append(out, alert{one.Labels, one.Annotations, one.StartsAt, one.EndsAt})
	}
	return out
}

func TestAlertOfAnIncident(t *testing.T) {
	path := make(chan string, 10)
	c := newReceiver(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		path <- r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization")
	})
	now := noon.Add(10 * time.Minute)
	a, err := NewAlertmanager(AlertmanagerOptions{Name: "am", URL: c.url + "/prefix/", TokenFile: secretFile(t, "bearer-secret"), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	f := leak()
	f.Labels = map[string]string{"team": "ml", "not-a-label": "x", "empty": ""}
	receipt, err := a.Post(t.Context(), Build(history(f)).ready(Hints{Runbooks: "https://wiki.example/oncall"}))
	if err != nil {
		t.Fatal(err)
	}
	if got := <-path; got != "POST /prefix/api/v2/alerts Bearer bearer-secret" {
		t.Errorf("called %s", got)
	}
	first := posted(t, c.body(1))
	if len(first) != 1 {
		t.Fatalf("posted %d alerts", len(first))
	}
	want := map[string]string{"alertname": "retention", "severity": "ticket", "incident": "inc-7f3a", "cluster": "prod", "host": "gpu-07", "slot": "prod/gpu-07/vllm-a/0/1",
		"model": "llama-70b", "rule": "retention", "team": "ml"}
	if len(first[0].Labels) != len(want) {
		t.Errorf("labels %v", first[0].Labels)
	}
	for name, value := range want {
		if first[0].Labels[name] != value {
			t.Errorf("label %s is %q, want %q", name, first[0].Labels[name], value)
		}
	}
	if !first[0].StartsAt.Equal(noon) || !first[0].EndsAt.Equal(now.Add(4*time.Hour)) {
		t.Errorf("from %v to %v", first[0].StartsAt, first[0].EndsAt)
	}
	said := first[0].Annotations
	if said["summary"] != "Live memory rises 2 GiB/h across 4 quiet points" || !strings.Contains(said["advice"], "Drain the worker") || said["release"] != "r41" ||
		said["runbook_url"] != "https://wiki.example/oncall#retention" || !strings.Contains(said["evidence"], "48 GiB") || said["state"] != "suspected" {
		t.Errorf("annotations %v", said)
	}
	if _, stands := said["seen_together"]; stands {
		t.Error("what is not known is no annotation")
	}

	// Told again, it is the same alert with a later end.
	now = now.Add(a.Every())
	if err := a.Update(t.Context(), receipt, Build(history(f))); err != nil {
		t.Fatal(err)
	}
	again := posted(t, c.body(2))
	if len(again) != 1 || !again[0].EndsAt.Equal(now.Add(4*time.Hour)) || len(again[0].Labels) != len(want) {
		t.Errorf("told again: %v", again)
	}

	// A page is another alert to Alertmanager; the ticket ends with it.
	if err := a.Update(t.Context(), receipt, Build(history(f, paged()))); err != nil {
		t.Fatal(err)
	}
	page := posted(t, c.body(3))
	if len(page) != 2 || page[0].Labels["severity"] != "page" || !page[0].EndsAt.After(now) || page[1].Labels["severity"] != "ticket" || page[1].EndsAt.After(now) || page[0].Labels["team"] != "ml" {
		t.Errorf("a page: %v", page)
	}
	receipt = a.Noted(receipt, Build(history(f, paged())))
	if err := a.Update(t.Context(), receipt, Build(history(f, paged()))); err != nil {
		t.Fatal(err)
	}
	if more := posted(t, c.body(4)); len(more) != 1 {
		t.Errorf("the ticket ends once: %v", more)
	}

	// The end has another release and no labels; it ends the alert that fires all the same.
	if err := a.Update(t.Context(), receipt, Build(history(f, paged(), over()))); err != nil {
		t.Fatal(err)
	}
	end := posted(t, c.body(5))
	if len(end) != 1 || end[0].EndsAt.After(now) || end[0].Labels["severity"] != "page" || end[0].Labels["team"] != "ml" || end[0].Annotations["release"] != "r42" {
		t.Errorf("the end: %v", end)
	}
}

// After a restart the receipt alone says what fires there.
func TestAlertAfterARestart(t *testing.T) {
	c := newReceiver(t, nil)
	open := func() *Alertmanager {
		a, err := NewAlertmanager(AlertmanagerOptions{URL: c.url + "/api/v2/alerts", Now: func() time.Time { return noon.Add(2 * time.Hour) }})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	receipt, err := open().Post(t.Context(), Build(history(leak())))
	if err != nil {
		t.Fatal(err)
	}
	if err := open().Update(t.Context(), receipt, Build(history(leak(), paged()))); err != nil {
		t.Fatal(err)
	}
	if got := posted(t, c.body(2)); len(got) != 2 || got[1].Labels["severity"] != "ticket" || got[1].EndsAt.After(noon.Add(2*time.Hour)) {
		t.Errorf("posted %v", got)
	}
	if err := open().Update(t.Context(), Receipt{}, Build(history(leak()))); err != nil {
		t.Fatal(err)
	}
	if got := posted(t, c.body(3)); len(got) != 1 || got[0].Labels["incident"] != "inc-7f3a" {
		t.Errorf("without a receipt: %v", got)
	}
}

func TestAlertmanagerAnswers(t *testing.T) {
	status := http.StatusOK
	c := newReceiver(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "9")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `"start time must be before end time" bearer-secret`)
	})
	a, err := NewAlertmanager(AlertmanagerOptions{URL: c.url + hookPath, TokenFile: secretFile(t, "bearer-secret"), Now: func() time.Time { return noon.Add(-time.Hour) }})
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := a.Post(t.Context(), Build(history(leak()))) // a host whose clock is an hour ahead
	if err != nil {
		t.Fatal(err)
	}
	posted(t, c.body(1))
	for _, one := range []struct {
		status int
		proven bool
		after  time.Duration
	}{{400, true, 0}, {429, true, 9 * time.Second}, {500, false, 0}} {
		status = one.status
		var failure *Failure
		err := a.Update(t.Context(), receipt, Build(history(leak(), paged())))
		if err == nil || errors.As(err, &failure) != one.proven || one.proven && failure.After != one.after {
			t.Errorf("%d: %v", one.status, err)
		}
		if private(t, "alertmanager", err.Error(), c.url); strings.Contains(err.Error(), "bearer-secret") {
			t.Errorf("the token stands in %q", err)
		}
	}
	// What was refused is not noted: the ticket still has to end.
	status = http.StatusOK
	if err := a.Update(t.Context(), receipt, Build(history(leak(), paged()))); err != nil {
		t.Fatal(err)
	}
	if got := posted(t, c.body(5)); len(got) != 2 {
		t.Errorf("posted %v", got)
	}
}

func TestAlertmanagerOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]AlertmanagerOptions{
		"no address":         {},
		"a query":            {URL: "https://am.example" + hookPath + "?" + hookQuery},
		"is no address":      {URL: "am.example" + hookPath},
		"token of alertmana": {URL: "https://am.example", TokenFile: "/nowhere"},
	} {
		_, err := NewAlertmanager(o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
			continue
		}
		private(t, want, err.Error(), "https://am.example")
	}
}

func TestAlertIsBounded(t *testing.T) {
	f := leak()
	f.Labels = map[string]string{}
	for i := range 100 {
		f.Labels[strings.Repeat("l", i+1)] = strings.Repeat("v", 10000)
	}
	for range 1000 {
		f.Advice = append(f.Advice, strings.Repeat("x", 100))
	}
	card := Build(history(f))
	labels := alertLabels(card)
	if len(labels) > maxLabels+4 || labels["alertname"] != "retention" {
		t.Errorf("%d labels", len(labels))
	}
	for name, value := range labels {
		if len(value) > maxLabel {
			t.Errorf("label %s has %d bytes", name, len(value))
		}
	}
	for name, value := range annotations(card) {
		if len(value) > maxAnnotation {
			t.Errorf("annotation %s has %d bytes", name, len(value))
		}
	}
	if none := alertLabels(Card{Incident: "storm-1", Class: stormClass, Severity: event.Page}); len(none) != 3 {
		t.Errorf("a digest has the labels %v", none)
	}
}

// What fires when a notifier ends is known to the next one: an alert that has other labels by then ends.
func TestAlertThatChangesAfterARestart(t *testing.T) {
	b, c := newBroker(t), newReceiver(t, nil)
	now := noon.Add(2 * time.Hour)
	clock := func() time.Time { return now }
	start := func() *desk {
		t.Helper()
		a, err := NewAlertmanager(AlertmanagerOptions{URL: c.url, Now: clock})
		if err != nil {
			t.Fatal(err)
		}
		d := newDesk(Options{Senders: []Sender{a}, Log: slog.New(slog.DiscardHandler), Interval: time.Second, Backoff: time.Second, Timeout: 10 * time.Second, Now: clock}, outbox{kv: b.kv})
		if err := d.resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		return d
	}
	tell := func(d *desk, f *event.Finding) {
		t.Helper()
		d.foldAll(t, f)
		d.run(t, &now)
	}
	kinds := func(n int) (all []string) {
		t.Helper()
		for _, one := range posted(t, c.body(n)) {
			kind := one.Labels["alertname"] + " " + one.Labels["severity"]
			if !one.EndsAt.After(now) {
				kind += " ends"
			}
			all = append(all, kind)
		}
		return all
	}
	d := start()
	tell(d, leak())
	tell(d, paged())
	other, last := paged(), over()
	other.ID, other.Class, other.Time = "f4", "native_growth", other.Time.Add(time.Minute)
	tell(start(), other)
	last.Class = other.Class
	tell(start(), last)
	for n, want := range []string{"retention ticket", "retention page, retention ticket ends", "native_growth page, retention page ends", "native_growth page ends"} {
		if got := strings.Join(kinds(n+1), ", "); got != want {
			t.Errorf("call %d told %q, want %q", n+1, got, want)
		}
	}
}

// The real desk tells Alertmanager again of what is open, before it forgets, and of nothing that is over.
func TestDeskRefreshesAlerts(t *testing.T) {
	b, c := newBroker(t), newReceiver(t, nil)
	now := noon
	clock := func() time.Time { return now }
	a, err := NewAlertmanager(AlertmanagerOptions{URL: c.url, Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	d := newDesk(Options{Senders: []Sender{a}, Log: slog.New(slog.DiscardHandler), Interval: time.Second, Backoff: time.Second, Timeout: 10 * time.Second, Now: clock}, outbox{kv: b.kv})
	work := func(until time.Duration) {
		t.Helper()
		for limit := now.Add(until); now.Before(limit); {
			now = now.Add(max(min(d.deliver(t.Context()), limit.Sub(now)), time.Second))
		}
		d.deliver(t.Context())
	}
	d.foldAll(t, leak())
	work(2 * time.Hour)
	calls := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.bodies)
	}
	// The first one and one every half hour: 0:00, 0:30, 1:00, 1:30, 2:00, the last of which may lie a second behind the end.
	told := calls()
	if told < 4 || told > 5 {
		t.Errorf("told %d times in two hours", told)
	}
	for n := 1; n <= told; n++ {
		if got := posted(t, c.body(n)); len(got) != 1 || got[0].Labels["incident"] != "inc-7f3a" || got[0].EndsAt.Sub(noon) < 4*time.Hour {
			t.Errorf("call %d: %v", n, got)
		}
	}
	d.foldAll(t, over())
	work(2 * time.Hour)
	if got := posted(t, c.body(told+1)); got[0].EndsAt.After(now) || calls() != told+1 {
		t.Errorf("after the end %d more calls, the first of them %v", calls()-told, got)
	}
}
