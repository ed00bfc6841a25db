"""Every planted fault at once on one GPU, beside healthy workers, with collector, probe, JetStream and processor as a fleet has them.

    python3 matrix.py --lowtide ./lowtide --out gpu-test.out [--only NAME,NAME]

The rows of rows.py run side by side under one `lowtide up`. Event time runs sixty times faster than the clock. Prints a table, writes
OUT/matrix.json with everything that was seen (of a row that failed, the end of its stderr, too), and OUT/matrix/ with a recording of each
row that came out right and their labels. Exit 0: every row did; 1: one did not; 2: it could not be run at all. Python 3.8, no packages;
the workers need torch.
"""

import argparse
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import recordings
import rows
import table
import verdict
from rig import HERE, STRETCH, Follower, Rig, children, tail
from wire import Broker, Ear

START_SECONDS = 180  # until all serve: torch is read from a cold disk, and every shape is run once
APART_SECONDS = 0.5  # between two starts, so that bursts do not all fall together
COST_AFTER, COST_SECONDS = 40, 120  # past warm-up
ASK_AGAIN = 10  # seconds after a refusal: a host has limits
HISTORY_SECONDS = 24  # of allocations before a snapshot: real time, and longer than a burst and its drain
HISTORY = "%ds" % HISTORY_SECONDS


class Matrix(Rig):
    """One run. Its rows' processes are named after them."""

    def __init__(self, options, chosen):
        Rig.__init__(self, os.path.abspath(options.lowtide), os.path.abspath(options.out))
        self.o, self.rows = options, chosen
        self.process, self.failed = {}, {}
        self.zero = None
        self.found, self.snapshots, self.ooms, self.who = [], {}, {}, {}
        self.statuses, self.ear, self.cost = {}, None, None
        self.answers, self.again = {}, {}  # to what was asked for, and when it may be asked once more, by pid
        self.evidence = self.machine = None

    # Starting.

    def run(self):
        """Everything up to the report, which is made of whatever came to pass."""
        self.up(*self.flags())
        self.new_events, self.new_findings = Follower(self.at("events.out")), Follower(self.at("findings.out"))
        for index, row in enumerate(self.rows):
            if row.after == 0:
                self.launch(row, index)
                time.sleep(APART_SECONDS)
        self.until_ready()
        self.zero = time.monotonic()
        note("%d workers serve" % len(self.serving()))
        self.follow()
        self.end()

    def flags(self):
        """What `up` is told beside what every rig tells it. Evidence is on by itself; how long is recorded before a snapshot is not."""
        more = ["--cluster", "lab", "--host", "gpu-a"]
        if self.o.evidence == "off":
            self.evidence = "off"
        elif self.knows("up", "--evidence-history", HISTORY):
            self.evidence, more = "processor", more + ["--evidence-history", HISTORY]
        else:
            self.evidence = "matrix"
        return more + self.o.up

    def launch(self, row, index):
        """Starts a row's program."""
        socket = None
        if row.watch == "ear":
            socket = self.at("ear.sock")
            self.ear = Ear(socket)
        program = self.o.program if row.program == "worker.py" and self.o.program else row.program
        flags = row.command(self.o.device, self.o.first_port + index if self.o.first_port else 0)
        if self.o.device == "cpu":
            program, flags = self.disguised(program), ["serve"] + flags
        self.process[row.name] = self.worker(row.name, flags, row.environment(), program, socket)

    def disguised(self, program):
        """The program under an engine's name: where there is no GPU to hold, that is what a worker is known by."""
        path = self.at("vllm")
        with open(path, "w", encoding="utf-8") as out:
            out.write("import runpy, sys\nsys.path[0] = %r\ndel sys.argv[1]\nrunpy.run_path(%r, run_name='__main__')\n" % (HERE, os.path.join(HERE, program)))
        return path

    def serving(self):
        return [row for row in self.rows if row.name in self.process and self.ready(row.name)]

    def until_ready(self):
        waiting = [row for row in self.rows if row.name in self.process]

        def done():
            waiting[:] = [row for row in waiting if not self.ready(row.name) and self.process[row.name].poll() is None]
            return not waiting

        self.wait(START_SECONDS, done)
        for row in self.rows:
            if row.name in self.process and not self.ready(row.name):
                code = self.process[row.name].poll()
                self.failed[row.name] = "it did not serve within %d s" % START_SECONDS if code is None else "it ended with %d before it served" % code
                if code is None:
                    self.process[row.name].kill()

    # While it runs.

    def follow(self):
        """Reads what comes until every row is as it must be, at the earliest after --least seconds, and at most for --seconds."""
        late = [(index, row) for index, row in enumerate(self.rows) if row.after > 0]
        declare = [row for row in self.serving() if row.declares]
        said = 0.0
        while True:
            passed = time.monotonic() - self.zero
            self.take()
            for index, row in list(late):
                if passed >= row.after:
                    late.remove((index, row))
                    self.launch(row, index)
            declare = [row for row in declare if not self.declared(row)]
            if self.cost is None and passed >= COST_AFTER:
                self.start_cost()
            if self.evidence == "matrix":
                self.ask(passed)
            if passed >= self.o.seconds or passed >= self.o.least and not late and all(not r["faults"] for r in self.results()):
                return
            if passed - said >= 30:
                said = passed
                note("%3d s: %s" % (passed, ", ".join(sorted({"%s %s" % (f["class"], f["state"]) for f in self.found})) or "nothing found yet"))
            time.sleep(0.25)

    def take(self):
        """Takes in what came since the last time."""
        for event in self.new_events.new():
            pid = (event.get("worker") or {}).get("pid")
            if pid is not None:
                self.who[pid] = (event.get("host"), event["worker"], event.get("time"))
            if "snapshot" in event:
                self.snapshots.setdefault(pid, []).append(event["snapshot"])
            if "oom" in event:
                self.ooms.setdefault(pid, []).append(event["oom"])
            if "source" in event:
                source = event["source"]
                by = self.statuses.setdefault(source.get("name", ""), {})
                by[source.get("status", "")] = by.get(source.get("status", ""), 0) + 1
        now = time.time()
        for finding in self.new_findings.new():
            self.found.append(dict(finding, at=now))

    def declared(self, row):
        """Declares a row's cache as its operator would. True when that is done, or cannot be."""
        who = self.who.get(self.process[row.name].pid)
        if who is None:
            return False
        host, worker, moment = who
        config = {"origin": "declared", "declared_caches": [{"name": "device cache", "cap_bytes": row.declares}]}
        events = [{"time": moment, "host": host, "worker": worker, "config": config}]
        try:
            with Broker(self.broker["nats"]) as broker:
                broker.publish("lowtide.event.%s.%s.declared" % (host["cluster"], host["name"]),
                               {"host": host, "source": "declared", "lane": "samples", "events": events})
        except (OSError, KeyError, ValueError) as error:
            self.must(False, "declare the cache of %s: %s" % (row.name, error))
        return True

    def start_cost(self):
        """Measures the parts and the two workers that differ in the probe only."""
        targets = ["up=%d" % self.pid("up")] + ["up-child-%d=%d" % (n, pid) for n, pid in enumerate(children(self.pid("up")))]
        targets += ["%s=%d" % (row.name, self.process[row.name].pid) for row in self.serving() if row.watch != "collector" or row.name == "healthy"]
        self.cost = self.start("cost", [sys.executable, os.path.join(HERE, "cost.py"), "--seconds", str(COST_SECONDS)] + targets)

    def pid(self, name):
        return next((process.pid for known, process in self.started if known == name), 0)

    def ask(self, passed):
        """Asks for a snapshot of each process that must show something in one, once, and not of all at a time: before the processor does,
        which lets allocations be recorded for longer than a run lasts, and is refused then: one in ten minutes."""
        for row in self.rows:
            if not row.snapshot or row.name not in self.process:
                continue
            pid = self.process[row.name].pid
            first = row.ask if row.ask is not None else 0 if self.ooms.get(pid) else None
            due = self.again.get(pid, first)
            if due is None or passed < due or pid not in self.who or (self.answers.get(pid) or {}).get("status") == "accepted":
                continue
            self.again[pid] = passed + ASK_AGAIN
            host, worker, _ = self.who[pid]
            question = {"ask": "snapshot", "pid": pid, "incident": "matrix", "reason": "matrix %s" % row.name,
                        "history_seconds": 0 if row.ask is None else HISTORY_SECONDS}
            if "start_ticks" in worker:
                question["start_ticks"] = worker["start_ticks"]
            try:
                with Broker(self.broker["nats"]) as broker:
                    self.answers[pid] = broker.request("lowtide.ask.%s.%s" % (host["cluster"], host["name"]), question)
            except (OSError, KeyError, ValueError) as error:
                self.answers[pid] = {"status": "failed", "error": str(error)}
            note("asked for a snapshot of %s: %s" % (row.name, self.answers[pid]))

    # The end.

    def end(self):
        """Lets the workers drain, takes in their last words, and stops the rest."""
        mine = [(row.name, self.process[row.name]) for row in self.rows if row.name in self.process]
        for _, process in mine:
            if process.poll() is None:
                process.terminate()
        self.wait(20, lambda: all(process.poll() is not None for _, process in mine))
        for name, process in mine:
            if process.poll() is None:
                self.failed.setdefault(name, "it did not end within 20 s")
                process.kill()
        if self.cost is not None:
            self.wait(15, lambda: self.cost.poll() is not None)
        time.sleep(3)  # the last tick
        self.take()
        self.stop()
        self.take()

    def results(self):
        """Each row as it is judged by now."""
        out = []
        for row in self.rows:
            process = self.process.get(row.name)
            pid = process.pid if process else None
            effect = self.effect(row)
            findings = [dict(f, seen=None if effect is None else round(f["at"] - effect, 1)) for f in self.found if pid and verdict.pid_of(f) == pid]
            got = self.judged(self.evidence in ("processor", "matrix"), row, pid, findings)
            if row.name in self.failed:
                got["faults"].insert(0, self.failed[row.name])
            elif process is None:
                got["faults"].insert(0, "it was not started")
            out.append(dict(got, row=row.name, planted=row.planted, wanted=row.verdict, pid=pid, effect=effect, asked=self.answers.get(pid), oom=len(self.ooms.get(pid, [])),
                            code=process.poll() if process else None))
        return out

    def judged(self, evidence, row, pid, findings):
        """A row's verdict on those findings, live or replayed."""
        return verdict.judge(row, pid, findings, self.snapshots.get(pid, []), self.ooms.get(pid, []), HERE, evidence)

    def effect(self, row):
        """When the row's fault first did something, in seconds since 1970; None before."""
        return (self.said(row.name, "planted") or {}).get("time")

    def report(self):
        """Everything that was seen, as JSON; writes the recordings."""
        results = self.results()
        pids = {r["pid"] for r in results}
        lost = [f for f in self.found if verdict.pid_of(f) not in pids]
        for f in lost:
            self.must(False, "found of nobody in the matrix: %s %s of %s: %s" % (f["class"], f["state"], f.get("subject", {}).get("key"), f.get("summary")))
        if self.zero is not None:
            judged = functools.partial(self.judged, self.evidence in ("processor", "matrix"))
            recordings.write(self.lowtide, self.at("events.out"), self.out, list(zip(self.rows, results)), judged)
        for r, row in zip(results, self.rows):
            r["summary_line"] = self.said(row.name, "ended")
            for key in ("suspected", "confirmed"):
                seconds = r[key + "_seconds"]
                r[key + "_event_hours"] = None if seconds is None else round(seconds * STRETCH / 3600, 2)
            if row.program == "worker.py" and r["summary_line"] is None and not r["faults"]:
                r["faults"].append("it did not drain: exit code %s" % r["code"])
            if r["faults"]:
                r["stderr"] = tail(self.at(row.name + ".err"))
        out = {"rows": results, "faults": self.faults, "evidence": self.evidence, "machine": self.machine, "stretch": STRETCH, "sources": self.statuses,
               "seconds": None if self.zero is None else round(time.monotonic() - self.zero), "elsewhere": lost,
               "probe": self.ear.summary() if self.ear else None, "cost": self.said_all("cost"), "snapshots": self.snapshots_kept(),
               "steps": {r["row"]: self.steps(r) for r, row in zip(results, self.rows)
                         if row.watch != "collector" or row.name == "healthy" or self.snapshots.get(r["pid"])},
               "findings": [{k: v for k, v in f.items() if k not in ("worker", "advice", "not_assessable", "counter_evidence")} for f in self.found]}
        if self.faults or any(r["faults"] for r in results):
            out["up_stderr"] = tail(self.at("up.err"), 20000)
            out["stderr"] = {name: tail(self.at(name + ".err")) for name, _ in self.ended if name not in self.process and name != "up"}
        return out

    def steps(self, result):
        """How long a worker's steps took by its own account, and how many snapshots were taken of it meanwhile."""
        keys = ("steps", "step_p50_seconds", "step_p99_seconds", "step_max_seconds", "step_seconds_total")
        return dict({key: (result["summary_line"] or {}).get(key) for key in keys}, snapshots=len(self.snapshots.get(result["pid"], [])))

    def said_all(self, name):
        """A process's stdout as JSON, None where it is none."""
        try:
            with open(self.at(name + ".out"), encoding="utf-8") as handle:
                return json.load(handle)
        except (OSError, ValueError):
            return None

    def snapshots_kept(self):
        """The raw snapshots' names and sizes."""
        folder = self.at("data/snapshots")
        return {name: os.path.getsize(os.path.join(folder, name)) for name in sorted(os.listdir(folder))} if os.path.isdir(folder) else {}


def note(text):
    """One line of what goes on, to stderr."""
    print("%s %s" % (time.strftime("%H:%M:%S"), text), file=sys.stderr, flush=True)


def device_of(options):
    """What the rows run on, as JSON. Raises ValueError with a remedy where they cannot."""
    if options.device == "cpu":
        return {"device": "cpu"}
    if shutil.which("nvidia-smi") is None or not os.path.exists("/dev/nvidiactl"):
        raise ValueError("there is no GPU: run it on a machine with one, or try the rows that need none with --device cpu")
    ask = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader"]
    out = subprocess.run(ask, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    if out.returncode != 0:
        raise ValueError("nvidia-smi ended with %d: %s" % (out.returncode, out.stdout.decode("utf-8", "replace").strip()))
    return {"device": "cuda", "cards": out.stdout.decode("utf-8", "replace").splitlines()}


def torch_of(options):
    """The version of torch that the workers will import; reads it from the disk once, so that they start together."""
    if options.program:
        return None
    out = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=170)
    said = out.stdout.decode("utf-8", "replace").split()
    if out.returncode != 0:
        raise ValueError("%s cannot import torch: %s" % (sys.executable, out.stderr.decode("utf-8", "replace").strip()[-500:]))
    if options.device == "cuda" and said[1] != "True":
        raise ValueError("torch %s of %s sees no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES" % (said[0], sys.executable))
    return said[0]


def stopped(number, frame):
    """Ends the run where it is."""
    raise SystemExit("ended by signal %d" % number)


def parse(argv):
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--lowtide", default="./lowtide", help="the binary")
    add("--out", default="gpu-test.out", help="folder for what is seen; what an earlier run left there is replaced")
    add("--only", type=lambda text: [name for name in text.split(",") if name], default=[], metavar="NAME,NAME", help="these rows only")
    add("--list", action="store_true", help="print the rows and end")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: the rows that need no GPU, tiny")
    add("--seconds", type=float, default=360.0, help="serve at most so long")
    add("--least", type=float, default=250.0, help="serve at least so long, so that the healthy rows have their hours")
    add("--first-port", type=int, default=8100, help="of the workers' metrics, one port a row; 0 takes free ones")
    add("--evidence", choices=("on", "off"), default="on", help="off: neither snapshots nor holders are asked for or wanted")
    add("--up", action="append", default=[], metavar="FLAG", help="one more flag for lowtide up, as --up=--flag=value; may be given several times")
    add("--program", default="", help="run this in place of worker.py: dry.py needs no torch")
    return parser.parse_args(argv)


def main(argv=None):
    """Runs the matrix; returns the exit code."""
    options = parse(argv)
    if options.list:
        for row in rows.table():
            print("%-22s %-18s %s" % (row.name, row.verdict or "nothing", row.planted))
        return 0
    try:
        chosen = rows.chosen(rows.table(), options.only, options.device)
        machine = device_of(options)
        machine["torch"] = torch_of(options)
        if not os.access(options.lowtide, os.X_OK):
            raise ValueError("there is no program at %s: build it with make build, or name it with --lowtide" % options.lowtide)
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        print("error: run the matrix: %s" % error, file=sys.stderr)
        print("hint: collector/gputest/README.md says what it needs", file=sys.stderr)
        return 2
    if os.path.exists(os.path.join(options.out, "up.out")):  # of an earlier run, and nothing else is thrown away
        shutil.rmtree(options.out)
    os.makedirs(options.out, exist_ok=True)
    matrix = Matrix(options, chosen)
    matrix.machine = machine
    for number in (signal.SIGTERM, signal.SIGINT):  # nothing that was started may outlive this, and what was seen is reported
        signal.signal(number, stopped)
    try:
        matrix.run()
    except (SystemExit, Exception) as error:  # whatever it is, what was seen until then is reported
        matrix.must(False, "%s: %s" % (type(error).__name__, error))
    finally:
        matrix.stop()
        if matrix.ear is not None:
            matrix.ear.close()
    out = matrix.report()
    with open(matrix.at("matrix.json"), "w", encoding="utf-8") as to:
        json.dump(out, to, indent=1, sort_keys=True)
        to.write("\n")
    table.write(out, sys.stdout)
    return 1 if out["faults"] or any(r["faults"] for r in out["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
