"""Measures on a GPU what the probe costs the worker: JSON on stdout. Needs torch and a GPU; never part of the probe.

A read holds the GIL throughout, so its duration is the time the program may be held up. That is measured twice: by the clock
around the read, and as a second thread sees it, which does nothing but look at the clock. So is a snapshot, which the collector asks
for; tests/gpu_evidence.py measures that, allocation history and a census in a program that works."""

import argparse
import json
import os
import statistics
import sys
import threading
import time

import torch

import lowtide_probe
from lowtide_probe import reading, snapshot
from lowtide_probe.link import encode


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def milliseconds(values):
    return {"p50": round(quantile(values, 0.5) * 1e3, 4), "p99": round(quantile(values, 0.99) * 1e3, 4), "max": round(max(values) * 1e3, 4)}


def fill(mebibytes):
    """Blocks of many sizes with holes, as in a worker that serves: the numbers cost the same, the mutex is real."""
    kept = []
    for i in range(2000):
        kept.append(torch.empty((i % 37 + 1) * 4096, dtype=torch.uint8, device="cuda"))
    kept.append(torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda"))
    return [t for i, t in enumerate(kept) if i % 3]


def stall(read, reads):
    """How long each read keeps another Python thread from running, beyond what that thread sees without reads."""
    gaps, stop = [], threading.Event()

    def look():
        last = time.perf_counter()
        while not stop.is_set():
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=look)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that the gaps are the reads', not the interpreter's turns
    thread.start()
    for _ in range(reads):
        read()
        time.sleep(0.01)
    stop.set()
    thread.join()
    sys.setswitchinterval(interval)
    return sorted(gaps)[-reads:]


def asked(reader, times=5):
    """What a snapshot costs, without history."""
    snapshots, said, took = snapshot.Snapshots(torch, reader), [], []

    def take():
        fd = os.memfd_create("snapshot")
        try:
            began = time.perf_counter()
            said.append(snapshots.write(fd, 1 << 30, 30.0))
            took.append(time.perf_counter() - began)
        finally:
            os.close(fd)

    gaps = stall(take, times)
    return {"blocks": reader.blocks(), "bytes": said[-1]["bytes"], "took_ms": milliseconds(took), "gil_held_ms": milliseconds([s["gil_seconds"] for s in said]),
        "other_thread_gap_ms": milliseconds(gaps)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=2000)
    parser.add_argument("--fill", type=int, default=1024, metavar="MIB")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: no GPU that torch can use\nhint: run this on a machine with one")
    held = fill(options.fill)
    reader = reading.Reader(torch)
    walls, cpus, lines, plain, scans = [], [], [], [], []
    for _ in range(options.reads):
        began, cpu = time.perf_counter(), time.thread_time()
        devices = reader.devices()
        compiles = reading.compiles()
        wall, cpu = time.perf_counter() - began, time.thread_time() - cpu
        walls.append(wall)
        cpus.append(cpu)
        (scans if reader.scanned else plain).append(wall)
        began = time.perf_counter()
        data = encode({"v": 1, "kind": "read", "time": time.time(), "took_seconds": wall, "interval_seconds": 5, "devices": devices, "compiles_total": compiles})
        lines.append(time.perf_counter() - began)
    flat = []
    for _ in range(min(options.reads, 500)):
        began = time.perf_counter()
        torch.cuda.memory_stats(0)
        flat.append(time.perf_counter() - began)
    whole = [a + b for a, b in zip(walls, lines)]
    quiet = stall(lambda: None, 200)
    gaps = stall(lambda: encode({"devices": reader.devices()}), 200)
    print(json.dumps({
        "probe": lowtide_probe.__version__, "python": sys.version.split()[0], "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0), "gpus": torch.cuda.device_count(), "backend": reader.backend, "reads": options.reads,
        "read_ms_p50": milliseconds(walls)["p50"], "read_ms_p99": milliseconds(walls)["p99"], "read_ms_max": milliseconds(walls)["max"],
        "read_without_scan_ms": milliseconds(plain), "read_with_scan_ms": milliseconds(scans), "read_cpu_ms": milliseconds(cpus),
        "encode_ms": milliseconds(lines), "gil_held_ms": milliseconds(whole), "gil_held_ms_mean": round(statistics.mean(whole) * 1e3, 4),
        "other_thread_gap_ms": milliseconds(gaps), "other_thread_gap_without_reads_ms": milliseconds(quiet),
        "snapshot": asked(reader), "memory_stats_flat_ms": milliseconds(flat), "line_bytes": len(data), "device": devices[0], "kept": len(held),
    }, indent=1))


if __name__ == "__main__":
    main()
