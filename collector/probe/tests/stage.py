"""What the tests play with: a collector to connect to, and a program to be watched."""

import array
import json
import os
import pickle
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

TESTS = os.path.dirname(os.path.abspath(__file__))
PROBE = os.path.dirname(TESTS)
FAKE = os.path.join(TESTS, "fake")
PATIENCE = 20  # seconds until a test gives up; nothing waits this long when it works

# The probe's own pace, made fast.
QUICK = "import lowtide_probe.watch as w, lowtide_probe.link as l; w.POLL_SECONDS = .01; w.LISTEN_SECONDS = .05; w.MARK_SECONDS = .05; l.AWAY_SECONDS = (.02, .1); l.INTERVALS = (.05, 60.)"


class Collector:
    """Listens like the real one; what a probe sends is in `lines` as (connection, object)."""

    def __init__(self, path, greeting=b'{"lowtide":1,"interval_seconds":0.05}\n', silent=False):
        self.path, self.greeting, self.silent = path, greeting, silent
        self.lines = queue.Queue()
        self.accepted = queue.Queue()
        self.connections = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(16)
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            number = len(self.connections)
            self.accepted.put(number)
            thread = threading.Thread(target=self._serve, args=(connection, number), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _serve(self, connection, number):
        try:
            connection.sendall(self.greeting)
            if self.silent:
                return
            with connection.makefile("rb") as f:
                for line in f:
                    self.lines.put((number, json.loads(line)))
        except (OSError, ValueError):
            pass
        self.lines.put((number, {"kind": "closed"}))

    def ask(self, kind, number=1, fds=(), **fields):
        """Asks on a connection, with descriptors, which stay the caller's."""
        line = json.dumps(dict({"lowtide": 1, "ask": kind, "id": kind}, **fields)).encode() + b"\n"
        send(self.connections[number - 1], line, fds)

    def wait(self, kind, test=lambda line: True):
        """The next line of that kind that the test is true for; others before it are dropped."""
        while True:
            number, line = self.lines.get(timeout=PATIENCE)
            if line["kind"] == kind and test(line):
                line["connection"] = number
                return line

    def close(self):
        # shutdown() wakes the thread in accept, which close() alone does not.
        for s in [self.listener] + self.connections:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        for thread in self.threads:
            thread.join(PATIENCE)
        if os.path.exists(self.path):
            os.unlink(self.path)


def send(sock, data, fds):
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lowtide-probe-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.socket = os.path.join(self.folder, "probe.sock")
        self.report = os.path.join(self.folder, "touched.json")

    def collector(self, **options):
        collector = Collector(self.socket, **options)
        self.addCleanup(collector.close)
        return collector

    def environment(self, **changes):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("LOWTIDE_", "PYTORCH_", "CUDA_", "NVIDIA_", "RANK", "LOCAL_RANK", "XDG_"))}
        environment.update(PYTHONPATH=os.pathsep.join([FAKE, PROBE]), PYTHONDONTWRITEBYTECODE="1", LOWTIDE_PROBE_SOCKET=self.socket, FAKE_TORCH_REPORT=self.report)
        environment.update(changes)
        return environment

    def program(self, start=True, **changes):
        """A program that does as it is told."""
        program = Program(self.environment(**changes))
        self.addCleanup(program.end)
        if start:
            program.do(QUICK)
            program.do("lowtide_probe = __import__('lowtide_probe'); lowtide_probe.start()")
        return program

    def file(self, name="snapshot"):
        """An empty file for a snapshot: its descriptor and path."""
        path = os.path.join(self.folder, name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.addCleanup(os.close, fd)
        return fd, path

    def unpickle(self, path):
        with open(path, "rb") as f:
            return pickle.load(f)

    def untouched(self):
        """CUDA was left alone, and nothing of torch was imported."""
        if os.path.exists(self.report):
            with open(self.report) as f:
                self.fail("the probe would have initialised CUDA or imported: %s" % f.read())


class Program:
    def __init__(self, environment, arguments=()):
        self.process = subprocess.Popen([sys.executable, *arguments, os.path.join(TESTS, "host.py")], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().rstrip("\n")
        if answer.startswith("raised ") or not answer:
            raise AssertionError("%s: %s" % (line, answer or self.process.stderr.read()))
        return answer

    def torch(self):
        self.do("import torch")
        self.do("torch.cuda.init()")

    def die(self, line):
        self.process.stdin.write("die " + line + "\n")
        self.process.stdin.close()
        self.process.stdin = None
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err

    def end(self):
        """Ends the program, and returns what it wrote to stderr."""
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except OSError:
                pass
            self.process.stdin = None
        if self.process.poll() is None:
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        err = self.process.stderr.read() if not self.process.stderr.closed else ""
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()
        return err
