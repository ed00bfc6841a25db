package exporter

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Check is a part of the process that can be unwell while the process runs. Well returns why it cannot do its work now, or nil; it
// answers from memory and is called from several goroutines.
type Check struct {
	Name string
	Well func() error
}

// Checks are the checks of one process. They are a prometheus.Collector.
type Checks []Check

var readyMetric = prometheus.NewDesc("lowtide_ready", "Whether a part of this process can do its work: 1 or 0. /readyz says why not.", []string{"part"}, nil)

// Err returns what keeps the process from its work, or nil.
func (c Checks) Err() error {
	var lines []string
	for _, check := range c {
		if err := check.Well(); err != nil {
			lines = append(lines, check.Name+": "+err.Error())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("not ready: %s", strings.Join(lines, "; "))
}

func (c Checks) answer(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := c.Err(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Describe implements prometheus.Collector.
func (c Checks) Describe(out chan<- *prometheus.Desc) { out <- readyMetric }

// Collect implements prometheus.Collector.
func (c Checks) Collect(out chan<- prometheus.Metric) {
	for _, check := range c {
		ready := 1.0
		if check.Well() != nil {
			ready = 0
		}
		out <- prometheus.MustNewConstMetric(readyMetric, prometheus.GaugeValue, ready, check.Name)
	}
}
