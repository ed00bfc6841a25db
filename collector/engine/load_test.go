package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsersExtendTheTables(t *testing.T) {
	path := write(t, `engines:
  - name: vllm
    paths: [/stats]
    fields:
      waiting: [{gauge: my_queue}]
  - name: mine
    recognise: [{family: mine_up}]
    paths: [/mine]
    index: [shard]
    fields:
      running: [{gauge: mine_running, match: {phase: [prefill, decode]}}]
      kv_usage: [{gauge: mine_cache_percent, scale: 0.01}]
    histograms:
      ttft: [{family: mine_first_token_ms, scale: 0.001}]
`)
	tables, err := LoadTables(path)
	if err != nil {
		t.Fatal(err)
	}
	client, _ := serve(t, shelf{
		"/stats": "vllm:num_requests_running 7\nvllm:num_requests_waiting 3\nvllm:my_queue 5\n",
		"/mine": "mine_up 1\nmine_running{phase=\"prefill\",shard=\"2\"} 1\nmine_running{phase=\"decode\",shard=\"2\"} 4\nmine_running{phase=\"all\",shard=\"2\"} 5\n" +
			"mine_cache_percent{shard=\"2\"} 41\n",
	})
	s := newSource(t, Options{Tables: tables, Client: client, Targets: []Target{
		{URL: "http://127.0.0.1:1", Engine: "vllm", Worker: worker(), Configured: true},
		{URL: "http://127.0.0.1:2", Engine: "mine", Worker: worker(), Configured: true},
	}})
	got := collect(t, s, at(0))
	if len(got) != 2 {
		t.Fatalf("events %v", got)
	}
	same(t, "vllm", got[0], v{"running": 7, "waiting": 5})
	same(t, "mine", got[1], v{"running": 5, "kv_usage": 0.41})
	if w := got[1].Worker; w.Engine != "mine" || w.GetEngineIndex() != 2 {
		t.Errorf("worker %v", w)
	}
}

func TestMistakesInTablesAreNamedWithTheirLine(t *testing.T) {
	head := "engines:\n  - name: mine\n    recognise: [{family: up}]\n    paths: [/metrics]\n"
	for text, want := range map[string]string{
		"":                          "mine.yaml:1: no engines",
		"- a\n":                     "mine.yaml:1: ",
		"engines:\n  - nam: mine\n": `mine.yaml:2: unknown field "nam"`,
		"engines:\n  - name: mine\n    paths: [/metrics]\n":                                            "mine.yaml:2: engine mine: nothing to recognise it by",
		"engines:\n  - name: mine\n    recognise: [{family: up}]\n":                                    "mine.yaml:2: engine mine: no path",
		head + "    fields:\n      runing: [{gauge: a}]\n":                                             `mine.yaml:6: engine mine: the vocabulary has no engine field "runing"`,
		head + "    fields:\n      running:\n        - {gauge: a}\n        - {gauge: a, counter: b}\n": "mine.yaml:8: engine mine: running: 2 of gauge, counter, info, histogram and of",
		head + "    fields:\n      running: [{gage: a}]\n":                                             `mine.yaml:6: unknown field "gage"`,
		head + "    fields:\n      running: [{gauge: a, aggregate: mean}]\n":                           `mine.yaml:6: engine mine: running: aggregate "mean"`,
		head + "    fields:\n      running: [{gauge: a, match: {phase: decode}}]\n":                    "mine.yaml:6: ",
		head + "    fields:\n      running: [{info: a}]\n":                                             "mine.yaml:6: engine mine: running: info needs label or names",
		head + "    fields:\n      running: [{of: [{gauge: a}], delta: true}]\n":                       "mine.yaml:6: engine mine: running: delta needs over",
		head + "    histograms:\n      ttfb: [{family: a}]\n":                                          `mine.yaml:6: engine mine: no histogram is called "ttfb"`,
		head + "    config:\n      config_hash: [{info: a, label: b}]\n":                               `mine.yaml:6: engine mine: there is no config field "config_hash" to fill`,
		head + "    requests:\n      - {path: version, fields: {engine_version: v}}\n":                 `mine.yaml:6: engine mine: request path "version"`,
		head + "    ports: [http]\n":                                                                   "mine.yaml:5: ",
	} {
		_, err := LoadTables(write(t, text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("table\n%sgives %v, want %s", text, err, want)
		}
	}
	if _, err := LoadTables(filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("a file that is not there gives %v", err)
	}
	if _, err := LoadTables(write(t, strings.Repeat("#", maxTableFile+1))); err == nil || !strings.Contains(err.Error(), "split it") {
		t.Errorf("a file that is too long gives %v", err)
	}
}

func TestOneFamilyIsNotTwoThings(t *testing.T) {
	tables, err := LoadTables(write(t, "engines:\n  - name: mine\n    recognise: [{family: up}]\n    paths: [/metrics]\n    fields:\n      running: [{gauge: \"vllm:request_prompt_tokens\"}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Tables: tables}); err == nil || !strings.Contains(err.Error(), "vllm:request_prompt_tokens is a histogram in one place and none in another") {
		t.Errorf("error %v", err)
	}
}
