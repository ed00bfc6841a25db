"""Lowtide beside workers that go bad: starts the parts as an operator would, follows what they say, and ends them.

It owns processes, their files in one folder, and the clock on the wall. It refuses to judge what it saw: story.py and matrix.py do.
"""

import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROBE = os.path.join(HERE, "..", "probe")
STRETCH = 60  # event seconds per second, so that minutes are judged as hours, as in the recordings
SHIFT = "10h"  # how far back the first event lies: event time must not run into the future
TAIL_BYTES = 4000


def lines(path):
    """The JSON objects of a file that is still being written; a torn last line is left for later."""
    return Follower(path).new()


class Follower:
    """The JSON objects that come to a file, each once."""

    def __init__(self, path):
        self._path, self._at = path, 0

    def new(self):
        """What has come since the last call. A line that is no JSON object is passed over: people's words share some of the files."""
        try:
            with open(self._path, "rb") as handle:
                handle.seek(self._at)
                data = handle.read()
        except OSError:
            return []
        whole = data[:data.rfind(b"\n") + 1]
        self._at += len(whole)
        out = []
        for line in whole.split(b"\n"):
            try:
                value = json.loads(line.decode("utf-8")) if line.strip() else None
            except ValueError:
                continue
            if isinstance(value, dict):
                out.append(value)
        return out


def tail(path, size=TAIL_BYTES):
    """The end of a text file, "" where there is none."""
    try:
        with open(path, "rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - size))
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return ""


def children(pid):
    """The pids of a process's children."""
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as handle:
            return [int(word) for word in handle.read().split()]
    except OSError:
        return []


class Rig:
    """The processes of one run and their files in one folder. faults is what went wrong with the rig itself."""

    def __init__(self, lowtide, out):
        self.lowtide, self.out = lowtide, out
        self.started = []
        self.ended = []  # what was stopped: (name, process), as started
        self.faults = []
        self.broker = {}

    def at(self, name):
        """Where a file of that name lies."""
        return os.path.join(self.out, name)

    def start(self, name, command, **environment):
        """Starts a process whose stdout is NAME.out and whose stderr is NAME.err."""
        with open(self.at(name + ".out"), "wb") as out, open(self.at(name + ".err"), "wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=dict(os.environ, **environment))
        self.started.append((name, process))
        return process

    def stop(self, seconds=30):
        """Ends what still runs: the last that was started is asked first. Who does not end is killed and told."""
        for _, process in reversed(self.started):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        until = time.monotonic() + seconds
        for name, process in reversed(self.started):
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.must(False, "%s did not stop within %d s" % (name, seconds))
                process.kill()
                process.wait()
        self.ended += self.started
        self.started = []

    def must(self, holds, text):
        """Notes a fault where something does not hold."""
        if not holds:
            self.faults.append(text)

    def wait(self, seconds, done, every=0.5):
        """Whether done() became true within so many seconds."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if done():
                return True
            time.sleep(every)
        return False

    def knows(self, *arguments):
        """Whether this lowtide takes these arguments: hidden flags stand in no help, but a wrong one is refused before the help is."""
        return subprocess.run([self.lowtide] + list(arguments) + ["--help"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, timeout=30).returncode == 0

    def up(self, *more):
        """Starts `lowtide up` and the two tails. Raises SystemExit with where to look when it does not come up."""
        up = self.start("up", [self.lowtide, "up", "--data", self.at("data"), "--interval", "1s", "--nvml-interval", "1s",
                               "--stretch", str(STRETCH), "--shift", SHIFT, "--probe-socket", self.at("probe.sock"), "--no-demo"] + list(more))
        address = self.at("data/up.json")
        if not self.wait(60, lambda: os.path.exists(address) or up.poll() is not None) or up.poll() is not None:
            raise SystemExit("error: start lowtide up: it did not come up\nhint: %s ends with:\n%s" % (self.at("up.err"), tail(self.at("up.err"))))
        self.broker = lines(address)[0]
        for what in ("events", "findings"):
            self.start(what, [self.lowtide, "tail", what, "--json", "--data", self.at("data")])
        return up

    def worker(self, name, flags, environment=None, program="worker.py", socket=None):
        """Starts a worker with the probe put in from outside, as into any server."""
        path = os.pathsep.join([os.path.join(PROBE, "inject"), PROBE])
        return self.start(name, [sys.executable, os.path.join(HERE, program)] + list(flags), **dict({
            "PYTHONPATH": path, "LOWTIDE_PROBE_SOCKET": socket or self.at("probe.sock"), "PYTHONDONTWRITEBYTECODE": "1"}, **(environment or {})))

    def said(self, name, key):
        """The first line of a process's stdout that has that key, or None."""
        return next((line for line in lines(self.at(name + ".out")) if key in line), None)

    def ready(self, name):
        """Whether a worker serves."""
        return self.said(name, "ready") is not None

    def events(self, body):
        """The events with that body that came so far."""
        return [e for e in lines(self.at("events.out")) if body in e]

    def findings(self, of=None):
        """The findings that came so far, of one class or of all."""
        return [f for f in lines(self.at("findings.out")) if of is None or f.get("class") == of]
