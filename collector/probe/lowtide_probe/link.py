"""The connection to the collector: a greeting and asks come, lines go. It owns the socket, and refuses to wait for long."""

import json
import os
import select
import socket
import threading
import time

from lowtide_probe.asking import Ear

MAX_LINE = 64 * 1024
CONNECT_SECONDS = 2.0
SEND_SECONDS = 1.0
NOW_SECONDS = 0.02  # that a failing thread waits for the probe's own thread to finish a line
AWAY_SECONDS = (1.0, 60.0)  # between two attempts: at first, at most
INTERVALS = (1.0, 60.0)  # a read can stall the program, so it is not taken more often than once a second


def encode(line):
    """One line of the protocol; None when it would be too long or is not JSON."""
    try:
        data = json.dumps(line, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    except (TypeError, ValueError):
        return None
    return data if len(data) <= MAX_LINE else None


class Link:
    """Sends from any thread. Only the probe's own thread connects and waits; others send what goes at once, or nothing."""

    def __init__(self, paths):
        self.interval = 5.0  # seconds, as the collector wants it
        self._paths = paths
        self._lock = threading.Lock()
        self.session = 0  # grows with every connection
        self._socket = None
        self._ear = Ear()
        self._rest = b""  # the end of a line whose beginning is sent
        self._away = AWAY_SECONDS[0]
        self._retry = 0.0

    @property
    def connected(self):
        return self._socket is not None

    def connect(self):
        """True when a connection is there. Tries again after one second, then less and less often."""
        if self._socket is not None:
            return True
        if time.monotonic() < self._retry:
            return False
        for path in self._paths:
            sock = None
            try:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.settimeout(CONNECT_SECONDS)
                sock.connect(path)
                interval, ear = self._greeting(sock)
                sock.setblocking(False)  # with a timeout, Python waits for it even where MSG_DONTWAIT is given
                with self._lock:
                    self.interval, self._socket, self._ear, self._rest = interval, sock, ear, b""
                    self.session += 1
                self._away = AWAY_SECONDS[0]
                return True
            except Exception:  # nobody there, or somebody who speaks another protocol
                if sock is not None:
                    sock.close()
        self._later()
        return False

    def _later(self):
        # Spread by the pid, so that the workers of a host do not all come back in the same moment.
        self._retry = time.monotonic() + self._away * (1 + (os.getpid() % 16) / 64)
        self._away = min(self._away * 2, AWAY_SECONDS[1])

    @staticmethod
    def _greeting(sock):
        data = b""
        until = time.monotonic() + CONNECT_SECONDS
        while b"\n" not in data:
            if len(data) > 4096 or time.monotonic() > until:
                raise ValueError("no first line")
            chunk = sock.recv(4096)
            if not chunk:
                raise ValueError("closed")
            data += chunk
        first, _, rest = data.partition(b"\n")
        said = json.loads(first.decode("utf-8"))
        interval = float(said["interval_seconds"])
        if said["lowtide"] != 1 or not 0 < interval <= 3600:
            raise ValueError("another protocol")
        return min(max(interval, INTERVALS[0]), INTERVALS[1]), Ear(rest)

    def alive(self):
        """Takes what the collector asks. False, and closed, when it has gone away, or floods."""
        with self._lock:
            if self._socket is None:
                return False
            if self._ear.listen(self._socket):
                return True
            self._drop()
            return False

    def heard(self):
        """What alive() has taken: (line, descriptors) each. The descriptors are the caller's to close."""
        with self._lock:
            return self._ear.take()

    def send(self, data, seconds=SEND_SECONDS):
        """Sends all of data, waiting that long at most, without the GIL. False, and closed, when that fails."""
        if not self._lock.acquire(timeout=seconds):
            return False
        try:
            if self._socket is None:
                return False
            try:
                self._send_all(self._rest + data, time.monotonic() + seconds)
                self._rest = b""
                return True
            except OSError:
                self._drop()  # how much of it went is unknown, so the next line could not be told from this one
                return False
        finally:
            self._lock.release()

    def _send_all(self, data, until):
        while data:
            try:
                data = data[self._socket.send(data) :]
            except (BlockingIOError, InterruptedError):
                left = until - time.monotonic()
                if left <= 0:
                    raise OSError("the collector does not read")
                room = select.poll()  # select() cannot take the high descriptors of a server
                room.register(self._socket, select.POLLOUT)
                room.poll(left * 1000)

    def send_now(self, data):
        """Sends data if the collector takes it at once. False when nothing was sent."""
        if not self._lock.acquire(timeout=NOW_SECONDS):
            return False
        try:
            if self._socket is None or self._rest:
                return False
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._drop()
                return False
            self._rest = data[sent:]
            return True
        finally:
            self._lock.release()

    def flush(self):
        """Sends the end of a line that send_now could send in part only."""
        if self._rest:
            self.send(b"")

    def close(self):
        """Closes the connection of this process. A forked child's copy of its parent's goes without touching the parent's."""
        sock, self._socket = self._socket, None
        self._ear.close()
        if sock is not None:
            sock.close()

    def _drop(self):
        self.close()
        self._rest = b""
        self._later()
