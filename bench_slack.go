package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"sync"
	"time"

	"lowtide/collector/fleet"
)

// benchSlack answers as Slack does and notes when it first heard of each victim.
type benchSlack struct {
	server *http.Server
	url    string
	done   chan struct{}

	mu    sync.Mutex
	posts int
	heard map[string]time.Time // by host
}

var victim = regexp.MustCompile(regexp.QuoteMeta(fleet.VictimName(0)[:len("victim-")]) + `\d+`)

func newBenchSlack(ctx context.Context) (*benchSlack, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen as Slack: %w", err)
	}
	s := &benchSlack{url: "http://" + listener.Addr().String() + "/", heard: map[string]time.Time{}, done: make(chan struct{})}
	answers := http.NewServeMux()
	answers.HandleFunc("/chat.postMessage", func(out http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(out, `{"ok":true,"channel":"C1","ts":"17.%06d"}`, s.hear(r, true))
	})
	answers.HandleFunc("/chat.update", func(out http.ResponseWriter, r *http.Request) {
		s.hear(r, false)
		fmt.Fprintf(out, `{"ok":true,"channel":"C1","ts":%q}`, r.PostForm.Get("ts"))
	})
	answers.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) { fmt.Fprint(out, `{"ok":true,"messages":[]}`) })
	s.server = &http.Server{Handler: answers, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(listener) // ends with close
	}()
	return s, nil
}

// hear notes which victims a message tells about, and counts posts.
func (s *benchSlack) hear(r *http.Request, post bool) int {
	now := time.Now()
	_ = r.ParseForm()
	told := victim.FindAllString(r.PostForm.Get("blocks")+r.PostForm.Get("attachments")+r.PostForm.Get("text"), -1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if post && r.PostForm.Get("thread_ts") == "" { // a reply is no message of the channel
		s.posts++
	}
	for _, host := range told {
		if _, already := s.heard[host]; !already {
			s.heard[host] = now
		}
	}
	return s.posts
}

func (s *benchSlack) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.posts
}

// took is how long each of the failures needed; one that was heard of before it was planted is left out, and so looks lost.
func (s *benchSlack) took(planted []fleet.Report) (took []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range planted {
		if at, heard := s.heard[f.Host]; heard && !at.Before(f.At) {
			took = append(took, at.Sub(f.At))
		}
	}
	return took
}

func (s *benchSlack) close(ctx context.Context) error {
	if err := s.server.Shutdown(ctx); err != nil {
		return fmt.Errorf("stop Slack: %w", err)
	}
	<-s.done
	return nil
}
