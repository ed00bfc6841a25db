package engine

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lowtide/event"
)

// readText is the way of a scrape from the body on.
func (s *Source) readText(text string) ([]*event.Event, error) {
	t, err := s.target(Target{URL: "http://127.0.0.1:8000/metrics", Worker: &event.Worker{Pid: 1}})
	if err != nil {
		return nil, err
	}
	s.client = &http.Client{Transport: canned(text)}
	s.scrape(context.Background(), t, at(0), s.scratch[0])
	return t.events, t.err
}

// canned answers everything with one text.
type canned string

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	code := http.StatusOK
	if r.URL.Path != "/metrics" {
		code = http.StatusNotFound
	}
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(string(c))), ContentLength: int64(len(c)), Request: r}, nil
}

// What is not wanted, repeated, misplaced or of another format must not spoil what is.
func TestTheExpositionIsReadForgivingly(t *testing.T) {
	histogram := exposition("time_to_first_token_seconds", "1", "2", "3", "4", "5")
	for name, text := range map[string]string{
		"nothing else":                 "",
		"no TYPE line":                 histogram,
		"TYPE after the samples":       histogram + "# TYPE vllm:time_to_first_token_seconds histogram\n",
		"TYPE twice":                   "# TYPE vllm:num_requests_running gauge\n# TYPE vllm:num_requests_running counter\n",
		"TYPE of no known kind":        "# TYPE vllm:num_requests_running info\n# UNIT x seconds\n",
		"an unwanted line is garbage":  "vllm:other{a=\"\x00 }{{ x\nnonsense\n{}\n{\"quoted\"} 1\n",
		"a gauge where a histogram is": "vllm:time_to_first_token_seconds 3\n",
		"OpenMetrics end":              "# EOF\n",
		"created":                      "vllm:num_requests_running_created 1.7e9\nvllm:num_preemptions_created{engine=\"0\"} 1.7e9\n",
		"a neighbour in name":          "vllm:num_requests_running_by_reason{engine=\"1\"} 9\n",
		"timestamps and CR":            "vllm:num_requests_waiting{engine=\"0\"} 0 1790347303000\r\n",
		"no values":                    "vllm:num_preemptions_total{engine=\"0\"} NaN\nvllm:kv_cache_usage_perc{engine=\"0\"} +Inf\n",
	} {
		s := newSource(t, Options{})
		events, err := s.readText(text + strings.TrimSuffix(vllmLine, "\n"))
		if err != nil || len(events) != 1 || events[0].Engine.GetRunning() != 7 || events[0].Worker.GetEngineIndex() != 0 {
			t.Errorf("%s: %v, %v", name, events, err)
			continue
		}
		if e := events[0].Engine; e.PreemptionsTotal != nil || e.KvUsage != nil || e.TtftP50Seconds != nil {
			t.Errorf("%s: %v", name, e)
		}
	}
}

func TestSeriesAndIndicesAreBounded(t *testing.T) {
	s := newSource(t, Options{})
	if _, err := s.readText(strings.Repeat("vllm:num_requests_running 1\n", maxLines+1)); err == nil || !strings.Contains(err.Error(), "more than 20000 series") {
		t.Errorf("error %v", err)
	}
	var many strings.Builder
	for i := range maxIndices + 1 {
		many.WriteString(strings.Replace(vllmLine, `"0"`, `"`+strings.Repeat("0", 3)+string(rune('0'+i/100))+string(rune('0'+i/10%10))+string(rune('0'+i%10))+`"`, 1))
	}
	if _, err := s.readText(many.String()); err == nil || !strings.Contains(err.Error(), "257 engine indices") {
		t.Errorf("error %v", err)
	}
}

// A hybrid model's gauge is of its fullest pool, the evictable tokens of another: what is held must stay what the gauge says.
func TestHeldStaysHeldWhenPoolsDiffer(t *testing.T) {
	s := newSource(t, Options{})
	events, err := s.readText("sglang:token_usage 0.9\nsglang:kv_evictable_tokens 50\nsglang:max_total_num_tokens 100\n")
	if err != nil || len(events) != 1 {
		t.Fatalf("%v, %v", events, err)
	}
	if e := events[0].Engine; e.GetKvUsage() != 1 || e.GetKvUsage()-e.GetKvEvictable() < 0.9-1e-9 || e.GetKvEvictable() > 0.1+1e-9 {
		t.Errorf("%v", e)
	}
}

func FuzzExposition(f *testing.F) {
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(names) < 20 {
		f.Fatalf("fixtures: %d, %v", len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if len(text) < 5<<10 { // the fuzzer shortens what it finds, which takes long with long seeds
			f.Add(string(text), string(text[len(text)/2:]))
		}
	}
	f.Add(vllmLine+exposition("time_to_first_token_seconds", "1", "NaN", "3", "1e300", "-5"), vllmLine)
	f.Add("vllm:num_requests_running{", "vllm:num_requests_running{}\x00")
	s := newSource(f, Options{SLOs: []SLO{{Model: "*", TTFT: 1, ITL: 1, E2E: 1}}})
	f.Fuzz(func(t *testing.T, first, second string) {
		if len(first)+len(second) > 1<<17 {
			return
		}
		target, err := s.target(Target{URL: "http://127.0.0.1:8000/metrics", Worker: &event.Worker{Pid: 1}})
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range []string{first, second} {
			s.client = &http.Client{Transport: canned(text)}
			s.scrape(t.Context(), target, at(5*i), s.scratch[0])
			if target.err != nil && len(target.events) > 0 {
				t.Fatalf("events with the error %v", target.err)
			}
			for _, e := range target.events {
				if err := event.Validate(e); err != nil {
					t.Fatalf("event %v: %v", e, err)
				}
				b := e.Engine
				if b == nil {
					continue
				}
				if b.GetTtftP50Seconds() > b.GetTtftP95Seconds() || b.GetSloOkTotal() > b.GetSloTotal() || b.GetKvUsage() < 0 || b.GetKvEvictable() < 0 || b.GetPrefixCacheHitRatio() < 0 {
					t.Fatalf("event %v", e)
				}
			}
		}
	})
}

func FuzzTables(f *testing.F) {
	f.Add(string(embedded))
	f.Add("engines:\n  - name: mine\n    recognise: [{family: up}]\n    paths: [/metrics]\n    fields:\n      running: [{gage: a}]\n")
	f.Add("engines:\n- paths: !!seq\n") // the YAML library panics
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<16 {
			return
		}
		tables, err := readTables("mine.yaml", []byte(text))
		if err != nil || check("mine.yaml", []byte(text), tables, nil) != nil {
			return
		}
		if _, _, err := compile(tables, true); err != nil && !strings.Contains(err.Error(), "histogram in one place") {
			t.Fatalf("a table without mistakes cannot be used: %v", err)
		}
	})
}

// One reading of vLLM 0.24 with everything it exports, from the socket to the events.
func BenchmarkScrape(b *testing.B) {
	texts := []string{fixture(b, "vllm_0.24.0_1.txt"), fixture(b, "vllm_0.24.0_2.txt")}
	s := newSource(b, Options{Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}, SLOs: []SLO{{Model: "*", TTFT: 1e9, E2E: 1e10}}})
	b.SetBytes(int64(len(texts[0])))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.client = &http.Client{Transport: canned(texts[i%2])}
		if events, err := s.Collect(b.Context(), at(5*i)); err != nil || len(events) == 0 {
			b.Fatal(len(events), err)
		}
	}
}
