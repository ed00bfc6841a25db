// Package gputest owns the programs that tests on a GPU run: a real inference worker in Python with torch, a process
// that faults on the GPU, and a meter of what processes cost. Everything in them that needs no torch has unit tests,
// which this file runs with the system's python3; it refuses to need torch, a GPU or a package index.
package gputest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func findPython(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("python3 is missing: install it, the worker's scheduler and metrics are tested with it")
		}
		t.Skip("SKIPPED: python3 is missing: the worker's scheduler, clients and metrics are not tested")
	}
	return python
}

// TestPython runs the folder's unittest modules. What they skip, for want of torch, is logged by name.
func TestPython(t *testing.T) {
	python := findPython(t)
	// Looked at here, so that a cached result is dropped when a program changes.
	programs, err := filepath.Glob("*.py")
	if err != nil {
		t.Fatalf("list programs: %v", err)
	}
	var modules []string
	for _, program := range programs {
		if _, err := os.Stat(program); err != nil {
			t.Fatalf("look at %s: %v", program, err)
		}
		if strings.HasPrefix(program, "test_") {
			modules = append(modules, program)
		}
	}
	if len(modules) == 0 {
		t.Fatal("the folder has no test_*.py")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "-B", "-m", "unittest", "discover", "-v", "-s", ".", "-p", "test_*.py")
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run unit tests: %v\n%s", err, out)
	}
	for _, module := range modules {
		if name := strings.TrimSuffix(module, ".py"); !bytes.Contains(out, []byte("("+name+".")) {
			t.Errorf("no test of %s ran:\n%s", name, out)
		}
	}
	for line := range bytes.Lines(out) {
		if bytes.Contains(line, []byte("skipped")) {
			t.Logf("SKIPPED: %s", bytes.TrimSpace(line))
		}
	}
}

// TestExposition reads the worker's /metrics text with Prometheus' own parser.
func TestExposition(t *testing.T) {
	python := findPython(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-B", "-c", "import test_metrics; print(test_metrics.metrics().text(), end='')").Output()
	if err != nil {
		t.Fatalf("print metrics: %v", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(out))
	if err != nil {
		t.Fatalf("parse metrics: %v\n%s", err, out)
	}
	for name, want := range map[string]dto.MetricType{
		"vllm:num_requests_running":           dto.MetricType_GAUGE,
		"vllm:kv_cache_usage_perc":            dto.MetricType_GAUGE,
		"vllm:num_preemptions_total":          dto.MetricType_COUNTER,
		"vllm:request_success_total":          dto.MetricType_COUNTER,
		"vllm:iteration_tokens_total":         dto.MetricType_HISTOGRAM,
		"vllm:time_to_first_token_seconds":    dto.MetricType_HISTOGRAM,
		"process_resident_memory_bytes":       dto.MetricType_GAUGE,
		"vllm:inter_token_latency_seconds":    dto.MetricType_HISTOGRAM,
		"vllm:num_preemptions_created":        dto.MetricType_GAUGE,
		"vllm:e2e_request_latency_seconds":    dto.MetricType_HISTOGRAM,
		"vllm:cache_config_info":              dto.MetricType_GAUGE,
		"vllm:num_requests_waiting":           dto.MetricType_GAUGE,
		"vllm:generation_tokens_total":        dto.MetricType_COUNTER,
		"vllm:num_requests_waiting_by_reason": dto.MetricType_GAUGE,
	} {
		if got := families[name]; got == nil || got.GetType() != want {
			t.Errorf("%s: %v, want a %v", name, got, want)
		}
	}
}
