package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	json "github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lowtide/collector/allocator"
	"lowtide/event"
	"lowtide/processor/broker/brokertest"
)

// What is asked over a real broker, and what is answered.
func TestAsksOverNATS(t *testing.T) {
	_, conn, _ := brokertest.Start(t)
	var heard []allocator.Ask
	answers := newAsked(func(a allocator.Ask) (string, error) {
		heard = append(heard, a)
		switch a.PID {
		case 1:
			return "", fmt.Errorf("%w: pid 1; hint: look", allocator.ErrUnknown)
		case 2:
			return "", fmt.Errorf("%w: pid 2 was asked 1m ago", allocator.ErrRefused)
		}
		return "token", nil
	}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- answers.run(ctx, conn, &event.Host{Cluster: "prod", Name: "gpu-1"}) }()
	ask := func(text string) event.AskReply {
		t.Helper()
		limited, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		m, err := conn.RequestWithContext(limited, "lowtide.ask.prod.gpu-1", []byte(text))
		for err != nil && limited.Err() == nil { // nobody listens yet
			m, err = conn.RequestWithContext(limited, "lowtide.ask.prod.gpu-1", []byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
		var reply event.AskReply
		if err := json.Unmarshal(m.Data, &reply, json.RejectUnknownMembers(true)); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	for _, c := range []struct{ text, status, says string }{
		{`{"ask":"snapshot","pid":1234,"start_ticks":77,"incident":"i-1","reason":"retention suspected","history_seconds":600,"census":true}`, event.AskAccepted, ""},
		{`{"ask":"snapshot","pid":1}`, event.AskUnknown, "pid 1; hint: look"},
		{`{"ask":"snapshot","pid":2,"later":{"a":1}}`, event.AskRefused, "1m ago"},
		{`{"ask":"reboot","pid":3}`, event.AskRefused, `field ask: "reboot"`},
		{`{"ask":"snapshot","pid":-3}`, event.AskRefused, "field pid: -3"},
		{`{"ask":"snapshot","pid":9999999999}`, event.AskRefused, "field pid"},
		{`{"ask":"snapshot","pid":3,"history_seconds":-1}`, event.AskRefused, "field history_seconds"},
		{`{"ask":"snapshot","pid":3,"history_seconds":1e300}`, event.AskRefused, "field history_seconds"},
		{`{"ask":"snapshot","pid":"3"}`, event.AskRefused, "pid"},
		{`snapshot`, event.AskRefused, "read ask"},
		{`{"ask":"snapshot","reason":"` + strings.Repeat("r", maxAsk) + `"}`, event.AskRefused, "at most 4096"},
	} {
		reply := ask(c.text)
		if reply.Status != c.status || !strings.Contains(reply.Error, c.says) || (reply.ID == "token") != (c.status == event.AskAccepted) {
			t.Errorf("%.80s: %+v", c.text, reply)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(heard) != 3 || heard[0].PID != 1234 || *heard[0].StartTicks != 77 || heard[0].Reason != "retention suspected" || heard[0].History != 10*time.Minute || !heard[0].Census {
		t.Errorf("%+v", heard)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(answers, new(probes))
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) != 0 || testutil.CollectAndCount(answers) != 3 {
		t.Errorf("metrics %v, %v", problems, err)
	}
	if answers.counts[event.AskAccepted] != 1 || answers.counts[event.AskUnknown] != 1 || answers.counts[event.AskRefused] != 9 {
		t.Errorf("counts %v", answers.counts)
	}
}

func TestAskBeforeTheSocketIsOpen(t *testing.T) {
	if _, err := new(probes).Ask(allocator.Ask{PID: 1}); !errors.Is(err, allocator.ErrRefused) || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("%v", err)
	}
}

func FuzzAsk(f *testing.F) {
	f.Add([]byte(`{"ask":"snapshot","pid":1234,"start_ticks":77,"incident":"i-1","reason":"retention suspected","history_seconds":600,"census":true}`))
	f.Add([]byte(`{"ask":"census"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseAsk(text)
		if err == nil && (r.Ask != event.AskSnapshot || r.PID <= 0 || !(r.HistorySeconds >= 0 && r.HistorySeconds <= 86400)) {
			t.Fatalf("%+v of %q", r, text)
		}
	})
}
