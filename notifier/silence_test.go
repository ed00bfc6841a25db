package notifier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/event"
	"lowtide/processor/broker"
	"lowtide/processor/broker/brokertest"
)

func TestSilenceCovers(t *testing.T) {
	labelled := leak()
	labelled.Labels = map[string]string{"team": "ml", "cluster": "prod", "host": "gpu-07"}
	bare := &event.Finding{Incident: "inc-1", Class: "blind", Severity: event.Ticket, Subject: event.Subject{Kind: "host", Key: "lab/gpu-01"}}
	newer := leak()
	newer.Release = "r42"
	for name, c := range map[string]struct {
		match map[string]string
		not   string
		f     *event.Finding
		want  bool
	}{
		"class":                   {map[string]string{"class": "retention"}, "", leak(), true},
		"another class":           {map[string]string{"class": "fd_leak"}, "", leak(), false},
		"host by key":             {map[string]string{"host": "gpu-*"}, "", leak(), true},
		"host by label":           {map[string]string{"host": "gpu-07", "cluster": "prod"}, "", labelled, true},
		"half of a host":          {map[string]string{"host": "gpu-0"}, "", leak(), false},
		"all must hold":           {map[string]string{"class": "retention", "host": "gpu-08"}, "", leak(), false},
		"model":                   {map[string]string{"model": "llama-*"}, "", leak(), true},
		"release of the worker":   {map[string]string{"release": "r41"}, "", leak(), true},
		"slot":                    {map[string]string{"slot": "prod/gpu-07/vllm-a/*"}, "", leak(), true},
		"incident":                {map[string]string{"incident": "inc-7f3a"}, "", leak(), true},
		"severity":                {map[string]string{"severity": "page"}, "", leak(), false},
		"rule":                    {map[string]string{"rule": "retention"}, "", leak(), true},
		"team":                    {map[string]string{"team": "ml"}, "", labelled, true},
		"absent is not any":       {map[string]string{"team": "*"}, "", leak(), false},
		"a host has a cluster":    {map[string]string{"cluster": "lab"}, "", bare, true},
		"no model, no match":      {map[string]string{"model": "*"}, "", bare, false},
		"nothing":                 {nil, "", leak(), false},
		"this release":            {map[string]string{"class": "retention"}, "r41", leak(), true},
		"the next release":        {map[string]string{"class": "retention"}, "r41", newer, false},
		"release is not known":    {map[string]string{"class": "blind"}, "r41", bare, true},
		"a key of another binary": {map[string]string{"weather": "*"}, "", leak(), false},
	} {
		s := Silence{Match: c.match, NotRelease: c.not, Until: noon.Add(time.Hour)}
		if got := s.Covers(c.f, noon); got != c.want {
			t.Errorf("%s: covers %v, want %v", name, got, c.want)
		}
		if s.Covers(c.f, noon.Add(time.Hour)) {
			t.Errorf("%s: covers at its end", name)
		}
		if s.Ended = true; s.Covers(c.f, noon) {
			t.Errorf("%s: covers after it was ended", name)
		}
	}
}

func TestSilenceOfEverything(t *testing.T) {
	for _, c := range []struct {
		match map[string]string
		want  bool
	}{
		{map[string]string{}, true},
		{map[string]string{"class": "*"}, true},
		{map[string]string{"class": "*", "host": "*"}, true},
		{map[string]string{"class": "*", "host": "gpu-*"}, false},
		{map[string]string{"team": "*"}, false}, // some have none
		{map[string]string{"cluster": "prod"}, false},
	} {
		if got := (Silence{Match: c.match}).Everything(); got != c.want {
			t.Errorf("%v: everything %v, want %v", c.match, got, c.want)
		}
	}
}

func TestSilencesLiveInTheBucket(t *testing.T) {
	_, _, js := brokertest.Start(t)
	ctx := t.Context()
	here, err := OpenSilences(ctx, js, nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- here.Watch(watch) }()
	there, err := OpenSilences(ctx, js, nil)
	if err != nil {
		t.Fatal(err)
	}
	short, err := there.Add(ctx, Silence{Match: map[string]string{"class": "retention"}, Until: noon.Add(time.Hour), By: "ann\x1b[31m", Comment: " known,\nr42 mends it ", Created: noon})
	if err != nil {
		t.Fatal(err)
	}
	if short.By != "ann[31m" || short.Comment != "known, r42 mends it" || !strings.HasPrefix(short.ID, "s-") {
		t.Errorf("added %+v", short)
	}
	await(t, here.Changed(), func() bool { return len(here.List()) == 1 })
	long, err := there.Add(ctx, Silence{Match: map[string]string{"host": "gpu-*"}, Until: noon.Add(4 * time.Hour), By: "bob", Created: noon.Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	await(t, here.Changed(), func() bool { return len(here.List()) == 2 })
	if got := here.List(); got[0].ID != long.ID || got[1].ID != short.ID {
		t.Errorf("listed %v, want the newest first", got)
	}
	if got := here.Covering(leak(), noon.Add(2*time.Minute)); len(got) != 2 || got[0].ID != long.ID {
		t.Errorf("covered by %v, want both, the longer first", got)
	}
	if at, ok := here.Next(noon); !ok || !at.Equal(noon.Add(time.Hour)) {
		t.Errorf("next end %v, %v", at, ok)
	}
	if got := here.Unnoticed(noon.Add(time.Hour)); len(got) != 1 || got[0].ID != short.ID {
		t.Errorf("expired %v", got)
	}
	if err := here.Notice(ctx, short.ID); err != nil {
		t.Fatal(err)
	}
	if got := here.Unnoticed(noon.Add(time.Hour)); len(got) != 0 {
		t.Errorf("expired and noticed %v", got)
	}
	ended, err := there.End(ctx, long.ID, "ann", noon.Add(2*time.Hour))
	if err != nil || !ended.Ended || ended.EndedBy != "ann" || !ended.EndedAt.Equal(noon.Add(2*time.Hour)) {
		t.Errorf("ended %+v, %v", ended, err)
	}
	await(t, here.Changed(), func() bool { return len(here.Unnoticed(noon.Add(2*time.Hour))) == 1 })
	again, err := here.End(ctx, long.ID, "bob", noon.Add(3*time.Hour))
	if err != nil || again.EndedBy != "ann" {
		t.Errorf("ended twice: %+v, %v", again, err)
	}
	if _, err := here.End(ctx, "s-none", "bob", noon); !errors.Is(err, ErrNoSilence) {
		t.Errorf("ended what is not there: %v", err)
	}
	// A month after their ends both go when the next one comes.
	next, err := here.Add(ctx, Silence{Match: map[string]string{"class": "stall"}, Until: noon.Add(1000 * time.Hour), Created: noon.Add(31 * 24 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if got := here.List(); len(got) != 1 || got[0].ID != next.ID {
		t.Errorf("after a month there are %v", got)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("watch: %v", err)
	}
}

// await waits until the condition holds, which is asked again after every value of the channel.
func await(t *testing.T, changed <-chan struct{}, holds func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !holds() {
		select {
		case <-changed:
		case <-limit:
			t.Fatal("it does not come to that")
		}
	}
}

func TestSilenceIsRefused(t *testing.T) {
	_, _, js := brokertest.Start(t)
	s, err := OpenSilences(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	fine := Silence{Match: map[string]string{"class": "stall"}, Until: noon, Created: noon}
	for want, change := range map[string]func(*Silence){
		"matches nothing":        func(s *Silence) { s.Match = nil },
		"no end":                 func(s *Silence) { s.Until = time.Time{} },
		`matcher "colour"`:       func(s *Silence) { s.Match = map[string]string{"colour": "red"} },
		"only at the end":        func(s *Silence) { s.Match = map[string]string{"host": "*07"} },
		"1 to 512 bytes":         func(s *Silence) { s.Match = map[string]string{"host": ""} },
		"comment: 1025 bytes":    func(s *Silence) { s.Comment = strings.Repeat("x", 1025) },
		"by: 129 bytes":          func(s *Silence) { s.By = strings.Repeat("x", 129) },
		"release: 513 bytes":     func(s *Silence) { s.NotRelease = strings.Repeat("x", 513) },
		"must be text of 1 to 5": func(s *Silence) { s.Match = map[string]string{"host": "\xff"} },
	} {
		one := fine
		change(&one)
		if _, err := s.Add(t.Context(), one); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if len(s.List()) != 0 {
		t.Errorf("stored %v", s.List())
	}
}

// What somebody else wrote into the bucket and is no silence silences nothing, is said, and hides no other.
func TestBrokenSilenceIsSkipped(t *testing.T) {
	_, _, js := brokertest.Start(t)
	kv, err := js.KeyValue(t.Context(), broker.BucketSilences)
	if err != nil {
		t.Fatal(err)
	}
	good := `{"id":"s-2","match":{"class":"stall"},"until":"2026-11-03T13:00:00Z","by":"ann","created":"2026-11-03T12:00:00Z"}`
	for key, text := range map[string]string{"s-1": "{", "s-2": good, "s-3": good, "s-4": `{"id":"s-4","until":"2026-11-03T13:00:00Z"}`} {
		if _, err := kv.Put(t.Context(), key, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	s, err := OpenSilences(t.Context(), js, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.List(); len(got) != 1 || got[0].ID != "s-2" {
		t.Errorf("read %v", got)
	}
	for _, want := range []string{`silence \"s-1\"`, `calls itself \"s-2\"`, "it matches nothing"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("not said: %s in\n%s", want, log.String())
		}
	}
}

func TestManySilencesAreRefused(t *testing.T) {
	_, _, js := brokertest.Start(t)
	kv, err := js.KeyValue(t.Context(), broker.BucketSilences)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxSilences {
		text := fmt.Sprintf(`{"id":"s-%d","match":{"class":"stall"},"until":"2026-11-03T13:00:00Z"}`, i)
		if _, err := js.PublishAsync("$KV."+kv.Bucket()+fmt.Sprintf(".s-%d", i), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(20 * time.Second):
		t.Fatal("not written")
	}
	s, err := OpenSilences(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	var failure *broker.Failure
	if _, err := s.Add(t.Context(), Silence{Match: map[string]string{"class": "stall"}, Until: noon.Add(time.Hour), Created: noon}); !errors.As(err, &failure) || !strings.Contains(failure.Hint(), "silence end") {
		t.Errorf("one more than %d: %v", maxSilences, err)
	}
	if _, err := s.Add(t.Context(), Silence{Match: map[string]string{"class": "stall"}, Until: noon.Add(3 * time.Hour), Created: noon.Add(2 * time.Hour)}); err != nil {
		t.Errorf("when they are over: %v", err)
	}
}

func TestNilSilencesAndActions(t *testing.T) {
	var s *Silences
	var a *Actions
	if _, ok := s.Next(noon); ok || s.List() != nil || s.Covering(leak(), noon) != nil || s.Unnoticed(noon) != nil || s.Changed() != nil {
		t.Error("no silences, and yet some")
	}
	if a.Of("x") != nil || len(a.All()) != 0 || a.News() != nil || a.Changed() != nil {
		t.Error("no actions, and yet some")
	}
}

func TestMissingBucketOfSilences(t *testing.T) {
	_, _, js := brokertest.Start(t)
	if err := js.DeleteKeyValue(t.Context(), broker.BucketSilences); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSilences(t.Context(), js, nil); !errors.Is(err, jetstream.ErrBucketNotFound) || !strings.Contains(err.Error(), "LOWTIDE_SILENCES") {
		t.Errorf("error %v", err)
	}
}

func FuzzDecodeSilence(f *testing.F) {
	f.Add("s-2", []byte(`{"id":"s-2","match":{"class":"stall","host":"gpu-*"},"until":"2026-11-03T13:00:00Z","not_release":"r41","by":"ann","created":"2026-11-03T12:00:00Z"}`))
	f.Add("s-1", []byte(`{"id":"s-1"}`))
	f.Fuzz(func(t *testing.T, key string, text []byte) {
		s, err := decodeSilence(key, text)
		if err != nil {
			return
		}
		if s.ID != key || len(s.Match) == 0 || s.Until.IsZero() {
			t.Errorf("decoded %+v", s)
		}
		s.Covers(leak(), noon)
		s.Matchers()
	})
}
