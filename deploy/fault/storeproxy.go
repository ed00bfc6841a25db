package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// storeProxy stands between the processors and ClickHouse's HTTP interface, and does what a bad day there does.
type storeProxy struct {
	target string
	server *http.Server
	at     net.Listener
	client *http.Client
	served sync.WaitGroup

	mu    sync.Mutex
	mode  Kind // one of the store's; empty passes everything
	turns int  // requests since the mode began: every third is let through, since a bad store is not a dead one
	hit   map[Kind]int
}

// maxStoreBody bounds one request, in bytes; the engine refuses more too.
const maxStoreBody = 256 << 20

func newStoreProxy(target string) (*storeProxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the store: %w", err)
	}
	s := &storeProxy{target: target, at: listener, hit: map[Kind]int{}, client: &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 8}}}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	s.served.Go(func() { _ = s.server.Serve(listener) })
	return s, nil
}

func (s *storeProxy) address() string { return s.at.Addr().String() }

func (s *storeProxy) set(mode Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode, s.turns = mode, 0
}

// next returns what is to happen to this request.
func (s *storeProxy) next() Kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mode == "" {
		return ""
	}
	if s.turns++; s.turns%3 == 0 {
		return ""
	}
	s.hit[s.mode]++
	return s.mode
}

// ServeHTTP implements http.Handler.
func (s *storeProxy) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxStoreBody))
	if err != nil {
		return // the client is gone
	}
	mode := s.next()
	switch mode {
	case StoreError:
		http.Error(out, "Code: 999. DB::Exception: Session expired (KEEPER_EXCEPTION)", http.StatusInternalServerError)
		return
	case StoreParts:
		out.Header().Set("X-ClickHouse-Exception-Code", "252")
		http.Error(out, "Code: 252. DB::Exception: Too many parts (3000). Merges are processing significantly slower than inserts. (TOO_MANY_PARTS)", http.StatusInternalServerError)
		return
	case StoreSlow:
		if !pause(r.Context(), 2*time.Second) {
			return
		}
	}
	ctx := r.Context()
	if mode == StoreLost { // the client may hang up; what it sent is stored all the same
		ctx = context.WithoutCancel(ctx)
	}
	ask, err := http.NewRequestWithContext(ctx, r.Method, "http://"+s.target+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	ask.Header = r.Header.Clone()
	answer, err := s.client.Do(ask)
	if err != nil {
		drop(out)
		return
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if mode == StoreLost || err != nil {
		drop(out)
		return
	}
	for name, values := range answer.Header {
		if name != "Content-Length" && name != "Transfer-Encoding" {
			out.Header()[name] = values
		}
	}
	out.WriteHeader(answer.StatusCode)
	_, _ = out.Write(text)
}

// drop closes the connection without an answer.
func drop(out http.ResponseWriter) {
	conn, _, err := http.NewResponseController(out).Hijack()
	if err == nil {
		reset(conn)
	}
}

func (s *storeProxy) close() error {
	err := s.server.Close()
	s.served.Wait()
	s.client.CloseIdleConnections()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
