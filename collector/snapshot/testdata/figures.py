"""Writes down what Python's pickle reads in a snapshot, in a form that read_test.go makes of what Read returns.

usage: figures.py FILE...          a JSON line a file: counts, sums by device, stream, pool and state, and a SHA-256 of every field
       figures.py --time FILE...   what pickle.load takes: seconds, of the processor too, and bytes of memory at most; a line a file
       figures.py --again P FILE   the snapshot pickled anew with protocol P, on stdout
       figures.py --cut P FILE     so its first segments and entries, which is what cut.pickle is of stream_await.pickle.gz
"""
import gc
import gzip
import hashlib
import json
import pickle
import resource
import sys
import time

STATES = {"active_allocated": 1, "active_pending_free": 2, "active_awaiting_free": 2, "inactive": 3}


def load(name):
    raw = gzip.open(name) if name.endswith(".gz") else open(name, "rb")
    with raw as f:
        return pickle.load(f)


def stack(frames):
    return "|".join("%s:%d:%s" % (f["filename"], f["line"], f["name"]) for f in frames)


def figures(s):
    digest = hashlib.sha256()
    pools = {}
    blocks = stacks = 0
    for g in s["segments"]:
        digest.update(("S %d %d %s %d %d %d %d %d %d %d %d %s\n" % (
            g["device"], g["stream"], "%d,%d" % g.get("segment_pool_id", (0, 0)), g["segment_type"] == "large", g.get("is_expandable", False),
            g["address"], g["total_size"], g["allocated_size"], g["active_size"], g["requested_size"], len(g["blocks"]),
            stack(g["frames"]))).encode())
        pool = pools.setdefault("%d/%d/%d,%d" % (g["device"], g["stream"], *g.get("segment_pool_id", (0, 0))), [0, 0, 0, 0, 0])
        pool[0] += g["total_size"]
        for b in g["blocks"]:
            blocks += 1
            state = STATES.get(b["state"], 0)
            digest.update(("B %d %d %d %d %s\n" % (b["address"], b["size"], b["requested_size"], state, stack(b["frames"]))).encode())
            if state:
                pool[state] += b["size"]
            if state == 3:
                pool[4] = max(pool[4], b["size"])
    actions = {}
    for n, trace in enumerate(s["device_traces"]):
        for e in trace:
            actions[e["action"]] = actions.get(e["action"], 0) + 1
            digest.update(("E %d %s %d %d %d %d %s\n" % (
                n, e["action"], e["device_free"] if e["action"] == "oom" else e["addr"], e["size"], e["stream"], e.get("time_us", 0),
                stack(e.get("frames", [])))).encode())
    return {
        "segments": len(s["segments"]), "blocks": blocks, "traces": [len(t) for t in s["device_traces"]], "actions": actions,
        # by device/stream/pool: reserved, live, pending, free, largest free block
        "pools": pools, "annotations": len(s.get("external_annotations", [])), "sha256": digest.hexdigest(),
    }


if sys.argv[1] == "--time":
    for name in sys.argv[2:]:
        gc.collect()
        began, used = time.perf_counter(), time.process_time()
        with open(name, "rb") as f:
            s = pickle.load(f)
        wall, cpu = time.perf_counter() - began, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"wall": wall, "cpu": cpu, "peak": peak}))
elif sys.argv[1] == "--again":
    pickle.dump(load(sys.argv[3]), sys.stdout.buffer, protocol=int(sys.argv[2]))
elif sys.argv[1] == "--cut":
    s = load(sys.argv[3])
    s["segments"] = s["segments"][:3]
    s["device_traces"] = [t[:9] for t in s["device_traces"]]
    pickle.dump(s, sys.stdout.buffer, protocol=int(sys.argv[2]))
else:
    for name in sys.argv[1:]:
        print(json.dumps({"file": name.rsplit("/", 1)[-1], **figures(load(name))}, sort_keys=True))
