#!/usr/bin/env python3
"""Takes lowtide's place beneath the matrix: comes up, tells of every worker that serves, and finds what FAKE_FINDS says.

FAKE_FINDS is {"model": [class, state, …]}; of a worker of that model, which is its row's name, those are found in turn. `replay` finds the same.
"""

import glob
import json
import os
import signal
import sys
import time

FINDS = json.loads(os.environ.get("FAKE_FINDS", "{}"))


def after(flag):
    return sys.argv[sys.argv.index(flag) + 1]


def workers(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*.out"))):
        with open(path) as handle:
            for line in handle:
                if '"ready"' in line:
                    yield json.loads(line)


def event(pid):
    host = {"cluster": "lab", "name": "gpu-a", "boot_id": "11111111-2222-4333-8444-555555555555"}
    return {"time": "2026-11-01T00:00:00Z", "host": host, "worker": {"pid": pid}, "process": {"fds": 3}}


def findings(pid, model):
    told = FINDS.get(model, [])
    return [{"id": str(n), "incident": "i", "class": told[0], "state": state, "severity": "ticket", "summary": "a fake", "worker": {"pid": pid},
             "subject": {"kind": "worker", "key": model}} for n, state in enumerate(told[1:])]


def main():
    told = []
    signal.signal(signal.SIGINT, lambda *_: told.append(1))
    if "--help" in sys.argv:
        return 2 if any("evidence" in word for word in sys.argv) and "--evidence-history" not in FINDS else 0
    if sys.argv[1] == "replay":
        path = sys.argv[-1]
        import gzip
        with gzip.open(path) as recording:
            pids = {json.loads(line.decode()).get("worker", {}).get("pid") for line in recording}
        for pid in pids:
            for finding in findings(pid, os.path.basename(path).split(".")[0]):
                print(json.dumps(finding))
        return 0
    if sys.argv[1] == "up":
        os.makedirs(after("--data"))
        with open(os.path.join(after("--data"), "up.json"), "w") as out:
            json.dump({"nats": "nats://x@127.0.0.1:1"}, out)
            out.write("\n")
        print("a fake is up", file=sys.stderr, flush=True)
        while not told:
            time.sleep(0.05)
        return 0
    seen = set()
    while not told:
        for worker in workers(os.path.dirname(after("--data"))):
            if worker["pid"] not in seen:
                seen.add(worker["pid"])
                for line in [event(worker["pid"])] if sys.argv[2] == "events" else findings(worker["pid"], worker["model"]):
                    print(json.dumps(line), flush=True)
        time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
