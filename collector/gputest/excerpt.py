"""What of the events of many belongs into the recording of one process, made small and neutral. It owns no file.

A recording keeps what a judge looks at, and not what costs room: a sensor that goes on to be well is told every tenth time, the machine every
fifth; digits below a millisecond or a millionth, a card's power and a sensor's own time are left out. Verdicts must hold all the same, and
recordings.py asks for them at once.
"""

import re

GPU = re.compile(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
BOOT = "00000000-0000-4000-8000-000000000000"
KERNEL = "6.8.0"
OF = re.compile(r"\bpid (\d+)\b")
WELL_EVERY, MACHINE_EVERY = 10, 5
TIME = re.compile(r"(\.\d{3})\d+Z$")


class Excerpt:
    """Takes events in order. faulty: an error of the card that names no process belongs to this one."""

    def __init__(self, pid, faulty=False):
        self._pid, self._faulty = pid, faulty
        self._told = {}  # what was told last of a sensor or the machine, and how often it came since

    def take(self, event):
        """The event as it stands in the recording, None where it has no place there.

        The neighbours' lines are left out, so a card that said all its processes are there may not say so any more: what they hold would
        read as memory of nobody.
        """
        if not self._mine(event) or not self._news(event):
            return None
        event = dict(event)
        if "time" in event:
            event["time"] = TIME.sub(r"\1Z", event["time"])
        if "boot_id" in event.get("host", {}):
            event["host"] = dict(event["host"], boot_id=BOOT)
        for body, without in (("gpu", ("processes_complete", "power_watts", "temperature_celsius")), ("source", ("took_seconds",))):
            if body in event:
                event[body] = {k: v for k, v in event[body].items() if k not in without}
        if "kernel_version" in event.get("machine", {}):
            event["machine"] = dict(event["machine"], kernel_version=KERNEL)
        if "engine" in event:
            event["engine"] = {k: round(v, 6) if isinstance(v, float) else v for k, v in event["engine"].items()}
        return event

    def _mine(self, event):
        worker = event.get("worker")
        if worker is not None and worker.get("pid") != self._pid:
            return False
        if "xid" in event and event["xid"].get("pid") != self._pid:
            return self._faulty and "pid" not in event["xid"]
        named = OF.search(event.get("source", {}).get("error", ""))
        return named is None or int(named.group(1)) == self._pid

    def _news(self, event):
        if "source" in event:
            name, state = event["source"].get("name"), (event["source"].get("status"), event["source"].get("error"))
            every = WELL_EVERY if state == ("ok", None) else 1
        elif "machine" in event:
            name, state, every = "machine", None, MACHINE_EVERY
        else:
            return True
        last, since = self._told.get(name, (None, every))
        if last == state and since + 1 < every:
            self._told[name] = last, since + 1
            return False
        self._told[name] = state, 0
        return True


def neutral(text, seen):
    """A line without the serial numbers of the hardware: each card gets a number of its own, the same in all lines that share seen."""
    return GPU.sub(lambda found: seen.setdefault(found.group(0), "%s-00000000-0000-4000-8000-%012d" % (found.group(1), len(seen) + 1)), text)
