"""Recordings of single processes, cut out of the events of many, and replayed at once to see whether they are judged the same.

It owns the folders `matrix` (rows that came out right, and their labels) and `failed` of a run. What belongs into a recording and what a row must
come to is verdict.py's.
"""

import gzip
import json
import os
import shutil
import subprocess

import verdict
from rig import Follower

REPLAY_SECONDS = 120


def write(lowtide, events, out, pairs, judged):
    """Writes the recording of each (row, result), sets the result's "replay", and adds to its faults where that differs.

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
        r["replay"] = answer(process, lambda findings: judged(row, r["pid"], findings)["faults"])
        if r["replay"] != "the same" and not r["faults"]:
            r["faults"].append("its recording is judged otherwise: %s" % "; ".join(r["replay"]))
        if not r["faults"]:
            os.replace(path, os.path.join(kept, row.name + ".ndjson.gz"))
            labels[row.name] = verdict.label(row, r["pid"])
    with open(os.path.join(kept, "labels.json"), "w", encoding="utf-8") as to:
        json.dump(labels, to, indent=1, sort_keys=True)
        to.write("\n")


def split(events, folder, pairs):
    """One recording a row."""
    seen = {}
    files = [(r["pid"], row.verdict == "software_fault", gzip.open(os.path.join(folder, row.name + ".ndjson.gz"), "wb", 9)) for row, r in pairs]
    for event in Follower(events).new():
        for pid, faulty, to in files:
            mine = verdict.cut(event, pid, faulty)
            if mine is not None:
                to.write(verdict.neutral(json.dumps(mine, separators=(",", ":"), ensure_ascii=False), seen).encode("utf-8") + b"\n")
    for _, _, to in files:
        to.close()


def replay(lowtide, path):
    """Starts to judge a recording."""
    return path, subprocess.Popen([lowtide, "replay", "--json", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def answer(process, faults):
    """What a replay came to: "the same", or a list of what is otherwise."""
    try:
        out, err = process.communicate(timeout=REPLAY_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    if process.returncode != 0:
        return ["replay ended with %d: %s" % (process.returncode, err.decode("utf-8", "replace")[-500:])]
    return faults([json.loads(text) for text in out.decode("utf-8", "replace").splitlines()]) or "the same"
