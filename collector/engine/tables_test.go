package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"lowtide/event"
)

// plain is a body as names and values; a field that is absent is not in it.
func plain(t *testing.T, e *event.Event) map[string]any {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	var whole map[string]map[string]any
	var loose map[string]any
	if err := json.Unmarshal(text, &loose); err != nil {
		t.Fatal(err)
	}
	delete(loose, "time")
	text, err = json.Marshal(loose)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &whole); err != nil {
		t.Fatal(err)
	}
	return whole[e.Body()]
}

// same compares every field: what is absent has to be absent.
func same(t *testing.T, what string, e *event.Event, want map[string]any) {
	t.Helper()
	got := plain(t, e)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		g, there := got[name]
		if f, ok := want[name].(float64); ok && there {
			if v, ok := g.(float64); !ok || math.Abs(v-f) > 1e-9*max(1, math.Abs(f)) {
				t.Errorf("%s: %s is %v, want %v", what, name, g, f)
			}
		} else if fmt.Sprint(g) != fmt.Sprint(want[name]) || !there {
			t.Errorf("%s: %s is %v (there: %v), want %v", what, name, g, there, want[name])
		}
	}
	for name, g := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s is %v, want it absent", what, name, g)
		}
	}
}

type v = map[string]any

// Every value below was worked out by hand from the text of the fixtures; quantiles from the differences of two of them.
func TestEveryEngineGivesWhatItsExpositionSays(t *testing.T) {
	for _, c := range []struct {
		engine, model string
		fixtures      []string
		engines       []v // of the last fixture, one per index
		config        v   // of the first fixture and index; nil: none
		indices       []int64
	}{
		{engine: "vllm", model: "meta-llama/Llama-3.1-8B-Instruct", fixtures: []string{"vllm_0.24.0_1.txt", "vllm_0.24.0_2.txt"}, indices: []int64{0},
			engines: []v{{
				"running": 7, "waiting": 3, // not 6 with _by_reason
				"kv_usage": 0.914, "kv_blocks_total": 33960, "kv_tokens_total": 855836, // not 33960 × 16 = 543360: a hybrid model
				"preemptions_total": 12, "finished_total": 180, "aborted_total": 5, "errors_total": 1, // 152 + 27 + 1
				"prompt_tokens_total": 27000, "generation_tokens_total": 19000, "sleeping": false, "loaded_adapters": 2,
				"prefix_cache_hit_ratio": 0.6,                      // (1600 − 1000) / (5000 − 4000)
				"ttft_p50_seconds":       0.1 + 0.15*50/60,         // 100 new: 60 in (0.1, 0.25], 30, 8, and 2 in (5, 7.5]
				"ttft_p95_seconds":       0.5 + 0.25*5/8,           //
				"ttft_p99_seconds":       6.25,                     //
				"itl_p50_seconds":        0.01 + 0.015*500/900,     // 1000 new: 900 in (0.01, 0.025], 90 in (0.025, 0.05], 10
				"itl_p95_seconds":        0.025 + 0.025*50/90,      //
				"itl_p99_seconds":        0.05,                     //
				"e2e_p95_seconds":        10.0,                     // 80 new: 40, then 36 in (5, 10]: rank 76 is the last of them
				"prompt_tokens_p95":      195.0,                    // 80 new in (100, 200]
				"output_tokens_p95":      100 + 100*36/float64(40), // 40 new in (50, 100], 40 in (100, 200]
			}},
			config: v{"origin": "info metric", "gpu_memory_utilization": 0.9, "kv_cache_dtype": "auto", "block_size": 16}},
		{engine: "vllm", model: "m", fixtures: []string{"vllm_0.11.0_data_parallel.txt"}, indices: []int64{0, 1},
			engines: []v{ // lora_requests_info has no index: of two engines it says nothing
				{"running": 3, "waiting": 0, "kv_usage": 0.25, "kv_blocks_total": 9271, "kv_tokens_total": 148336, "generation_tokens_total": 100, "sleeping": false},
				{"running": 5, "waiting": 2, "kv_usage": 0.75, "kv_blocks_total": 9000, "kv_tokens_total": 144000, "generation_tokens_total": 200, "sleeping": true},
			},
			config: v{"origin": "info metric", "gpu_memory_utilization": 0.9, "kv_cache_dtype": "fp8", "block_size": 16}},
		{engine: "vllm", model: "m", fixtures: []string{"vllm_0.10.2_api_servers.txt"}, indices: []int64{0},
			engines: []v{{"running": 6, "waiting": 1, "kv_usage": 0.61, "preemptions_total": 4, "finished_total": 12, "aborted_total": 0}}},
		{engine: "vllm", model: "m", fixtures: []string{"vllm_0.6.6_v0.txt", "vllm_0.6.6_v0.txt"}, // a hit rate of -1 is none; nothing new in the histogram
			engines: []v{{"running": 2, "waiting": 1, "kv_usage": 0.333, "kv_blocks_total": 1000, "kv_tokens_total": 16000, "preemptions_total": 1,
				"finished_total": 5, "aborted_total": 28, "prompt_tokens_total": 640, "generation_tokens_total": 320, "loaded_adapters": 0}},
			config: v{"origin": "info metric", "gpu_memory_utilization": 0.9, "kv_cache_dtype": "auto", "block_size": 16}},
		{engine: "sglang", model: "m", fixtures: []string{"sglang_0.5.20_1.txt", "sglang_0.5.20_2.txt"},
			engines: []v{{
				"running": 5, "waiting": 1, "kv_usage": 0.53617, "kv_evictable": 0.25617, // 51234 / 200000; together 0.28 is held, as token_usage says
				"kv_tokens_total": 200000, "kv_blocks_total": 12500, "preemptions_total": 3, "evicted_tokens_total": 9000, "finished_total": 50, "aborted_total": 6,
				"prompt_tokens_total": 30000, "generation_tokens_total": 7000,
				"prefix_cache_hit_ratio": 0.2,           // (7000 − 5000) / 10000; all sources added up would be 0.4
				"ttft_p50_seconds":       0.1 + 0.1*5/8, // 10 new: 8 in (0.1, 0.2], 2 in (0.2, 0.4]
				"ttft_p95_seconds":       0.35,          //
				"ttft_p99_seconds":       0.39,          //
				"itl_p50_seconds":        0.009, "itl_p95_seconds": 0.0099, "itl_p99_seconds": 0.00998,
				"e2e_p95_seconds": 3.9, // 10 new in (2, 4]
			}},
			config: v{"origin": "info metric", "block_size": 16}},
		{engine: "sglang", model: "m", fixtures: []string{"sglang_0.5.20_all_schedulers.txt"}, indices: []int64{0, 1},
			engines: []v{ // two ranks show the same: 3, not 6; the tokenizer's total of both indices is neither's
				{"running": 3, "kv_usage": 0.2, "kv_tokens_total": 262144, "preemptions_total": 2, "generation_tokens_total": 400},
				{"running": 8, "kv_usage": 0.4, "kv_tokens_total": 262144, "preemptions_total": 2, "generation_tokens_total": 500},
			}},
		{engine: "sglang", model: "m", fixtures: []string{"sglang_0.5.20_priorities.txt"},
			engines: []v{{"running": 7, "waiting": 1, "kv_usage": 0.5}}}, // 7 is the total, not 14
		{engine: "trtllm", model: "m", fixtures: []string{"trtllm_1.3.0_1.txt", "trtllm_1.3.0_2.txt"},
			engines: []v{trtllmValues(v{
				"prefix_cache_hit_ratio": 0.75,                                                        // 30 / (30 + 10)
				"ttft_p50_seconds":       0.09, "ttft_p95_seconds": 0.099, "ttft_p99_seconds": 0.0998, // 10 new in (0.08, 0.1]
				"itl_p50_seconds": 0.005, "itl_p95_seconds": 0.0095, "itl_p99_seconds": 0.0099, // 10 new in (0, 0.01]
				"e2e_p95_seconds": 1.975, // 10 new in (1.5, 2]
			})},
			config: trtllmConfig()},
		{engine: "trtllm", model: "", fixtures: []string{"trtllm_1.1.0_no_prefix.txt"}, engines: []v{trtllmValues(nil)}, config: trtllmConfig()},
		{engine: "trtllm", model: "m", fixtures: []string{"trtllm_dynamo_0.7.txt"}, engines: []v{trtllmValues(nil)}, config: trtllmConfig()},
		{engine: "triton", model: "tensorrt_llm", fixtures: []string{"triton_trtllm_25.08.txt"},
			engines: []v{{"running": 5, "waiting": 2, "kv_usage": 0.229, "kv_blocks_total": 1000, "kv_tokens_total": 64000, "finished_total": 40, "errors_total": 3}},
			config:  v{"origin": "info metric", "block_size": 64, "max_num_seqs": 64}},
		{engine: "triton", model: "tensorrt_llm", fixtures: []string{"triton_trtllm_24.04.txt"}, // no waiting, no fraction: 228 / 1000
			engines: []v{{"running": 5, "waiting": 4, "kv_usage": 0.228, "kv_blocks_total": 1000, "kv_tokens_total": 64000, "finished_total": 40, "errors_total": 3}},
			config:  v{"origin": "info metric", "block_size": 64, "max_num_seqs": 64}},
		{engine: "tgi", fixtures: []string{"tgi_3.3.4_1.txt", "tgi_3.3.4_2.txt"},
			engines: []v{{"running": 3, "waiting": 1, "finished_total": 50, "aborted_total": 4, "errors_total": 5, "prompt_tokens_total": 7500, "generation_tokens_total": 5200,
				"itl_p50_seconds": 0.015, "itl_p95_seconds": 0.0195, "itl_p99_seconds": 0.0199, "e2e_p95_seconds": 0.78,
				"prompt_tokens_p95": 195.0, "output_tokens_p95": 390.0}}},
		{engine: "lmdeploy", model: "m", fixtures: []string{"lmdeploy_0.10.1_1.txt", "lmdeploy_0.10.1_2.txt"}, indices: []int64{0},
			engines: []v{{"running": 2, "waiting": 0, "kv_usage": 0.41, "finished_total": 30, "prompt_tokens_total": 1000, "generation_tokens_total": 4000,
				"ttft_p50_seconds": 0.175, "ttft_p95_seconds": 0.2425, "ttft_p99_seconds": 0.2485, // 10 new in (0.1, 0.25]
				"itl_p50_seconds": 0.35, "itl_p95_seconds": 0.395, "itl_p99_seconds": 0.399, // in (0.3, 0.4]
				"e2e_p95_seconds":   9.75, // in (5, 10]
				"prompt_tokens_p95": 48.5, // in (20, 50]
				"output_tokens_p95": 2000.0,
			}}}, // all above the last edge: the edge
		{engine: "llama.cpp", fixtures: []string{"llamacpp_b6500.txt"},
			engines: []v{{"running": 1, "waiting": 0, "prompt_tokens_total": 900, "generation_tokens_total": 300}}},
		{engine: "dynamo", model: "m", fixtures: []string{"dynamo_1.6.2_frontend_1.txt", "dynamo_1.6.2_frontend_2.txt"},
			engines: []v{{"running": 6, "waiting": 2, "kv_blocks_total": 20000, "finished_total": 35, "aborted_total": 7, "errors_total": 2, "prompt_tokens_total": 6000, "generation_tokens_total": 800,
				"ttft_p50_seconds": 0.345, "ttft_p95_seconds": 0.4575, "ttft_p99_seconds": 0.4675, // 10 new in (0.22, 0.47]
				"itl_p50_seconds": 0.00985, "itl_p95_seconds": 0.012685, "itl_p99_seconds": 0.012937, // 100 new in (0.0067, 0.013]
				"e2e_p95_seconds": 1.95, "prompt_tokens_p95": 249.6, "output_tokens_p95": 60.8}},
			config: v{"origin": "info metric", "max_model_len": 32768, "max_num_seqs": 256, "block_size": 16}},
		{engine: "dynamo", model: "m", fixtures: []string{"dynamo_1.6.2_component.txt"},
			engines: []v{{"running": 4, "kv_usage": 0.45, "kv_blocks_total": 2000, "finished_total": 44, "aborted_total": 3, "errors_total": 2}}},
		{engine: "dynamo", model: "m", fixtures: []string{"dynamo_0.9.0_component.txt"},
			engines: []v{{"running": 4, "kv_usage": 0.3, "kv_blocks_total": 1000, "finished_total": 44, "errors_total": 2, "prefix_cache_hit_ratio": 0.125}}},
	} {
		t.Run(strings.TrimSuffix(c.fixtures[0], ".txt"), func(t *testing.T) {
			texts := shelf{}
			client, _ := serve(t, texts)
			s := newSource(t, Options{Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}, Client: client})
			var first, last []*event.Event
			for i, name := range c.fixtures {
				texts["/metrics"] = fixture(t, name)
				last = collect(t, s, at(5*i))
				if i == 0 {
					first = last
				}
			}
			got := bodies(last, "engine")
			if len(got) != len(c.engines) {
				t.Fatalf("%d engine events, want %d", len(got), len(c.engines))
			}
			for i, e := range got {
				same(t, fmt.Sprint("engine ", i), e, c.engines[i])
				w := e.Worker
				if w.Pid != 4711 || w.Unit != "serve.service" || w.Engine != c.engine || w.Model != c.model {
					t.Errorf("engine %d: worker is %v", i, w)
				}
				if len(c.indices) > 0 && (w.EngineIndex == nil || *w.EngineIndex != c.indices[i]) || len(c.indices) == 0 && w.EngineIndex != nil {
					t.Errorf("engine %d: index of %v, want %v", i, w, c.indices)
				}
			}
			configs := bodies(first, "config")
			if c.config == nil {
				if len(configs) > 0 {
					t.Errorf("config %v, want none", configs)
				}
				return
			}
			if len(configs) != len(c.engines) {
				t.Fatalf("%d config events, want %d", len(configs), len(c.engines))
			}
			if hash := configs[0].Config.ConfigHash; len(hash) != 16 {
				t.Errorf("config hash %q", hash)
			}
			configs[0].Config.ConfigHash = ""
			same(t, "config", configs[0], c.config)
			if len(first) > 0 && &first[0] != &last[0] && len(bodies(last, "config")) > 0 {
				t.Error("the config is told again although it is the same")
			}
		})
	}
}

func trtllmValues(more v) v {
	values := v{"running": 6, "waiting": 2, "kv_usage": 0.6, "kv_blocks_total": 15000, "kv_tokens_total": 480000, "finished_total": 100, "aborted_total": 2,
		"errors_total": 3, "prompt_tokens_total": 12000, "generation_tokens_total": 6000}
	maps.Copy(values, more)
	return values
}

func trtllmConfig() v {
	return v{"origin": "info metric", "block_size": 32, "kv_cache_dtype": "fp8", "max_num_seqs": 256, "max_num_batched_tokens": 8192}
}
