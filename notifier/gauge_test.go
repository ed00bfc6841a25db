package notifier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/collector/exporter"
)

// heard passes on what a log says, as it is said.
type heard chan string

func (h heard) Write(line []byte) (int, error) {
	h <- string(line)
	return len(line), nil
}

// await waits for a line that holds words.
func (h heard) await(t *testing.T, words string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case line := <-h:
			if strings.Contains(line, words) {
				return
			}
		case <-limit:
			t.Fatalf("the log never says %q", words)
		}
	}
}

// The process is not ready while its outbox refuses findings, and says since when; it is again when the bucket has room.
func TestReadyzNamesAnOutboxThatRefuses(t *testing.T) {
	b, gauge, log := newBroker(t), new(Gauge), make(heard, 10000)
	resize := func(bytes int64) {
		t.Helper()
		if _, err := b.js.UpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: Bucket, MaxBytes: bytes}); err != nil {
			t.Fatal(err)
		}
	}
	resize(64) // bytes, which no record fits into
	server, err := exporter.Listen(t.Context(), "127.0.0.1:0", exporter.Checks{{Name: "notifier", Well: gauge.Well}}, gauge)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close(t.Context())
	read := func(path string) (int, string) {
		t.Helper()
		answer, err := http.Get("http://" + server.Addr() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	clock := func() time.Time { return time.Now().Add(-2 * time.Minute) } // so that what is refused now has been for two minutes
	began := clock().Truncate(time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, b.js, Options{Senders: []Sender{&medium{cards: map[string]Card{}}}, Log: slog.New(slog.NewTextHandler(log, nil)), Interval: time.Millisecond, Backoff: 5 * time.Millisecond,
			Now: clock, Gauge: gauge})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	b.publish(t, leak())
	log.await(t, "keep a finding for later")
	log.await(t, "keep a finding for later") // what the first one left is seen before the second one comes
	code, text := read("/readyz")
	since, named := strings.CutPrefix(text, "not ready: notifier: the outbox LOWTIDE_OUTBOX does not take the findings of 1 incident since ")
	at, err := time.Parse("2006-01-02 15:04:05 UTC", since[:min(len(since), 23)])
	if code != 503 || !named || err != nil || at.Before(began) || at.After(clock()) {
		t.Errorf("%d %q", code, text)
	}
	if _, text := read("/metrics"); !strings.Contains(text, "\nlowtide_notifier_unkept_incidents 1\n") || !strings.Contains(text, "\nlowtide_notifier_unkept_seconds 12") {
		t.Errorf("/metrics says\n%s", text)
	}
	resize(1 << 20)
	log.await(t, "msg=told")
	b.publish(t, paged())
	log.await(t, "msg=told") // what the first one left is seen before the second one comes
	if code, text := read("/readyz"); code != 200 || text != "ok\n" {
		t.Errorf("with room again: %d %q", code, text)
	}
	if _, text := read("/metrics"); !strings.Contains(text, "\nlowtide_notifier_unkept_incidents 0\n") || !strings.Contains(text, "\nlowtide_notifier_broken_seconds{sender=\"slack\"} 0\n") || !strings.Contains(text, "\nlowtide_notifier_unkept_seconds 0\n") {
		t.Errorf("/metrics says\n%s", text)
	}
}

// Every output that takes nothing is named, with since when; one that works again is not, nor is any while nothing waits.
func TestGaugeNamesBrokenOutputs(t *testing.T) {
	now := time.Now()
	at := func(ago time.Duration) time.Time { return now.Add(-ago) }
	g := new(Gauge)
	g.fail("pager", errors.New("answered 502"), at(10*time.Minute), time.Time{})
	g.fail("pager", errors.New("no answer in time"), at(time.Minute), time.Time{})
	g.fail("hook", errors.New("answered 404"), at(5*time.Minute), time.Time{})
	g.fail("slack", errors.New("not_in_channel"), at(5*time.Minute), time.Time{})
	g.tell("slack", Post)
	if err := g.Well(); err != nil {
		t.Errorf("nothing waits: %v", err)
	}
	g.waiting, g.oldest = 2, at(59*time.Second)
	if err := g.Well(); err != nil {
		t.Errorf("they wait for less than a minute: %v", err)
	}
	g.oldest = at(10 * time.Minute)
	want := "output hook takes nothing since " + clock(at(5*time.Minute)) + ": answered 404; output pager takes nothing since " + clock(at(10*time.Minute)) +
		": no answer in time; 2 incidents wait since " + clock(at(10*time.Minute))
	if err := g.Well(); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// An output whose message somebody took away works: no metric says until its next message that it takes nothing.
func TestGaugeKnowsThatAMediumWithoutAMessageWorks(t *testing.T) {
	g := new(Gauge)
	g.fail("slack", errors.New("no answer in time"), time.Now(), time.Time{})
	g.fail("slack", &Failure{Err: fmt.Errorf("edit: %w: message_not_found", ErrGone)}, time.Now(), time.Time{})
	if one, is := g.broken["slack"]; is {
		t.Errorf("broken since %v: %s", one.since, one.cause)
	}
	if g.failed["slack"] != 2 {
		t.Errorf("%v calls failed, want 2", g.failed["slack"])
	}
}

// A reply whose sending had no answer, and which the thread has, is all there was to tell: the medium is not broken.
func TestGaugeKnowsThatAMediumThatFoundAReplyWorks(t *testing.T) {
	b, m := newBroker(t), newForum()
	d := deskOn(t, b, m, routing{})
	d.o.Gauge = new(Gauge)
	d.foldAll(t, leak())
	d.settle(t, &m.medium)
	d.foldAll(t, paged())
	m.cut = func() error { return errors.New("no answer") }
	for range 3 {
		m.now = m.now.Add(d.deliver(t.Context()))
	}
	m.cut = nil
	d.settle(t, &m.medium)
	if d.o.Gauge.failed["slack"] == 0 || len(d.o.Gauge.broken) > 0 || len(m.all()) != 1 {
		t.Errorf("%v calls failed, broken are %v, the thread says %q", d.o.Gauge.failed, d.o.Gauge.broken, m.all())
	}
}
