"""Works out from snapshots, with Python's own pickle, what Summarise has to say of them: summary_test.go compares the two.

usage: summary.py FILE.pickle.gz...    one JSON object, a member a file
"""
import collections
import gzip
import json
import pickle
import sys


def frames_of(stack):
    """The stack from the first frame outside of installed packages on, at most eight frames, paths cut to folder and file."""
    first = next((i for i, f in enumerate(stack) if "site-packages" not in f["filename"]), 0)
    return ["%s:%d %s" % ("/".join(f["filename"].split("/")[-2:]), f["line"], f["name"]) for f in stack[first:first + 8]]


def pool_name(segment):
    a, b = segment["segment_pool_id"]
    name = "default" if (a, b) == (0, 0) else "private (%d,%d)" % (a, b)
    return name + (" stream %d" % segment["stream"] if segment["stream"] else "")


def empty():
    return dict.fromkeys(("reserved", "live", "pending", "free", "largest", "releasable", "waste", "holes", "segments"), 0)


def figures(snapshot):
    pools, stacks, sizes = collections.defaultdict(empty), collections.defaultdict(lambda: [0, 0, 0]), collections.defaultdict(lambda: [0, 0, 0, 0])
    bare = 0
    for segment in snapshot["segments"]:
        pool = pools[pool_name(segment)]
        pool["segments"] += 1
        pool["reserved"] += segment["total_size"]
        for block in segment["blocks"]:
            size, state = block["size"], block["state"]
            power = 1
            while power < size:
                power *= 2
            if state == "inactive":
                pool["free"] += size
                pool["holes"] += 1
                pool["largest"] = max(pool["largest"], size)
                if size == segment["total_size"] and segment["segment_pool_id"] == (0, 0):
                    pool["releasable"] += size
                sizes[power][2] += 1
                sizes[power][3] += size
                continue
            frames = tuple(frames_of(block["frames"]))
            if state == "active_allocated":
                pool["live"] += size
                pool["waste"] += size - block["requested_size"]
                sizes[power][0] += 1
                sizes[power][1] += size
                stacks[frames][0] += size
            else:
                pool["pending"] += size
                stacks[frames][1] += size
            stacks[frames][2] += 1
    bare = stacks.pop((), [0, 0, 0])
    last = None
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "oom":
            last = {"requested": entry["size"], "device_free": entry["device_free"], "micros": entry["time_us"]}
    if last:  # of these files it is the newest entry, so that the blocks are those of that moment
        assert snapshot["device_traces"][0][-1]["action"] == "oom"
        last["largest"] = max(pool["largest"] for pool in pools.values())
    return {
        "pools": pools, "oom": last, "no_stack": bare,
        "stacks": [{"frames": list(f), "live": v[0], "pending": v[1], "blocks": v[2]} for f, v in sorted(stacks.items())],
        "sizes": [[power, *sizes[power]] for power in sorted(sizes)],
    }


result = {}
for name in sys.argv[1:]:
    with gzip.open(name, "rb") as f:
        result[name.rsplit("/", 1)[-1]] = figures(pickle.load(f))
json.dump(result, sys.stdout, indent=1, sort_keys=True)
print()
