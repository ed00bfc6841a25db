"""What the probe and its evidence cost a program on a GPU, measured in one run of less than 90 seconds: JSON on stdout.

    python3 collector/probe/tests/gpu_evidence.py > evidence.json

It needs torch and a GPU, nothing else: it plays the collector on a socket of its own. A worker runs decoding steps of a small model,
bound by its launches as serving often is, in segments: without the probe, with it (a read a second, five times the usual pace), with
allocation history, with the probe again, and through a snapshot and a census. Then an allocation fails, first unarmed, then with the
post-mortem armed. A control runs the same segments in a process that never has the probe, so that drift is not taken for cost.
The pause of a minute between two asks is set to nothing in the worker; everything else is the probe as it is."""

import argparse
import json
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time

import stage

LIMIT = 88.0  # seconds of the whole run
HEAP = 500000  # Python objects beside the tensors, as a server has them
GRADS, GRAD_BYTES = 100, 256 * 256 * 4
PLAN = (("none", 1), ("probe", 2), ("history", 1), ("probe_again", 1))  # segments, in units of --seconds


# The worker.

def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


class Load:
    """Weights, many small live tensors, and a decoding step."""

    def __init__(self, torch, blocks):
        self.torch = torch
        self.weights = [(self.random(1024, 4096), self.random(4096, 1024)) for _ in range(24)]
        self.small = [torch.empty(128 + i % 700, device="cuda") for i in range(blocks)]
        del self.small[::7]  # holes
        self.heap = [[i] for i in range(HEAP)]
        self.kept = []
        leaf = torch.ones(256, 256, device="cuda", requires_grad=True)
        self.grads = [leaf * 2 for _ in range(GRADS)]

    def random(self, *shape):
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.bfloat16) / 64

    def step(self, keep):
        x = self.random(8, 1024)
        for up, down in self.weights:
            x = x + self.torch.nn.functional.silu(x @ up) @ down
            x = x / (x.abs().mean() + 1)
        if keep:
            self.kept.append(self.torch.empty(65536, dtype=self.torch.uint8, device="cuda"))  # the leak that history must name
        self.torch.cuda.synchronize()

    def segment(self, seconds, keep=False):
        """Steps for so long, and what they took."""
        taken, allocations, probe = [], self.allocations(), probe_seconds()
        began = last = time.perf_counter()
        while last - began < seconds:
            self.step(keep)
            now = time.perf_counter()
            taken.append(now - last)
            last = now
        spent = probe_seconds()
        return {
            "seconds": round(last - began, 3), "steps": len(taken), "mean_ms": round((last - began) / len(taken) * 1e3, 4),
            "p50_ms": round(quantile(taken, 0.5) * 1e3, 4), "p99_ms": round(quantile(taken, 0.99) * 1e3, 4), "max_ms": round(max(taken) * 1e3, 3),
            "allocations_per_step": round((self.allocations() - allocations) / len(taken), 1),
            "probe_thread_cpu_ms_per_second": None if None in (probe, spent) else round((spent - probe) / (last - began) * 1e3, 4),
        }

    def allocations(self):
        return self.torch.cuda.memory_stats().get("allocation.all.allocated", 0)

    def fail(self):
        """An allocation that fails: how long it took until the program had the exception."""
        torch = self.torch
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min((torch.cuda.memory_reserved() + (1 << 30)) / total, 1.0))
        began = time.perf_counter()
        try:
            torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
            return {"raised": ""}
        except Exception as error:
            return {"raised": type(error).__name__, "ms": round((time.perf_counter() - began) * 1e3, 3)}


def probe_seconds():
    """CPU seconds of the probe's thread, None when there is none or the kernel does not say."""
    for thread in threading.enumerate():
        if thread.name == "lowtide-probe":
            try:
                with open("/proc/self/task/%d/schedstat" % thread.native_id) as f:
                    return int(f.read().split()[0]) / 1e9
            except (OSError, ValueError, IndexError):
                return None
    return None


def start():
    import lowtide_probe
    import lowtide_probe.evidence

    lowtide_probe.evidence.ASK_SECONDS = 0.0
    lowtide_probe.start()


def work(blocks):
    import torch

    if not torch.cuda.is_available():
        sys.exit("error: no GPU that torch can use\nhint: run this on a machine with one")
    load = Load(torch, blocks)
    load.segment(1.0)  # warm
    names = {"load": load, "start": start, "torch": torch}
    print(json.dumps({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "python": sys.version.split()[0],
        "blocks": torch.cuda.memory_stats().get("active.all.current")}), flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps(eval(line, names)), flush=True)


# The collector.

class Worker:
    """A worker process, which does what it is told, a line each."""

    def __init__(self, socket, options, **environment):
        environment = dict(os.environ, LOWTIDE_PROBE_SOCKET=socket, PYTHONPATH=os.pathsep.join([stage.PROBE] + os.environ.get("PYTHONPATH", "").split(os.pathsep)), **environment)
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", "--blocks", str(options.blocks)], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answers = queue.Queue()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self, until):
        try:
            line = self.answers.get(timeout=max(until - time.monotonic(), 0.1))
        except queue.Empty:
            raise RuntimeError("no answer of the worker in time") from None
        if not line:
            raise RuntimeError("the worker ended: exit %s" % self.process.wait(5))
        return json.loads(line)

    def do(self, line, until):
        self.tell(line)
        return self.answer(until)

    def end(self):
        try:
            self.process.stdin.close()
            self.process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


class Run:
    """One run: its folder, its collector, and what it has found so far."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.until = time.monotonic() + LIMIT
        self.found = {"blocks": options.blocks, "segments": {}, "control": {}, "problems": []}
        self.collector = stage.Collector(os.path.join(folder, "probe.sock"), greeting=b'{"lowtide":1,"interval_seconds":1}\n')
        self.reads = []
        self.files = 0

    def ask(self, kind, **fields):
        """Asks on the newest connection, with a file; its path."""
        self.files += 1
        path = os.path.join(self.folder, "%d.pickle" % self.files)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fields = dict({"id": "ask%d" % self.files, "max_bytes": 256 << 20, "budget_seconds": 10}, **fields)
        try:
            self.collector.ask(kind, len(self.collector.connections), () if kind == "census" else [fd], **fields)
        finally:
            os.close(fd)
        return path

    def heard(self, kind, test=lambda line: True, seconds=20.0):
        """The next line of that kind. Reads on the way are kept."""
        end = min(time.monotonic() + seconds, self.until)
        while True:
            try:
                _, line = self.collector.lines.get(timeout=max(end - time.monotonic(), 0.1))
            except queue.Empty:
                raise RuntimeError("the probe said no %s within %g s" % (kind, seconds)) from None
            if line["kind"] == "read":
                self.reads.append(line)
            if line["kind"] == kind and test(line):
                return line

    def answer(self, path):
        line = self.heard("snapshot")
        said = {name: line.get(name) for name in ("status", "error", "note", "reason", "bytes", "took_seconds", "gil_seconds", "history_seconds", "census") if name in line}
        if line["status"] == "ok" and os.path.getsize(path):
            said.update(look(path))
        return said

    def measured(self):
        worker = Worker(self.collector.path, self.options)
        try:
            self.found.update(worker.answer(self.until))
            seconds, segments = self.options.seconds, self.found["segments"]
            segments["none"] = worker.do("load.segment(%g)" % seconds, self.until)
            worker.do("start()", self.until)
            self.found["asks"] = self.heard("hello").get("asks")
            self.heard("read")
            self.reads.clear()
            segments["probe"] = worker.do("load.segment(%g)" % (2 * seconds), self.until)
            self.drain()
            self.found["reads"] = costs(self.reads, segments["probe"]["seconds"])

            path = self.ask("snapshot", history_seconds=seconds + 0.5, max_entries=50000)
            self.heard("recording", lambda line: line["history"] == "on")
            segments["history"] = worker.do("load.segment(%g, keep=True)" % seconds, self.until)
            self.found["snapshot_with_history"] = self.answer(path)
            self.heard("recording", lambda line: line["history"] == "off")
            segments["probe_again"] = worker.do("load.segment(%g)" % seconds, self.until)

            for name, kind in (("snapshot", "snapshot"), ("census", "census")):
                worker.tell("load.segment(2.5)")
                path = self.ask(kind)
                self.found[name] = self.answer(path)
                segments["with_" + name] = worker.answer(self.until)
            self.found["census_expected"] = {"tensors": GRADS, "bytes": GRADS * GRAD_BYTES}

            self.found["oom_unarmed"] = worker.do("load.fail()", self.until)
            path = self.ask("arm", budget_seconds=5)
            worker.do("load.segment(1.5)", self.until)  # until the probe has looked
            self.found["oom_armed"] = worker.do("load.fail()", self.until)
            self.found["post_mortem"] = self.answer(path)
        finally:
            worker.end()

    def control(self):
        worker = Worker(self.collector.path, self.options, LOWTIDE_PROBE="0")
        try:
            worker.answer(self.until)
            for name, units in PLAN:
                self.found["control"][name] = worker.do("load.segment(%g, keep=%s)" % (units * self.options.seconds, name == "history"), self.until)
        finally:
            worker.end()

    def other(self):
        """The other back end, which has no snapshots."""
        if self.until - time.monotonic() < 15:
            self.found["cudaMallocAsync"] = "skipped: too little time was left"
            return
        worker = Worker(self.collector.path, argparse.Namespace(blocks=100), PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
        try:
            worker.answer(self.until)
            worker.do("start()", self.until)
            self.heard("hello")
            self.found["cudaMallocAsync"] = self.answer(self.ask("snapshot"))
        finally:
            worker.end()

    def drain(self):
        while not self.collector.lines.empty():
            _, line = self.collector.lines.get()
            if line["kind"] == "read":
                self.reads.append(line)

    def compare(self):
        """Each segment's median step against the one without the probe, and the same of the control, which is drift alone."""
        for name, segments in (("slower", self.found["segments"]), ("slower_control", self.found["control"])):
            if "none" in segments:
                base = segments["none"]
                self.found[name] = {segment: {"p50": round(s["p50_ms"] / base["p50_ms"] - 1, 4), "mean": round(s["mean_ms"] / base["mean_ms"] - 1, 4)}
                    for segment, s in segments.items() if segment != "none"}


def costs(reads, seconds):
    took = [read["took_seconds"] for read in reads]
    if not took:
        return None
    return {
        "reads": len(took), "p50_ms": round(quantile(took, 0.5) * 1e3, 4), "max_ms": round(max(took) * 1e3, 4),
        "gil_ms_per_second_at_1s": round(sum(took) / seconds * 1e3, 4), "gil_ms_per_second_at_5s": round(sum(took) / len(took) / 5 * 1e3, 4),
    }


def look(path):
    """What a snapshot holds, as CPython reads it."""
    with open(path, "rb") as f:
        snapshot = pickle.load(f)
    blocks = stacked = 0
    held = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            blocks += 1
            if block.get("frames") and block["state"] == "active_allocated":
                stacked += 1
                # The innermost frame that is this file's.
                frame = next((f for f in block["frames"] if f["filename"].endswith("gpu_evidence.py")), block["frames"][0])
                name = "%s:%d %s" % (os.path.basename(frame["filename"]), frame["line"], frame["name"])
                held[name] = held.get(name, 0) + block["size"]
    return {
        "blocks": blocks, "blocks_with_stack": stacked, "entries": sum(map(len, snapshot["device_traces"])),
        "ooms": sum(entry["action"] == "oom" for trace in snapshot["device_traces"] for entry in trace),
        "holders": dict(sorted(held.items(), key=lambda item: -item[1])[:3]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a segment")
    parser.add_argument("--blocks", type=int, default=20000, help="small live tensors")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.blocks)
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lowtide-evidence-") as folder:
        run = Run(options, folder)
        try:
            for part in (run.measured, run.control, run.other):
                try:
                    part()
                except Exception as error:  # what was found so far is worth as much as before
                    run.found["problems"].append("%s: %s: %s" % (part.__name__, type(error).__name__, error))
            run.compare()
        finally:
            run.collector.close()
    run.found["took_seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(run.found, indent=1))
    sys.exit(1 if run.found["problems"] else 0)


if __name__ == "__main__":
    main()
