"""What a run of the matrix saw, as a table for people. It owns columns and words, and judges nothing."""

from rig import STRETCH

HEADS = ("row", "planted", "verdict", "state", "severity", "suspected after", "confirmed after", "holder", "snapshot", "replay", "")


def write(out, to):
    """The rows, then what probe and parts cost, then each fault with the end of its process's stderr."""
    body = [line(r) for r in out["rows"]]
    widths = [max(len(cells[i]) for cells in [HEADS] + body) for i in range(len(HEADS))]
    for cells in [HEADS] + body:
        print("  ".join(text.ljust(width) for text, width in zip(cells, widths)).rstrip(), file=to)
    costs(out, to)
    for r in out["rows"]:
        for fault in r["faults"]:
            print("\n%s: %s" % (r["row"], fault), file=to)
        if r.get("replay") and (r["replay"]["differs"] or r["replay"]["faults"]):
            print("\n%s, replayed: %s" % (r["row"], "; ".join(r["replay"]["differs"] + r["replay"]["faults"])), file=to)
        if r["faults"] and r.get("stderr"):
            print("".join("    " + text + "\n" for text in r["stderr"].splitlines()[-6:]), end="", file=to)
    for fault in out["faults"]:
        print("\nrig: %s" % fault, file=to)
    to.flush()


def line(r):
    """A row's cells."""
    return (r["row"], r["wanted"] or "nothing", r["class"] or ", ".join(r["others"]) or "nothing", r["state"] or "", r["severity"] or "",
            after(r["suspected_seconds"]), after(r["confirmed_seconds"]), r["holder"] or "", r["snapshot"] or "",
            replayed(r.get("replay")), "FAILED" if r["faults"] else "ok")


def replayed(replay):
    """Whether the replay came to the live verdict, and, apart from that, whether it is right."""
    return "" if not replay else "%s, %s" % ("differs" if replay["differs"] else "the same", "wrong" if replay["faults"] else "right")


def after(seconds):
    """A delay in event time, as the judge had it, and on the clock."""
    return "" if seconds is None else "%.2f h (%.0f s)" % (seconds * STRETCH / 3600, seconds)


def costs(out, to):
    """What the probe's reads, the steps beside them and the parts cost."""
    probe = out["probe"]
    if probe:
        print("\nprobe: %d reads, one each %.2f s; GIL %.4f ms at the median, %.4f ms p99, %.6f s of each second" %
              (probe["reads"], probe["every_seconds"], probe["read_p50_ms"], probe["read_p99_ms"], probe["gil_seconds_per_second"]), file=to)
    for name, step in out["steps"].items():
        if step.get("step_p50_seconds") is not None:
            print("steps of %s: %d, %.3f ms at the median, %.3f ms p99" %
                  (name, step["steps"], step["step_p50_seconds"] * 1e3, step["step_p99_seconds"] * 1e3), file=to)
    compared(out["steps"], to)
    for process in (out["cost"] or {}).get("processes", ()):
        if process.get("cpu_share") is not None:
            print("cost of %s: %.2f %% of one core" % (process["name"], 100 * process["cpu_share"]), file=to)


def compared(steps, to):
    """Steps with a probe against the same steps without, and the longest of the workers whose allocator was looked at in full."""
    probed, free = steps.get("metered") or {}, steps.get("unwatched") or {}
    if probed.get("step_p50_seconds") and free.get("step_p50_seconds"):
        print("steps with a probe against those without: %.4f at the median, %.4f at p99" %
              tuple(probed[key] / free[key] for key in ("step_p50_seconds", "step_p99_seconds")), file=to)
    for name, step in steps.items():
        if step.get("step_max_seconds") is not None:
            print("longest step of %s: %.1f ms%s" % (name, step["step_max_seconds"] * 1e3,
                  ", of which %d snapshots were taken" % step["snapshots"] if step.get("snapshots") else ""), file=to)
