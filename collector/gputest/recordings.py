"""Recordings of single processes, cut out of the events of many, and replayed at once to see whether they are judged the same.

It owns the folders `matrix` (rows that came out right, and their labels) and `failed` of a run. What belongs into a recording is excerpt.py's,
what a row must come to is verdict.py's.
"""

import gzip
import json
import os
import shutil
import subprocess

import excerpt
import verdict
from rig import Follower

REPLAY_SECONDS = 120


def write(lowtide, events, out, pairs, judged):
    """Writes the recording of each (row, result), and sets the result's "replay": "differs" has what is otherwise than live, "faults" what is
    not as the row wants it. Those are faults of a result that had none.

    events is the file that `lowtide tail events --json` wrote, judged(row, pid, findings) the verdict on what a replay finds.
    """
    kept, failed = os.path.join(out, "matrix"), os.path.join(out, "failed")
    for folder in (kept, failed):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
    pairs = [(row, r) for row, r in pairs if r["pid"]]
    split(events, failed, pairs)
    labels = {}
    for row, r, path, process in [(row, r) + replay(lowtide, os.path.join(failed, row.name + ".ndjson.gz")) for row, r in pairs]:
        r["replay"] = answer(process, r, lambda findings: judged(row, r["pid"], findings))
        if r["replay"]["faults"] and not r["faults"]:
            r["faults"].append("replayed: %s" % "; ".join(r["replay"]["faults"]))
        if not r["faults"]:
            os.replace(path, os.path.join(kept, row.name + ".ndjson.gz"))
            labels[row.name] = verdict.label(row, r["pid"])
    with open(os.path.join(kept, "labels.json"), "w", encoding="utf-8") as to:
        json.dump(labels, to, indent=1, sort_keys=True)
        to.write("\n")


def split(events, folder, pairs):
    """One recording a row."""
    seen = {}
    files = [(excerpt.Excerpt(r["pid"], row.verdict == "software_fault"), gzip.open(os.path.join(folder, row.name + ".ndjson.gz"), "wb", 9))
             for row, r in pairs]
    for event in Follower(events).new():
        for one, to in files:
            mine = one.take(event)
            if mine is not None:
                to.write(excerpt.neutral(json.dumps(mine, separators=(",", ":"), ensure_ascii=False), seen).encode("utf-8") + b"\n")
    for _, to in files:
        to.close()


def replay(lowtide, path):
    """Starts to judge a recording."""
    return path, subprocess.Popen([lowtide, "replay", "--json", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def answer(process, live, judged):
    """What a replay came to beside the live verdict."""
    try:
        out, err = process.communicate(timeout=REPLAY_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    if process.returncode != 0:
        return {"differs": [], "faults": ["replay ended with %d: %s" % (process.returncode, err.decode("utf-8", "replace")[-500:])]}
    again = judged([json.loads(text) for text in out.decode("utf-8", "replace").splitlines()])
    return {"differs": verdict.differences(live, again), "faults": again["faults"]}
