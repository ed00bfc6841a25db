package exporter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Server serves /metrics, /healthz and /readyz.
type Server struct {
	listener net.Listener
	http     *http.Server
	ended    chan error
}

// Listen starts serving what the collectors gather, beside the process's own cost, and what the checks say. /healthz answers while the
// process does; /readyz has status 200 while every check is well, else 503 with a line for each that is not. The error names the address.
func Listen(ctx context.Context, address string, checks Checks, gather ...prometheus.Collector) (*Server, error) {
	registry := prometheus.NewRegistry()
	gather = append(gather, checks, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, c := range gather {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for scrapes on %s: %w", address, err)
	}
	mux := http.NewServeMux()
	// A label that is broken costs its own series, not the scrape.
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", checks.answer)
	s := &Server{listener: listener, ended: make(chan error, 1), http: &http.Server{
		Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}}
	go func() { s.ended <- s.http.Serve(listener) }()
	return s, nil
}

// Addr is where it listens, host:port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close ends serving; a scrape that is being answered has until the context ends.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if ended := <-s.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	if err != nil {
		return fmt.Errorf("close metrics: %w", err)
	}
	return nil
}
