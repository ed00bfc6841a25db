"""What processes cost: CPU seconds, memory and switches over a while, as JSON.

    python3 cost.py --seconds 60 collector=4711 nvml=4712 worker=4713

Reads /proc only. What could not be read is null, never 0; a process that ended, or whose pid went to
another process, is reported as far as it was seen, with "ended": true.
"""

import argparse
import json
import os
import sys
import time

PSS_EVERY = 10  # readings: the kernel holds the process's memory map while it adds up Pss, which would disturb what is measured


def read(path):
    """A file's text, or None where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return None


def stat_fields(text):
    """The fields of a stat line after the command name, which may hold blanks and brackets itself; None for anything else."""
    fields = text.rpartition(")")[2].split() if text else []
    return fields if len(fields) > 21 else None


def kib(text, name):
    """Bytes of a `Name:   123 kB` line, or None."""
    for line in (text or "").splitlines():
        words = line.split()
        if words and words[0] == name + ":" and len(words) >= 2 and words[1].isdigit():
            return int(words[1]) * (1024 if words[-1] == "kB" else 1)
    return None


def sample(root, pid, threads=False, pss=True):
    """One reading of a process, or None once it is gone. pss=False leaves the walk through its mappings out."""
    base = os.path.join(root, str(pid))
    fields = stat_fields(read(os.path.join(base, "stat")))
    if fields is None or fields[0] in ("Z", "X"):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    status = read(os.path.join(base, "status"))
    smaps = read(os.path.join(base, "smaps_rollup")) if pss else None
    out = {
        "start_ticks": int(fields[19]), "user_seconds": int(fields[11]) / ticks, "system_seconds": int(fields[12]) / ticks,
        "threads": int(fields[17]), "rss_bytes": kib(status, "VmRSS"), "anon_bytes": kib(status, "RssAnon"),
        "rss_high_bytes": kib(status, "VmHWM"), "pss_bytes": kib(smaps, "Pss"),
        "voluntary_switches": kib(status, "voluntary_ctxt_switches"),
        "involuntary_switches": kib(status, "nonvoluntary_ctxt_switches"),
    }
    if threads:
        out["thread_seconds"] = thread_seconds(base, ticks)
    return out


def thread_seconds(base, ticks):
    """CPU seconds by "tid name"."""
    out = {}
    try:
        names = os.listdir(os.path.join(base, "task"))
    except OSError:
        return out
    for tid in names:
        text = read(os.path.join(base, "task", tid, "stat"))
        fields = stat_fields(text)
        if fields is not None:
            name = text[text.find("(") + 1:text.rfind(")")]
            out["%s %s" % (tid, name)] = (int(fields[11]) + int(fields[12])) / ticks
    return out


def report(name, pid, samples, seconds, ended):
    """What the samples of one process say; seconds is the time from the first to the last."""
    out = {"name": name, "pid": pid, "ended": ended, "samples": len(samples)}
    if not samples:
        return out
    first, last = samples[0], samples[-1]

    def change(key):
        return None if first[key] is None or last[key] is None else last[key] - first[key]

    def most(key):
        return max((s[key] for s in samples if s[key] is not None), default=None)

    def newest(key):
        return next((s[key] for s in reversed(samples) if s[key] is not None), None)

    cpu = change("user_seconds") + change("system_seconds")
    out.update(seconds=seconds, cpu_seconds=cpu, user_seconds=change("user_seconds"), system_seconds=change("system_seconds"),
               cpu_share=cpu / seconds if seconds > 0 else None, rss_bytes=last["rss_bytes"], rss_first_bytes=first["rss_bytes"],
               rss_max_bytes=most("rss_bytes"), rss_high_bytes=last["rss_high_bytes"], anon_bytes=last["anon_bytes"],
               pss_bytes=newest("pss_bytes"), pss_max_bytes=most("pss_bytes"), threads=last["threads"],
               voluntary_switches=change("voluntary_switches"), involuntary_switches=change("involuntary_switches"))
    if "thread_seconds" in last:
        grown = {key: value - first["thread_seconds"].get(key, 0.0) for key, value in last["thread_seconds"].items()}
        out["thread_seconds"] = dict(sorted(grown.items(), key=lambda item: -item[1])[:16])
    return out


def measure(targets, seconds, every, root="/proc", threads=False, clock=time.monotonic, sleep=time.sleep):
    """Samples the (name, pid) targets for so many seconds and returns one report each, in order."""
    seen = {target: [] for target in targets}
    times = {target: [] for target in targets}
    gone = set()
    until = clock() + seconds
    while True:
        for target in targets:
            if target in gone:
                continue
            now = clock()
            got = sample(root, target[1], threads, pss=len(seen[target]) % PSS_EVERY == 0 or now + every >= until)
            if got is None or (seen[target] and got["start_ticks"] != seen[target][0]["start_ticks"]):
                gone.add(target)
                continue
            seen[target].append(got)
            times[target].append(now)
        left = until - clock()
        if left <= 0 or len(gone) == len(targets):
            break
        sleep(min(every, left))
    return [report(name, pid, seen[(name, pid)], times[(name, pid)][-1] - times[(name, pid)][0] if seen[(name, pid)] else 0.0,
                   (name, pid) in gone) for name, pid in targets]


def target(text):
    """A NAME=PID argument."""
    name, sign, pid = text.rpartition("=")
    if not pid.isdigit() or (sign and not name):
        raise argparse.ArgumentTypeError("%r is not NAME=PID" % text)
    return (name or pid, int(pid))


def main(argv=None):
    """Measures and prints; exit code 1 when none of the processes was there."""
    parser = argparse.ArgumentParser(description="CPU and memory of processes over a while, as JSON.")
    parser.add_argument("targets", nargs="+", type=target, metavar="NAME=PID")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between readings")
    parser.add_argument("--threads", action="store_true", help="the 16 busiest threads of each, too")
    parser.add_argument("--proc", default="/proc", help="where /proc is")
    options = parser.parse_args(argv)
    if options.seconds < 0 or options.every <= 0:
        parser.error("--seconds must not be negative and --every must be above 0")
    reports = measure(options.targets, options.seconds, options.every, options.proc, options.threads)
    print(json.dumps({"seconds": options.seconds, "processes": reports}, indent=2, sort_keys=True))
    return 0 if any(r["samples"] for r in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
