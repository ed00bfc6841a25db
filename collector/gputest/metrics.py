"""vLLM's metric families with its names, labels and bucket edges, filled from what the engine did.

It owns what counts as what (when a prompt counts, which latencies a finished request leaves). The
families that vLLM shows only behind a flag (LoRA, speculative decoding, KV block sampling, NaN
counting, external KV caches) are absent here as they are there.
"""

from exposition import Registry, process_text
from scheduler import ABORT, ERROR

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
TTFT_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
TOKEN_TIME_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST_TIME_EDGES = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
ITERATION_EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def token_edges(most):
    """1, 2, 5, 10, 20, 50 … up to and not above most."""
    out, power = [], 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > most:
                return out
            out.append(digit * power)
        power *= 10


class Outcome:
    """What one step did, collected without a lock and recorded at once."""

    def __init__(self):
        self.prompts = []  # prompt lengths of the requests whose first token came out
        self.first_waits = []  # seconds from arrival to first token
        self.token_waits = []  # seconds from one token to the next
        self.tokens = 0  # generated
        self.computed = 0  # tokens that went through the model, recomputed ones too
        self.preemptions = 0
        self.finished = []  # requests, with their reason


class EngineMetrics:
    """The registry of one engine index."""

    def __init__(self, model_name, max_model_len, cache_config, created, engine="0"):
        registry = self.registry = Registry(created)
        own = {"model_name": model_name, "engine": engine}

        def gauge(name, text, **extra):
            return registry.gauge("vllm:" + name, text, dict(own, **extra)).children[0][1]

        def counter(name, text):
            return registry.counter("vllm:" + name, text, own).children[0][1]

        def histogram(name, text, edges):
            return registry.histogram("vllm:" + name, text, edges, own).children[0][1]

        self.running = gauge("num_requests_running", "Number of requests in model execution batches.")
        self.waiting = gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        self._waiting_by = registry.gauge("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason.",
                                          *[dict(own, reason=reason) for reason in ("capacity", "deferred")])
        sleep = registry.gauge("vllm:engine_sleep_state", "Engine sleep state; awake = 1 is normal.",
                               *[dict(own, sleep_state=state) for state in ("awake", "weights_offloaded", "discard_all")])
        sleep.child(sleep_state="awake").set(1)
        self.usage = gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.")
        counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.")
        counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.")
        counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.")
        self.preemptions = counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self.prompt_tokens = counter("prompt_tokens", "Number of prefill tokens processed.")
        self._by_source = registry.counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", *[
            dict(own, source=source) for source in ("local_compute", "local_cache_hit", "external_kv_transfer")])
        counter("prompt_tokens_cached", "Number of cached prompt tokens.")
        self.generation_tokens = counter("generation_tokens", "Number of generation tokens processed.")
        self._success = registry.counter("vllm:request_success", "Count of successfully processed requests.",
                                         *[dict(own, finished_reason=reason) for reason in FINISH_REASONS])
        lengths = token_edges(max_model_len)
        self.request_prompt = histogram("request_prompt_tokens", "Number of prefill tokens processed.", lengths)
        self.request_generation = histogram("request_generation_tokens", "Number of generation tokens processed.", lengths)
        self.iteration = histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", ITERATION_EDGES)
        self.max_generation = histogram("request_max_num_generation_tokens",
                                        "Histogram of maximum number of requested generation tokens.", lengths)
        self.params_n = histogram("request_params_n", "Histogram of the n request parameter.", (1, 2, 5, 10, 20))
        self.params_max = histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lengths)
        self.kv_computed = histogram("request_prefill_kv_computed_tokens",
                                     "Histogram of new KV tokens computed during prefill.", lengths)
        self.ttft = histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", TTFT_EDGES)
        self.itl = histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", TOKEN_TIME_EDGES)
        self.tpot = histogram("request_time_per_output_token_seconds",
                              "Histogram of time_per_output_token_seconds per request.", TOKEN_TIME_EDGES)
        self.e2e = histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", REQUEST_TIME_EDGES)
        self.queue = histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
                               REQUEST_TIME_EDGES)
        self.inference = histogram("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
                                   REQUEST_TIME_EDGES)
        self.prefill = histogram("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
                                 REQUEST_TIME_EDGES)
        self.decode = histogram("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
                                REQUEST_TIME_EDGES)
        # No model_name on this one: the engine label is what joins it.
        registry.gauge("vllm:cache_config_info", "Information of the LLMEngine CacheConfig",
                       dict({name: str(value) for name, value in cache_config.items()}, engine=engine)).children[0][1].set(1)

    def gauges(self, running, waiting, usage):
        """Shows the queue and the pool as they are between two steps."""
        with self.registry.lock:
            self.running.set(running)
            self.waiting.set(waiting)
            self._waiting_by.child(reason="capacity").set(waiting)
            self.usage.set(usage)

    def record(self, outcome):
        """Counts one step's outcome."""
        with self.registry.lock:
            for length in outcome.prompts:
                self.prompt_tokens.inc(length)
                self._by_source.child(source="local_compute").inc(length)
            for seconds in outcome.first_waits:
                self.ttft.observe(seconds)
            for seconds in outcome.token_waits:
                self.itl.observe(seconds)
            self.generation_tokens.inc(outcome.tokens)
            self.preemptions.inc(outcome.preemptions)
            if outcome.computed:
                self.iteration.observe(outcome.computed)
            for request in outcome.finished:
                self._finished(request)

    def _finished(self, request):
        self._success.child(finished_reason=request.finished).inc()
        # An aborted or failed request leaves its reason and its tokens, and no latency.
        if request.finished in (ABORT, ERROR):
            return
        self.request_prompt.observe(request.prompt_tokens)
        self.request_generation.observe(request.generated)
        self.max_generation.observe(request.max_tokens)
        self.params_n.observe(1)
        self.params_max.observe(request.max_tokens)
        self.kv_computed.observe(request.prompt_tokens)
        self.e2e.observe(request.end - request.arrival)
        self.queue.observe(request.first_scheduled - request.arrival)
        self.inference.observe(request.last_token - request.first_scheduled)
        self.prefill.observe(request.first_token - request.first_scheduled)
        self.decode.observe(request.last_token - request.first_token)
        if request.generated > 1:
            self.tpot.observe((request.last_token - request.first_token) / (request.generated - 1))

    def text(self):
        """The whole /metrics answer."""
        return process_text() + self.registry.text()


def cache_config(block_size, blocks, kv_bytes, memory_utilization):
    """The labels of vllm:cache_config_info, as Python values: None stays "None", as an engine prints it."""
    return {
        "block_size": block_size, "cache_dtype": "auto", "calculate_kv_scales": False, "cpu_offload_gb": 0,
        "enable_prefix_caching": False, "gpu_memory_utilization": memory_utilization, "is_attention_free": False,
        "kv_cache_memory_bytes": kv_bytes, "kv_cache_size_tokens": blocks * block_size, "num_cpu_blocks": None,
        "num_gpu_blocks": blocks, "num_gpu_blocks_override": None, "prefix_caching_hash_algo": "sha256",
        "sliding_window": None, "swap_space": 0,
    }
