"""A real inference worker for tests on a GPU: `python3 worker.py --help` says what it can be told.

A transformer with random weights behind a paged KV pool and continuous batching serves clients that
it brings itself, in real time, and tells about it at /metrics under vLLM's names. Flags plant faults.
It knows of no probe: that is put in from outside, as it would be into any server.
stdout has one JSON line when it is ready, one at the first effect of each planted fault and one at the end; everything else goes to stderr.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from backlog import Backlog
from blocks import BlockPool
from client import Client, Profile
from engine import Engine
from exposition import CONTENT_TYPE
from faults import PlantedFaults, log
from memory import Memory
from metrics import EngineMetrics, cache_config
from scheduler import Scheduler
from shape import Shape

VERSION = "0.30.0+gputest"  # the vLLM release whose families these are
MIB = 1 << 20


def parse(argv):
    """The flags. Raises ValueError for values that contradict each other; argparse ends the process for the rest."""
    parser = argparse.ArgumentParser(description="A small but real inference worker with vLLM's metrics.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--model", default="lowtide-lab", help="model_name label")
    add("--host", default="127.0.0.1", help="address of /metrics")
    add("--port", type=int, default=8000, help="port of /metrics; 0 picks one and prints it")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where it computes")
    add("--devices", type=int, default=1, help="GPUs of this one process; layers are split over them")
    add("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="of weights and KV")
    add("--seed", type=int, default=1, help="of weights and clients")
    add("--seconds", type=float, default=None, help="serve so long, then drain and end with 0; without it until SIGTERM")
    add("--drain-timeout", type=float, default=30.0, help="seconds that requests in flight get at the end")
    model = parser.add_argument_group("model (the defaults are 2.2 GB of weights in bfloat16)")
    for name, value, words in (("--layers", 16, "layers"), ("--hidden", 2048, "width"), ("--heads", 16, "query heads"),
                               ("--kv-heads", 4, "key and value heads"), ("--ffn", 8192, "feed-forward width"),
                               ("--vocab", 32000, "vocabulary"), ("--max-model-len", 2048, "prompt and output together, tokens")):
        model.add_argument(name, type=int, default=value, help=words)
    pool = parser.add_argument_group("KV pool and batching")
    pool.add_argument("--kv-blocks", type=int, default=2048, help="blocks in the pool (512 KiB each by default)")
    pool.add_argument("--block-size", type=int, default=16, help="tokens in a block")
    pool.add_argument("--max-num-seqs", type=int, default=32, help="requests that run at once")
    pool.add_argument("--max-num-batched-tokens", type=int, default=2048, help="tokens in a step")
    load = parser.add_argument_group("clients")
    load.add_argument("--rate", type=float, default=4.0, help="requests a second inside a burst")
    load.add_argument("--swing", type=float, default=0.0, help="how far the bursts' rates lie apart, as a share of --rate, 0..1")
    load.add_argument("--burst-seconds", type=float, default=20.0, help="length of a burst")
    load.add_argument("--drain-seconds", type=float, default=40.0, help="silence between bursts; 0 never drains")
    load.add_argument("--prompt-mean", type=int, default=256, help="tokens")
    load.add_argument("--prompt-max", type=int, default=1024, help="tokens")
    load.add_argument("--output-mean", type=int, default=96, help="tokens")
    load.add_argument("--output-max", type=int, default=256, help="tokens")
    load.add_argument("--abort-fraction", type=float, default=0.0, help="share of clients that hang up half way, 0..1")
    load.add_argument("--patience-seconds", type=float, default=0.0, help="clients without a first token hang up after so long; 0 never")
    wrong = parser.add_argument_group("planted faults")
    wrong.add_argument("--retain-aborted", action="store_true", help="keep a tensor of every aborted request (the leak)")
    wrong.add_argument("--retain-mib", type=int, default=16, help="MiB kept for each")
    wrong.add_argument("--leak", choices=("none", "native"), default="none", help="native: memory outside torch for every aborted request")
    wrong.add_argument("--leak-mib", type=int, default=16, help="MiB of native memory for each")
    wrong.add_argument("--hold-kv", type=float, nargs="?", const=1.0, default=0.0, metavar="FRACTION",
                       help="share of aborted requests whose KV blocks are never freed; all without a value")
    wrong.add_argument("--cap-fraction", type=float, default=None, help="share of the card that torch may take, 0..1")
    wrong.add_argument("--oom-at-seconds", type=float, action="append", default=[],
                       help="at that second ask for --oom-mib at once; may be given several times")
    wrong.add_argument("--oom-mib", type=int, default=None, help="MiB to ask for; by default all that the cap or the card has")
    wrong.add_argument("--fragment-at-seconds", type=float, action="append", default=[],
                       help="at that second leave all that --cap-fraction allows in pieces and ask for an eighth of it at once; may be given several times")
    wrong.add_argument("--oversize-at-seconds", type=float, action="append", default=[],
                       help="at that second compute a prompt whose activations do not fit; may be given several times")
    wrong.add_argument("--hang-at-seconds", type=float, default=None,
                       help="from that second on no step returns, while requests are still taken in, until the drain ends")
    for name, words in (("--backlog-mib", "MiB dropped behind a stream that stands still, for every aborted request"),
                        ("--graph-mib", "MiB of a CUDA graph's own pool, captured at every third aborted request"),
                        ("--pin-mib", "MiB of page-locked memory kept for every aborted request"),
                        ("--host-mib", "MiB of host memory kept for every aborted request"),
                        ("--leak-files", "files left open by every aborted request"),
                        ("--leak-threads", "threads left waiting by every aborted request")):
        wrong.add_argument(name, type=int, default=0, help=words)
    wrong.add_argument("--cache-mib", type=int, default=0, help="healthy: MiB on the GPU remembered for every finished request")
    wrong.add_argument("--cache-entries", type=int, default=64, help="how many are remembered at most")
    wrong.add_argument("--die-on-oom", action="store_true", help="end with the exception instead of failing its requests")
    options = parser.parse_args(argv)
    check(options)
    return options


def check(options):
    """Raises ValueError where flags contradict each other."""
    if options.prompt_max + options.output_max > options.max_model_len:
        raise ValueError("--prompt-max %d and --output-max %d exceed --max-model-len %d; lower them or raise it" %
                         (options.prompt_max, options.output_max, options.max_model_len))
    if options.kv_blocks * options.block_size < options.max_model_len:
        raise ValueError("--kv-blocks %d of %d tokens hold no request of --max-model-len %d; raise --kv-blocks" %
                         (options.kv_blocks, options.block_size, options.max_model_len))
    if not 0 <= options.hold_kv <= 1:
        raise ValueError("--hold-kv %g is not within 0..1" % options.hold_kv)
    if options.cap_fraction is not None and not 0 < options.cap_fraction <= 1:
        raise ValueError("--cap-fraction %g is not within 0..1" % options.cap_fraction)
    if options.max_num_seqs < 1 or options.max_num_batched_tokens < 1 or min(options.retain_mib, options.leak_mib) < 1:
        raise ValueError("--max-num-seqs, --max-num-batched-tokens, --retain-mib and --leak-mib must be at least 1")
    for name in ("backlog_mib", "graph_mib", "pin_mib", "host_mib", "leak_files", "leak_threads", "cache_mib"):
        if getattr(options, name) < 0:
            raise ValueError("--%s must not be negative; 0 plants nothing" % name.replace("_", "-"))
    if options.cache_entries < 1:
        raise ValueError("--cache-entries must be at least 1")
    if options.fragment_at_seconds and options.cap_fraction is None:
        raise ValueError("--fragment-at-seconds fills all that torch may take; give it a --cap-fraction, or it fills the card")
    if options.device == "cpu":
        given = [name for name, value in (("--leak native", options.leak == "native"), ("--cap-fraction", options.cap_fraction),
                                          ("--oom-at-seconds", options.oom_at_seconds), ("--fragment-at-seconds", options.fragment_at_seconds),
                                          ("--oversize-at-seconds", options.oversize_at_seconds), ("--backlog-mib", options.backlog_mib),
                                          ("--graph-mib", options.graph_mib), ("--pin-mib", options.pin_mib)) if value]
        if given:
            raise ValueError("%s need a GPU; leave them out with --device cpu" % " and ".join(given))


def say(**fields):
    """One JSON line to stdout."""
    print(json.dumps(fields, sort_keys=True), flush=True)


class MetricsServer:
    """/metrics, /version and /health. The port is taken at once, so that a wrong one is told before the model loads, but
    nobody is let in before start(): until then a connection is refused, as by an engine that still loads."""

    def __init__(self, host, port):
        self._text = lambda: ""
        answer_metrics = lambda: self._text()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10  # a client that says nothing more does not keep a thread for ever

            def do_GET(self):
                path = self.path.split("?", 1)[0]
                if path == "/metrics":
                    self.answer(200, CONTENT_TYPE, answer_metrics())
                elif path == "/version":
                    self.answer(200, "application/json", json.dumps({"version": VERSION}))
                elif path == "/health":
                    self.answer(200, "text/plain", "")
                else:
                    self.answer(404, "application/json", json.dumps({"detail": "Not Found"}))

            def answer(self, code, kind, text):
                body = text.encode("utf-8")
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except OSError:
                    self.close_connection = True  # the scraper has gone; that is its own affair

            def log_message(self, *args):
                pass  # a line for every scrape would bury the OOM texts

        self._server = ThreadingHTTPServer((host, port), Handler, bind_and_activate=False)
        self._server.daemon_threads = True
        self._thread = None
        try:
            self._server.server_bind()
        except OSError:
            self._server.server_close()
            raise

    @property
    def port(self):
        """The port that it has."""
        return self._server.server_address[1]

    def start(self, metrics_text):
        """Lets clients in; metrics_text makes every /metrics answer, on the client's own thread."""
        self._text = metrics_text
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="http", daemon=True)
        self._thread.start()

    def close(self):
        """Stops serving and waits for the thread."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def build(options):
    """Loads torch, the model and the pool. Returns (model, faults)."""
    shape = Shape(options.layers, options.hidden, options.heads, options.kv_heads, options.ffn, options.vocab, options.max_model_len)
    import torch  # here, so that wrong flags need no torch to be told
    import model as transformer
    devices = transformer.devices_for(options.device, options.devices)
    limit = None
    if options.device == "cuda":
        torch.cuda.set_device(0)
        limit = transformer.device_bytes(devices[0])
        if options.cap_fraction is not None:
            transformer.cap(devices, options.cap_fraction)
            limit = int(limit * options.cap_fraction)
    begun = time.monotonic()
    model = transformer.Model(shape, devices, options.kv_blocks, options.block_size, getattr(torch, options.dtype), options.seed)
    model.warm_up(options.max_num_seqs, options.max_model_len)
    log("loaded %d parameters in %.1f s" % (shape.parameters, time.monotonic() - begun))
    driver = None
    if options.leak == "native" or options.backlog_mib:
        from driver import Driver
        driver = Driver()
        driver.use_device(0)
    memory, backlog = Memory(torch, devices[-1]), None
    if options.backlog_mib:
        backlog = Backlog(torch, devices[-1], driver, memory.bytes, log)
        backlog.rehearse(options.backlog_mib << 20, lambda: model.warm_up(1, transformer.PREFILL_STEP))
        log("a stream stands still, and the model runs beside it")
    return model, PlantedFaults(options, model, driver, limit, memory, lambda name: say(planted=name, time=time.time()), backlog)


def run(options, stopping):
    """Builds the worker, serves until it is told to stop, and returns the summary."""
    started = time.time()
    server = MetricsServer(options.host, options.port)
    try:
        model, faults = build(options)
        scheduler = Scheduler(BlockPool(options.kv_blocks, options.block_size), options.max_num_seqs,
                              options.max_num_batched_tokens, options.max_model_len)
        profile = Profile(options.rate, options.burst_seconds, options.drain_seconds, options.prompt_mean, options.prompt_max,
                          options.output_mean, options.output_max, options.abort_fraction, options.patience_seconds, options.vocab, options.swing)
        metrics = EngineMetrics(options.model, options.max_model_len, cache_config(
            options.block_size, options.kv_blocks, model.kv_bytes, options.cap_fraction or 0.9), started)
        zero = time.monotonic()
        engine = Engine(model, scheduler, Client(profile, options.seed), metrics, lambda: time.monotonic() - zero, time.sleep,
                        log, faults, options.die_on_oom)
        server.start(metrics.text)
        say(ready=True, pid=os.getpid(), port=server.port, model=options.model, devices=options.devices,
            weight_bytes=model.weight_bytes, kv_bytes=model.kv_bytes)
        try:
            engine.run(stopping, options.seconds, options.drain_timeout)
        finally:
            faults.close()
        return dict(engine.summary(), retained_tensors=len(model.kept), retained_bytes=model.kept_bytes,
                    native_bytes=faults.native_bytes, native_failures=faults.native_failures, backlog_releases=faults.backlog_releases)
    finally:
        server.close()


def main(argv=None):
    """Runs the worker and returns its exit code: 0 it drained and ended, 2 it could not start as told."""
    told = []
    # A handler only leaves a note: the engine's loop reads it between two steps.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: told.append(signum))
    try:
        options = parse(argv)
        summary = run(options, lambda: bool(told))
    except ValueError as error:
        print("error: start worker: %s" % error, file=sys.stderr)
        print("hint: worker.py --help names every flag", file=sys.stderr)
        return 2
    except OSError as error:
        print("error: start worker: %s" % error, file=sys.stderr)
        print("hint: choose another --host or --port, or --port 0; --leak native needs the CUDA driver", file=sys.stderr)
        return 2
    except ImportError as error:
        print("error: start worker: %s" % error, file=sys.stderr)
        print("hint: install torch for %s" % sys.executable, file=sys.stderr)
        return 2
    say(ended=True, pid=os.getpid(), **summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
