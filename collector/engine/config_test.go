package engine

import (
	"strings"
	"testing"

	"lowtide/event"
)

const (
	info       = `vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",gpu_memory_utilization="0.9",kv_cache_memory_bytes="None",num_gpu_blocks="9271"} 1.0` + "\n"
	serverInfo = `{"model_path":"m","api_key":"sesame","tp_size":8,"pp_size":1,"dp_size":2,"mem_fraction_static":0.88,"kv_cache_dtype":"auto","quantization":null,
		"max_running_requests":256,"max_prefill_tokens":16384,"context_length":null,"page_size":1,"disable_cuda_graph":false,"revision":null,"version":"0.5.20","internal_states":[{}]}`
)

func TestConfigIsToldAtFirstWhenChangedAndEveryTenMinutes(t *testing.T) {
	texts := shelf{"/metrics": vllmLine + info, "/version": `{"version":"0.24.0"}`, "/v1/models": `{"object":"list","data":[{"id":"m","owned_by":"vllm","max_model_len":131072}]}`}
	asked := &counted{Handler: texts}
	client, _ := serve(t, asked)
	s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}})
	told := map[int]*event.Event{}
	var extra []int
	before := 0
	for second := 0; second < 1400; second += 5 {
		if second == 1000 {
			texts["/metrics"] = vllmLine + strings.Replace(info, `"0.9"`, `"0.8"`, 1)
		}
		if got := bodies(collect(t, s, at(second)), "config"); len(got) > 0 {
			told[second] = got[0]
		}
		if n := asked.of("/version") + asked.of("/v1/models"); n != before {
			if n > before+1 {
				t.Errorf("%d extra requests in one tick", n-before)
			}
			extra, before = append(extra, second), n
		}
	}
	// At 0 with the version, at 60 the length of a context joins, ten minutes later the same again, at 1000 it changed.
	want := []int{0, 60, 660, 1000}
	for _, second := range want {
		if told[second] == nil {
			t.Errorf("not told at %d s", second)
		}
	}
	if len(told) != len(want) {
		t.Fatalf("told %d times, want %d", len(told), len(want))
	}
	first := v{"origin": "info metric", "gpu_memory_utilization": 0.9, "kv_cache_dtype": "auto", "block_size": 16, "engine_version": "0.24.0"}
	hash := told[0].Config.ConfigHash
	told[0].Config.ConfigHash = ""
	same(t, "at first", told[0], first)
	first["max_model_len"] = 131072
	if told[60].Config.ConfigHash == hash || told[660].Config.ConfigHash != told[60].Config.ConfigHash || told[1000].Config.ConfigHash == told[660].Config.ConfigHash {
		t.Error("the hash does not follow the fields")
	}
	told[60].Config.ConfigHash = ""
	same(t, "with the models", told[60], first)
	for i := 1; i < len(extra); i++ {
		if extra[i]-extra[i-1] < 60 {
			t.Errorf("extra requests at %v s", extra)
		}
	}
	if len(extra) != 6 { // two documents at 0 and 60, 600 and 660, 1200 and 1260
		t.Errorf("extra requests at %v s", extra)
	}
}

func TestSGLangTellsItsArgumentsAndNoSecret(t *testing.T) {
	client, _ := serve(t, shelf{"/metrics": "sglang:num_running_reqs{model_name=\"m\"} 1.0\n", "/server_info": serverInfo})
	s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://127.0.0.1:30000", Worker: worker(), Configured: true}}})
	got := bodies(collect(t, s, at(0)), "config")
	if len(got) != 1 || strings.Contains(got[0].String(), "sesame") {
		t.Fatalf("config events %v", got)
	}
	got[0].Config.ConfigHash = ""
	same(t, "config", got[0], v{"origin": "info metric", "engine_version": "0.5.20", "gpu_memory_utilization": 0.88, "kv_cache_dtype": "auto", "max_num_seqs": 256,
		"max_num_batched_tokens": 16384, "block_size": 1, "cuda_graphs": true, "tensor_parallel": 8, "pipeline_parallel": 1, "data_parallel": 2})
}

func TestADocumentThatFailsIsNoFailure(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "<html>", "a list": "[1,2]", "another shape": `{"version":{"a":["b"]}}`, "long": `{"version":"` + strings.Repeat("x", 2<<20) + `"}`} {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, shelf{"/metrics": vllmLine, "/version": text})
			s := newSource(t, Options{Client: client, Targets: []Target{{URL: "http://127.0.0.1:8000/metrics", Worker: worker(), Configured: true}}})
			if got := collect(t, s, at(0)); len(got) != 1 || got[0].Engine == nil {
				t.Errorf("events %v", got)
			}
		})
	}
}
