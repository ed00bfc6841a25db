"""What a row of the matrix must come to, and whether it did: pure functions on findings and events. They own no process and no clock."""

import ast
import os
import re

from rows import STATES

MIB = 1 << 20
RANK = {"info": 0, "ticket": 1, "page": 2}


def pieces(snapshot, ooms):
    """Room in total, not in one piece: of the request that failed, or by far of the free memory."""
    free, largest = snapshot.get("free_bytes", 0), snapshot.get("largest_free_bytes", 0)
    asked = [oom["requested_bytes"] for oom in ooms if "requested_bytes" in oom] + [(snapshot.get("last_oom") or {}).get("requested_bytes", 0)]
    return any(largest < size <= free for size in asked)


def stacks(snapshot, ooms):
    """Some memory has a line of code to it."""
    return any(stack.get("frames") for stack in snapshot.get("stacks", ()))


SHOWS = {
    "pieces": pieces,
    "stacks": stacks,
    "pending": lambda snapshot, ooms: snapshot.get("pending_bytes", 0) > 64 * MIB,
    "private": lambda snapshot, ooms: snapshot.get("private_bytes", 0) > 64 * MIB,
}


def pid_of(finding):
    """The process that a finding is about, None where it is about none."""
    return (finding.get("worker") or {}).get("pid")


def within(frame, holder, folder):
    """Whether a frame "file:line function" is of that module and function, and its line one of that function's in the source."""
    module, name = holder
    match = re.match(r"(?:.*/)?%s:(\d+) (?:\w+\.)*%s$" % (re.escape(module), re.escape(name)), frame)
    if match is None:
        return False
    with open(os.path.join(folder, module), encoding="utf-8") as source:
        tree = ast.parse(source.read())
    return any(node.lineno <= int(match.group(1)) <= node.end_lineno for node in ast.walk(tree)
               if isinstance(node, ast.FunctionDef) and node.name == name)


def judge(row, pid, findings, snapshots, ooms, folder, evidence=True):
    """What was found of a process, and under "faults" what is not as the row wants it.

    findings are those of its pid, in order, each with "seen" in seconds since the fault's first effect or None; snapshots and ooms are
    the bodies of its events. Without evidence neither holders nor snapshots are asked for.
    """
    faults = []
    own = [f for f in findings if f.get("class") == row.verdict]
    other = sorted({f["class"] for f in findings if f.get("class") != row.verdict})
    if other:
        faults.append("also found: %s" % ", ".join(other))
    out = {"class": None, "state": None, "severity": None, "summary": None, "suspected_seconds": None, "confirmed_seconds": None,
           "holder": None, "holders": [], "snapshot": None, "others": other, "faults": faults}
    held = [f for f in own if f.get("holders")]
    if held:
        out["holders"] = held[-1]["holders"]
        out["holder"] = next((holder["frames"][0] for holder in out["holders"] if holder.get("frames")), None)  # others were there before stacks were recorded
    files = [s["file"] for s in snapshots if s.get("file")]
    out["snapshot"] = next((f["snapshot"] for f in reversed(own) if f.get("snapshot")), files[-1] if files else None)
    if row.verdict is None:
        return out
    if not own:
        faults.append("no %s was found" % row.verdict)
        return out
    reached = [f["state"] for f in own if f["state"] in STATES]
    out["class"], out["summary"] = row.verdict, own[-1].get("summary")
    out["state"] = max(reached, key=STATES.index, default=None)
    out["severity"] = max((f["severity"] for f in own), key=lambda s: RANK.get(s, -1))
    out["suspected_seconds"] = next((f.get("seen") for f in own if f["state"] in STATES), None)
    out["confirmed_seconds"] = next((f.get("seen") for f in own if f["state"] == "confirmed"), None)
    if out["state"] is None or STATES.index(out["state"]) < STATES.index(row.state):
        faults.append("%s is %s, must be %s" % (row.verdict, out["state"], row.state))
    wanted = ("ticket", "page") if row.severity is None else (row.severity,)
    if out["severity"] not in wanted:
        faults.append("%s is %s, must be %s" % (row.verdict, out["severity"], " or ".join(wanted)))
    incidents = {f.get("incident") for f in own}
    if len(incidents) != 1:
        faults.append("%d incidents of one cause" % len(incidents))
    if own[-1]["state"] == "resolved":
        faults.append("it was resolved: %s" % own[-1].get("resolution", ""))
    if evidence:
        _proof(row, out, snapshots, ooms, folder)
    return out


def differences(live, again):
    """What a second verdict on one process says otherwise than the first, as words; none where they are equal. Times are no part of it."""
    found = [("class", lambda got: got["class"]), ("state", lambda got: got["state"]), ("severity", lambda got: got["severity"]),
             ("other classes", lambda got: ", ".join(got["others"]) or None), ("holder", lambda got: got["holder"])]
    return ["%s %s, live %s" % (name, get(again) or "none", get(live) or "none") for name, get in found if get(live) != get(again)]


def _proof(row, out, snapshots, ooms, folder):
    if row.holder is not None and (out["holder"] is None or not within(out["holder"], row.holder, folder)):
        out["faults"].append("the first holder is %s, must be %s in %s" % (out["holder"], row.holder[1], row.holder[0]))
    if row.snapshot is None:
        return
    if not snapshots:
        out["faults"].append("no snapshot came")
    elif not any(SHOWS[row.snapshot](snapshot, ooms) for snapshot in snapshots):
        out["faults"].append("no snapshot of %d shows it (%s)" % (len(snapshots), row.snapshot))


def label(row, pid):
    """What the recording of a row must be judged as wherever it is replayed."""
    out = {"class": row.verdict or "", "pid": pid, "planted": row.planted}
    if row.verdict is not None:
        out["state"] = row.state
        if row.severity is not None:
            out["severity"] = row.severity
        if row.holder is not None:
            out["holder"] = list(row.holder)
    return out
