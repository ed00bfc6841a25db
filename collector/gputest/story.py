"""The whole chain on a real GPU: collector, probe, broker and judge beside a worker that goes bad, and an illegal access.

    python3 story.py --lowtide ./lowtide --out /tmp/story --expect retention -- --retain-aborted --abort-fraction 0.3 …

What follows -- is the worker's. Event time runs sixty times faster than the clock (`lowtide up --stretch`), as in the recordings,
so that minutes are judged as hours. Prints what was seen as JSON; exit 1 when something is not as it must be. Python 3.8, no
packages; the worker needs torch.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from rig import HERE, Rig

MIB = 1 << 20


def smi(query):
    out = subprocess.run(["nvidia-smi", query, "--format=csv,noheader,nounits"], check=True, stdout=subprocess.PIPE, timeout=60)
    return [row.split(", ") for row in out.stdout.decode().splitlines() if row]


class Story(Rig):
    def __init__(self, options):
        Rig.__init__(self, options.lowtide, options.out)
        self.o = options

    def run(self):
        self.up("--metrics-listen", "127.0.0.1:9478")
        self.process = self.worker("worker", ["--port", "8000"] + self.o.worker)
        if not self.wait(180, lambda: self.ready("worker")):
            raise SystemExit("the worker did not serve: " + self.at("worker.err"))
        begun = time.monotonic()
        time.sleep(40)
        fault = self.start("fault", [sys.executable, os.path.join(HERE, "fault.py"), "--wait-seconds", "4"])
        fault.wait(60)
        time.sleep(5)
        agrees = self.agrees()
        self.wait(self.o.seconds - (time.monotonic() - begun), lambda: self.process.poll() is not None or self.over())
        seconds = round(time.monotonic() - begun)
        time.sleep(3)
        with open(self.at("metrics.txt"), "wb") as out:
            subprocess.run(["curl", "-s", "127.0.0.1:9478/metrics"], stdout=out, check=False, timeout=20)
        self.stop()
        return self.report(fault, agrees, seconds)

    def over(self):
        return any(f["severity"] == "page" for f in self.findings(self.o.expect))

    def agrees(self):
        """nvidia-smi beside the newest events; a burst may move the worker between the two readings."""
        out = {}
        devices, processes = {}, {}
        for e in self.events("gpu"):
            devices[e["gpu"]["uuid"]] = e["gpu"]
        for e in self.events("gpu_process"):
            processes[(e["worker"]["pid"], e["gpu_process"]["gpu_uuid"])] = e["gpu_process"]
        for uuid, total, used, temperature in smi("--query-gpu=uuid,memory.total,memory.used,temperature.gpu"):
            event = devices.get(uuid, {})
            out[uuid] = {"smi_used_mib": int(used), "event_used_mib": event.get("used_bytes", -MIB) // MIB, "smi_celsius": int(temperature),
                         "event_celsius": event.get("temperature_celsius")}
            self.must(event.get("total_bytes", 0) // MIB == int(total), "total of %s: %s, nvidia-smi %s MiB" % (uuid, event.get("total_bytes"), total))
            self.must(abs(event.get("used_bytes", 0) / MIB - int(used)) < 2048, "used of %s: %s, nvidia-smi %s MiB" % (uuid, event.get("used_bytes"), used))
        for pid, used, uuid in smi("--query-compute-apps=pid,used_memory,gpu_uuid"):
            event = processes.get((int(pid), uuid), {})
            out["%s on %s" % (pid, uuid)] = {"smi_mib": int(used), "event_mib": event.get("used_bytes", -MIB) // MIB}
            self.must(abs(event.get("used_bytes", 0) / MIB - int(used)) < 2048, "pid %s: %s, nvidia-smi %s MiB" % (pid, event.get("used_bytes"), used))
        return out

    def report(self, fault, agrees, seconds):
        found = self.findings(self.o.expect)
        pids = sorted({f.get("worker", {}).get("pid") for f in found})
        self.must(pids == [self.process.pid], "%s names %s, the worker is %d" % (self.o.expect, pids, self.process.pid))
        self.must(len({f["incident"] for f in found}) == 1, "incidents of %s: %d" % (self.o.expect, len({f["incident"] for f in found})))
        others = sorted({(f["class"], f.get("worker", {}).get("pid")) for f in self.findings() if f["class"] not in (self.o.expect, "software_fault")})
        self.must(not others, "other incidents: %s" % others)
        xids = [e for e in self.events("xid") if e["xid"]["code"] == 31]
        self.must(len(xids) == 1, "Xid 31 came %d times" % len(xids))
        self.must(all(e["xid"].get("pid") == fault.pid for e in xids if e["xid"]["source"] == "kmsg"), "Xid 31 of another pid than %d: %s" % (fault.pid, xids))
        blamed = sorted({f.get("worker", {}).get("pid") for f in self.findings("software_fault")})
        gpus = sorted({e["allocator"].get("gpu_uuid") for e in self.events("allocator")})
        self.must(len(gpus) == self.o.devices, "allocators of %d devices, want %d" % (len(gpus), self.o.devices))
        statuses = {}
        for e in self.events("source"):
            statuses.setdefault(e["source"]["name"], {}).setdefault(e["source"]["status"], 0)
            statuses[e["source"]["name"]][e["source"]["status"]] += 1
        return {
            "seconds": seconds, "worker_pid": self.process.pid, "fault_pid": fault.pid,
            "findings": [{k: f.get(k) for k in ("time", "class", "state", "severity", "slot", "summary", "confidence", "per_abort", "growth")} for f in found],
            "worker": found[-1].get("worker") if found else None,
            "software_fault_pids": blamed, "xid": [e["xid"] for e in xids], "agrees": agrees, "allocator_gpus": gpus, "sources": statuses,
            "lifecycle": [dict(e["lifecycle"], pid=e.get("worker", {}).get("pid")) for e in self.events("lifecycle")],
            "ooms": [e["oom"] for e in self.events("oom")][:3], "faults": self.faults,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lowtide", default="./lowtide")
    parser.add_argument("--out", required=True)
    parser.add_argument("--expect", default="retention")
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("worker", nargs="*", help="after --: flags of worker.py")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    story = Story(options)
    try:
        result = story.run()
    finally:
        story.stop()
    json.dump(result, sys.stdout, indent=1)
    print()
    return 1 if story.faults else 0


if __name__ == "__main__":
    sys.exit(main())
