import re
import unittest

from metrics import EngineMetrics, Outcome, cache_config, token_edges
from scheduler import Request

# What vLLM V1 shows without further flags: family → type, as its own source and documentation name them.
FAMILIES = dict(
    [("vllm:" + name, "gauge") for name in ("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason",
                                            "kv_cache_usage_perc", "engine_sleep_state", "cache_config_info")] +
    [("vllm:" + name + "_total", "counter") for name in (
        "num_preemptions", "prompt_tokens", "prompt_tokens_by_source", "prompt_tokens_cached", "generation_tokens",
        "prefix_cache_queries", "prefix_cache_hits", "mm_cache_queries", "mm_cache_hits", "request_success")] +
    [("vllm:" + name, "histogram") for name in (
        "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens",
        "request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens",
        "request_prefill_kv_computed_tokens", "iteration_tokens_total")])
EDGES = {
    "time_to_first_token_seconds": ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560",
    "inter_token_latency_seconds": ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80",
    "request_time_per_output_token_seconds": ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80",
    "iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
    "request_prompt_tokens": "1 2 5 10 20 50 100 200 500 1000 2000",
    "request_params_max_tokens": "1 2 5 10 20 50 100 200 500 1000 2000",
}
for _name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time"):
    EDGES[_name + "_seconds"] = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


def read(text):
    """The text as (types by family, values by (name, frozenset of label pairs))."""
    types, values = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types, "%s is typed twice" % name
            types[name] = kind
        elif not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            key = (name, frozenset(LABEL.findall(labels or "")))
            assert key not in values, "%r is there twice" % (key,)
            values[key] = float(value)
    return types, values


def metrics():
    return EngineMetrics("m", 2048, cache_config(16, 9271, 4860870656, 0.9), 1788184100.0)


def value(values, name, **labels):
    labels = dict({"model_name": "m", "engine": "0"}, **labels)
    return values["vllm:" + name, frozenset(labels.items())]


class MetricsTest(unittest.TestCase):
    def test_the_families_are_vllms_and_no_others(self):
        types, values = read(metrics().text())
        own = {name: kind for name, kind in types.items() if name.startswith("vllm:") and not name.endswith("_created")}
        self.assertEqual(own, FAMILIES)
        made = {name for name in types if name.startswith("vllm:") and name.endswith("_created")}
        self.assertEqual(made, {re.sub("_total$", "", name) + "_created" if kind == "counter" else name + "_created"
                                for name, kind in FAMILIES.items() if kind != "gauge"})
        self.assertEqual(value(values, "num_preemptions_created"), 1788184100.0)
        for name in types:
            self.assertRegex(name, "^(vllm:|process_|python_)")

    def test_every_sample_has_the_engines_labels(self):
        for name, labels in read(metrics().text())[1]:
            if name == "vllm:cache_config_info":
                self.assertNotIn("model_name", dict(labels))
                self.assertEqual(dict(labels)["engine"], "0")
            elif name.startswith("vllm:"):
                self.assertEqual({k: v for k, v in labels if k in ("model_name", "engine")}, {"model_name": "m", "engine": "0"})

    def test_bucket_edges(self):
        _, values = read(metrics().text())
        for name, edges in EDGES.items():
            found = sorted(float(dict(labels)["le"]) for family, labels in values if family == "vllm:%s_bucket" % name)
            self.assertEqual(found, [float(edge) for edge in edges.split()] + [float("inf")], name)
        self.assertEqual(token_edges(20), [1, 2, 5, 10, 20])

    def test_reasons_states_and_sources_are_there_before_anything_happened(self):
        _, values = read(metrics().text())
        for reason in ("stop", "length", "abort", "error", "repetition"):
            self.assertEqual(value(values, "request_success_total", finished_reason=reason), 0)
        self.assertEqual([value(values, "engine_sleep_state", sleep_state=state)
                          for state in ("awake", "weights_offloaded", "discard_all")], [1, 0, 0])
        self.assertEqual(value(values, "num_requests_waiting_by_reason", reason="deferred"), 0)

    def test_the_cache_configuration_is_python_text(self):
        _, values = read(metrics().text())
        labels = next(dict(labels) for name, labels in values if name == "vllm:cache_config_info")
        for name, text in (("block_size", "16"), ("num_gpu_blocks", "9271"), ("num_cpu_blocks", "None"), ("cache_dtype", "auto"),
                           ("enable_prefix_caching", "False"), ("gpu_memory_utilization", "0.9"),
                           ("kv_cache_memory_bytes", "4860870656"), ("kv_cache_size_tokens", "148336")):
            self.assertEqual(labels[name], text)

    def test_a_finished_request_leaves_its_times_and_an_aborted_one_its_reason_only(self):
        own, outcome = metrics(), Outcome()
        done = Request(1, [1] * 40, 3, 20, arrival=10.0)
        done.tokens += [1, 2, 3]
        done.first_scheduled, done.first_token, done.last_token, done.end, done.finished = 10.5, 11.0, 12.0, 12.0, "stop"
        gone = Request(2, [1] * 7, 9, 9, arrival=11.0)
        gone.finished = "abort"
        outcome.finished = [done, gone]
        outcome.prompts, outcome.first_waits, outcome.token_waits = [40], [1.0], [0.5, 0.5]
        outcome.tokens, outcome.computed, outcome.preemptions = 3, 42, 2
        own.record(outcome)
        own.gauges(3, 5, 0.914)
        _, values = read(own.text())
        for name, want in (("e2e_request_latency_seconds", 2.0), ("request_queue_time_seconds", 0.5),
                           ("request_prefill_time_seconds", 0.5), ("request_decode_time_seconds", 1.0),
                           ("request_inference_time_seconds", 1.5), ("request_time_per_output_token_seconds", 0.5),
                           ("request_prompt_tokens", 40), ("request_generation_tokens", 3), ("request_params_max_tokens", 20),
                           ("time_to_first_token_seconds", 1.0), ("iteration_tokens_total", 42)):
            self.assertEqual((value(values, name + "_sum"), value(values, name + "_count")), (want, 1), name)
        self.assertEqual(value(values, "inter_token_latency_seconds_count"), 2)
        self.assertEqual(value(values, "inter_token_latency_seconds_bucket", le="0.4"), 0)
        self.assertEqual(value(values, "inter_token_latency_seconds_bucket", le="0.5"), 2)
        for name, want in (("num_preemptions_total", 2), ("prompt_tokens_total", 40), ("generation_tokens_total", 3),
                           ("num_requests_running", 3), ("num_requests_waiting", 5), ("kv_cache_usage_perc", 0.914)):
            self.assertEqual(value(values, name), want, name)
        self.assertEqual(value(values, "num_requests_waiting_by_reason", reason="capacity"), 5)
        self.assertEqual(value(values, "prompt_tokens_by_source_total", source="local_compute"), 40)
        self.assertEqual(value(values, "request_success_total", finished_reason="stop"), 1)
        self.assertEqual(value(values, "request_success_total", finished_reason="abort"), 1)


if __name__ == "__main__":
    unittest.main()
