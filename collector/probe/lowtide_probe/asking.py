"""What the collector asks, line by line. It owns the bytes and descriptors that come, and refuses more of either than an ask needs."""

import array
import collections
import json
import os
import socket

MAX_LINE = 4096
MAX_LINES = 16  # between two looks; who says more asks for nothing
MAX_FDS = 8  # with one line; the kernel keeps back the others

MAX_BYTES = 1 << 30
BUDGET_SECONDS = {"snapshot": 30.0, "arm": 10.0}  # at most; at an OOM it is the program that waits
HISTORY_SECONDS = 3600.0
MAX_ENTRIES = 100000
CENSUS_SECONDS = 0.2

_ROOM = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)  # else a program started meanwhile would keep it


def close(fds):
    """Closes all of a list of descriptors, and empties it."""
    while fds:
        try:
            os.close(fds.pop())
        except OSError:
            pass


class Ear:
    """The incoming half of one connection: lines, each with the descriptors that came with it."""

    def __init__(self, rest=b""):
        self._lines = collections.deque()
        self._rest = b""  # the beginning of a line
        self._fds = []  # that came with it
        self.feed(rest, [])

    def listen(self, sock):
        """Takes what has come. False when nobody is there any more, or says more than a collector has to say."""
        for _ in range(MAX_LINES):
            try:
                data, fds = receive(sock)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            if not self.feed(data, fds) or not data:
                return False
        return False

    def feed(self, data, fds):
        """Adds what was received. The kernel ends a read behind bytes that had descriptors with them, so those belong to the line
        in which the read ends. False when it is too much; then all descriptors are closed."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._lines.append((line, self._fds))
            self._fds = []
        if lines and not self._rest:
            self._lines[-1][1].extend(fds)
        else:
            self._fds.extend(fds)
        if max(map(len, [self._rest] + lines)) <= MAX_LINE and len(self._lines) <= MAX_LINES and len(self._fds) <= MAX_FDS:
            return True
        self.close()
        return False

    def take(self):
        """The lines that are complete, oldest first. Their descriptors are the caller's from now on."""
        taken = list(self._lines)
        self._lines.clear()
        return taken

    def close(self):
        for _, fds in self.take():
            close(fds)
        close(self._fds)
        self._rest = b""


def receive(sock):
    """Bytes, b"" at the end, and the descriptors that came with the last of them."""
    data, ancillary, _, _ = sock.recvmsg(MAX_LINE, _ROOM, _CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, list(fds)


class Invalid(ValueError):
    """An ask that cannot be done as it is. `id` is "" when not even that can be read."""

    def __init__(self, ask_id, text):
        super().__init__(text)
        self.id = ask_id


class Ask:
    """One ask, its numbers within the probe's own limits."""

    def __init__(self, line):
        self.id = ""
        try:
            said = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            raise Invalid("", "no JSON") from None
        if not isinstance(said, dict) or said.get("lowtide") != 1:
            raise Invalid("", "another protocol")
        name = said.get("id")
        if not isinstance(name, str) or not 0 < len(name) <= 64 or not (name.isascii() and name.isprintable()):
            raise Invalid("", "no id")
        self.id = name
        self.kind = said.get("ask")
        if self.kind not in ("snapshot", "arm", "census"):
            raise Invalid(self.id, "ask: %.32r is none of snapshot, arm, census" % (self.kind,))
        self.max_bytes = int(self._number(said, "max_bytes", 1, MAX_BYTES)) if self.kind != "census" else 0
        self.budget = self._number(said, "budget_seconds", 0.001, BUDGET_SECONDS.get(self.kind, 1.0), 1.0)
        self.history = self._number(said, "history_seconds", 0.0, HISTORY_SECONDS, 0.0) if self.kind == "snapshot" else 0.0
        self.entries = int(self._number(said, "max_entries", 1, MAX_ENTRIES, 50000)) if self.history else 0
        self.census = self.kind == "census" or said.get("census") is True
        self.census_seconds = self._number(said, "census_seconds", 0.001, CENSUS_SECONDS, CENSUS_SECONDS)

    def _number(self, said, name, least, most, otherwise=None):
        value = said.get(name, otherwise)
        if type(value) not in (int, float) or not value >= least:  # NaN is not, either
            raise Invalid(self.id, "%s: %.32r is not a number from %g on" % (name, value, least))
        return min(value, most)
