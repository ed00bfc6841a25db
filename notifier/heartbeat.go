package notifier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	beatEvery   = time.Minute
	beatTimeout = 10 * time.Second
)

// Heartbeat tells somebody else, once a minute, that this process watches and can announce. Who is told by silence finds out even when
// the whole of Lowtide is gone: a dead man's switch, such as a check that expects a request every few minutes. It says nothing while
// Well returns an error, so that the switch fires for a processor that runs and does not work.
type Heartbeat struct {
	address string // a secret: who has it can keep the switch quiet
	well    func() error
	log     *slog.Logger
	every   time.Duration
	client  *http.Client
	last    atomic.Int64 // Unix seconds of the newest that was taken; 0 is never
	failed  atomic.Int64
}

// NewHeartbeat checks the address: http or https, with a host. It may be the name of a file that holds it, which keeps it out of the
// list of processes.
func NewHeartbeat(address string, well func() error, log *slog.Logger) (*Heartbeat, error) {
	if strings.HasPrefix(address, "/") {
		text, err := os.ReadFile(address)
		if err != nil {
			return nil, fmt.Errorf("read the heartbeat's address: %w", err)
		}
		address = strings.TrimSpace(string(text))
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the heartbeat's address is not http(s)://HOST/…, nor a file that holds one")
	}
	return &Heartbeat{address: address, well: well, log: log, every: beatEvery, client: &http.Client{Timeout: beatTimeout}}, nil
}

// Run beats until ctx ends.
func (h *Heartbeat) Run(ctx context.Context) error {
	ticker := time.NewTicker(h.every)
	defer ticker.Stop()
	told := ""
	for {
		err := h.well()
		if err == nil {
			if err = h.beat(ctx); err != nil {
				h.failed.Add(1)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != told:
			h.log.Warn("no heartbeat", "error", err)
			told = err.Error()
		case err == nil:
			h.last.Store(time.Now().Unix())
			if told != "" {
				h.log.Info("heartbeat again")
			}
			told = ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (h *Heartbeat) beat(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.address, nil)
	if err != nil {
		return errors.New("ask the heartbeat's address: it cannot be written as a request")
	}
	answer, err := h.client.Do(request)
	if err != nil {
		var outer *url.Error
		if errors.As(err, &outer) { // its text has the address
			err = outer.Err
		}
		return fmt.Errorf("ask the heartbeat's address: %w", err)
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, io.LimitReader(answer.Body, 4<<10)) // so that the connection can be used again; what it says does not matter
	if answer.StatusCode >= 300 {
		return fmt.Errorf("ask the heartbeat's address: it answers %s", answer.Status)
	}
	return nil
}

var (
	beatMetric       = prometheus.NewDesc("lowtide_heartbeat_timestamp_seconds", "Unix time of the newest heartbeat that was taken by the address of --heartbeat; 0 before the first.", nil, nil)
	beatFailedMetric = prometheus.NewDesc("lowtide_heartbeat_failures_total", "Heartbeats that the address of --heartbeat did not take.", nil, nil)
)

// Describe implements prometheus.Collector.
func (h *Heartbeat) Describe(out chan<- *prometheus.Desc) { out <- beatMetric; out <- beatFailedMetric }

// Collect implements prometheus.Collector.
func (h *Heartbeat) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(beatMetric, prometheus.GaugeValue, float64(h.last.Load()))
	out <- prometheus.MustNewConstMetric(beatFailedMetric, prometheus.CounterValue, float64(h.failed.Load()))
}
