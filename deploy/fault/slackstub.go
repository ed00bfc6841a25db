package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// slackStub is the part of Slack's API that the notifier uses, with a memory of every message and with bad days.
type slackStub struct {
	server *http.Server
	at     net.Listener
	served sync.WaitGroup

	mu       sync.Mutex
	mode     Kind // one of Slack's; empty answers as it should
	turns    int
	hit      map[Kind]int
	messages []*posted
	replies  []answered
	healed   chan struct{} // closed when what hangs may go on
}

// posted is one message of the channel.
type posted struct {
	TS       string    `json:"ts"`
	Incident string    `json:"incident"`
	State    string    `json:"state"`
	Updates  int       `json:"updates"`
	At       time.Time `json:"at"`
	metadata json.RawMessage
	text     string
}

// answered is one reply in the thread of a message.
type answered struct {
	thread, ts, text string
	metadata         json.RawMessage
}

func newSlackStub() (*slackStub, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for slack: %w", err)
	}
	s := &slackStub{at: listener, hit: map[Kind]int{}, healed: make(chan struct{})}
	routes := http.NewServeMux()
	routes.HandleFunc("/api/chat.postMessage", func(out http.ResponseWriter, r *http.Request) { s.serve(out, r, s.post) })
	routes.HandleFunc("/api/chat.update", func(out http.ResponseWriter, r *http.Request) { s.serve(out, r, s.update) })
	routes.HandleFunc("/api/conversations.history", func(out http.ResponseWriter, r *http.Request) { s.serve(out, r, s.history) })
	routes.HandleFunc("/api/conversations.replies", func(out http.ResponseWriter, r *http.Request) { s.serve(out, r, s.thread) })
	routes.HandleFunc("/api/auth.test", func(out http.ResponseWriter, _ *http.Request) {
		reply(out, map[string]any{"ok": true, "team": "fault", "user": "lowtide", "team_id": "T1", "user_id": "U1", "bot_id": "B1"})
	})
	s.server = &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	s.served.Go(func() { _ = s.server.Serve(listener) })
	return s, nil
}

func (s *slackStub) address() string { return "http://" + s.at.Addr().String() + "/api/" }

func (s *slackStub) set(mode Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mode == SlackHang {
		close(s.healed)
		s.healed = make(chan struct{})
	}
	s.mode, s.turns = mode, 0
}

// serve lets the mode decide whether the call is done, and whether its answer arrives.
func (s *slackStub) serve(out http.ResponseWriter, r *http.Request, do func(url.Values) map[string]any) {
	if err := r.ParseForm(); err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	mode, healed := s.mode, s.healed
	s.turns++
	turn := s.turns
	if mode == SlackLost && turn%3 == 0 {
		mode = ""
	}
	if mode != "" {
		s.hit[mode]++
	}
	var answer map[string]any
	if mode == "" || mode == SlackLost || mode == SlackHang && turn%2 == 0 {
		answer = do(r.Form)
	}
	s.mu.Unlock()
	switch mode {
	case SlackLimit:
		out.Header().Set("Retry-After", strconv.Itoa(1+turn%3))
		out.WriteHeader(http.StatusTooManyRequests)
	case SlackError, SlackLost:
		http.Error(out, "internal error", http.StatusInternalServerError)
	case SlackHang:
		select {
		case <-healed:
		case <-r.Context().Done():
		}
		drop(out)
	default:
		reply(out, answer)
	}
}

func reply(out http.ResponseWriter, answer map[string]any) {
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(answer)
}

// tagged reads what the message says about itself.
func tagged(form url.Values) (m posted) {
	m.metadata, m.text = json.RawMessage(form.Get("metadata")), form.Get("text")
	var metadata struct {
		Payload struct {
			Incident string `json:"incident"`
			State    string `json:"state"`
		} `json:"event_payload"`
	}
	if json.Unmarshal(m.metadata, &metadata) == nil {
		m.Incident, m.State = metadata.Payload.Incident, metadata.Payload.State
	}
	return m
}

func (s *slackStub) post(form url.Values) map[string]any {
	m := tagged(form)
	m.At = time.Now()
	if thread := form.Get("thread_ts"); thread != "" { // no message of the channel
		one := answered{thread: thread, ts: fmt.Sprintf("%d.9%05d", m.At.Unix(), len(s.replies)+1), text: m.text, metadata: m.metadata}
		s.replies = append(s.replies, one)
		return map[string]any{"ok": true, "channel": form.Get("channel"), "ts": one.ts}
	}
	m.TS = fmt.Sprintf("%d.%06d", m.At.Unix(), len(s.messages)+1)
	s.messages = append(s.messages, &m)
	return map[string]any{"ok": true, "channel": form.Get("channel"), "ts": m.TS}
}

func (s *slackStub) update(form url.Values) map[string]any {
	for _, m := range s.messages {
		if m.TS != form.Get("ts") {
			continue
		}
		now := tagged(form)
		m.Updates++
		m.text = now.text
		if len(now.metadata) > 0 {
			m.metadata, m.State = now.metadata, now.State
			if now.Incident != m.Incident { // a card over another's message: nobody would find the one that was there
				m.Incident += "+" + now.Incident
			}
		}
		return map[string]any{"ok": true, "channel": form.Get("channel"), "ts": m.TS, "text": m.text}
	}
	return map[string]any{"ok": false, "error": "message_not_found"}
}

// history answers newest first, by pages, as Slack does.
func (s *slackStub) history(form url.Values) map[string]any {
	oldest, _ := strconv.ParseFloat(form.Get("oldest"), 64)
	limit, err := strconv.Atoi(form.Get("limit"))
	if err != nil || limit <= 0 {
		limit = 100
	}
	skip, _ := strconv.Atoi(form.Get("cursor"))
	var page []map[string]any
	next := ""
	seen := 0
	for _, m := range slices.Backward(s.messages) {
		at, err := strconv.ParseFloat(m.TS, 64)
		if err != nil || at < oldest {
			continue
		}
		if seen++; seen <= skip {
			continue
		}
		if len(page) == limit {
			next = strconv.Itoa(skip + limit)
			break
		}
		one := map[string]any{"type": "message", "ts": m.TS, "text": m.text, "bot_id": "B1"}
		if len(m.metadata) > 0 && form.Get("include_all_metadata") != "" {
			one["metadata"] = m.metadata
		}
		page = append(page, one)
	}
	return map[string]any{"ok": true, "messages": page, "has_more": next != "", "response_metadata": map[string]any{"next_cursor": next}}
}

// thread answers with the replies of one message.
func (s *slackStub) thread(form url.Values) map[string]any {
	var page []map[string]any
	for _, one := range s.replies {
		if one.thread == form.Get("ts") {
			page = append(page, map[string]any{"type": "message", "ts": one.ts, "thread_ts": one.thread, "text": one.text, "bot_id": "B1", "metadata": one.metadata})
		}
	}
	return map[string]any{"ok": true, "messages": page, "has_more": false}
}

// repeated are the texts that stand in one thread more than once with the same key: a reply that was sent twice.
func (s *slackStub) repeated() (twice []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, one := range s.replies {
		key := one.thread + string(one.metadata)
		if seen[key] {
			twice = append(twice, one.text)
		}
		seen[key] = true
	}
	return twice
}

// said returns copies of the messages of the channel.
func (s *slackStub) said() []posted {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]posted, len(s.messages))
	for i, m := range s.messages {
		out[i] = *m
	}
	return out
}

func (s *slackStub) close() error {
	s.set("")
	err := s.server.Close()
	s.served.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
