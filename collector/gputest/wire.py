"""Two ends of Lowtide's wires, as anybody may build them: a publisher of events over NATS, and an ear for the probe's socket.

It owns bytes on sockets. A batch goes as JSON, which the broker's readers take from anyone who says so in a header.
"""

import json
import socket
import threading
import time
from urllib.parse import unquote, urlsplit

SECONDS = 10.0
LONGEST = 1 << 20  # bytes of a line that is listened to


class Broker:
    """One connection to a NATS server. Raises OSError where the server is none, refuses, or does not answer in time."""

    def __init__(self, address, seconds=SECONDS):
        parts = urlsplit(address)
        self._socket = socket.create_connection((parts.hostname, parts.port or 4222), seconds)
        self._stream = self._socket.makefile("rwb")
        if not self._stream.readline().startswith(b"INFO "):
            self.close()
            raise OSError("connect to %s: it is no NATS server" % parts.hostname)
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "python", "version": "1", "protocol": 1}
        if parts.password is not None:
            options.update({"user": unquote(parts.username or ""), "pass": unquote(parts.password)})
        elif parts.username:
            options["auth_token"] = unquote(parts.username)
        self._send(b"CONNECT " + json.dumps(options).encode("utf-8"))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Ends the connection."""
        self._stream.close()
        self._socket.close()

    def _send(self, *lines):
        self._stream.write(b"".join(line + b"\r\n" for line in lines))

    def _until(self, wanted):
        self._stream.flush()
        for _ in range(64):
            line = self._stream.readline().strip()
            if line.startswith(b"-ERR") or not line:
                raise OSError("talk to the broker: %s" % (line.decode("utf-8", "replace") or "it closed the connection"))
            if line == b"PING":
                self._send(b"PONG")
                self._stream.flush()
            if line.split(b" ")[0] in wanted:
                return line
        raise OSError("talk to the broker: no answer in 64 lines")

    def publish(self, subject, batch):
        """Publishes one batch of events and waits until the server has taken it."""
        body = encode(batch)
        head = b"NATS/1.0\r\nContent-Type: application/json\r\n\r\n"
        self._send(b"HPUB %s %d %d" % (subject.encode("utf-8"), len(head), len(head) + len(body)), head + body, b"PING")
        self._until((b"PONG",))

    def request(self, subject, question):
        """Asks, and returns the answer, a dict; None where nobody answers there."""
        body, inbox = encode(question), b"_INBOX.matrix.%d" % self._socket.getsockname()[1]
        self._send(b"SUB %s 1" % inbox, b"PUB %s %s %d" % (subject.encode("utf-8"), inbox, len(body)), body)
        words = self._until((b"MSG", b"HMSG")).split(b" ")
        data = self._stream.read(int(words[-1]))
        if words[0] == b"HMSG":
            head, data = data[:int(words[-2])], data[int(words[-2]):]
            if b" 503" in head.split(b"\r\n")[0]:
                return None
        return json.loads(data.decode("utf-8"))


def encode(value):
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode("utf-8")


class Ear:
    """Listens at a path as a collector would, to one probe, and keeps what its reads cost by its own account."""

    def __init__(self, path, interval=1.0):
        self.took, self.cpu = [], []  # seconds of each read
        self.first = self.last = None
        self._hello = b'{"lowtide":1,"interval_seconds":%g}\n' % interval
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(path)
            self._socket.listen(4)
        except OSError:
            self._socket.close()
            raise
        self._closed = False
        self._peer = None
        self._thread = threading.Thread(target=self._serve, name="ear", daemon=True)
        self._thread.start()

    def _serve(self):
        while not self._closed:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            self._peer = peer
            if self._closed:
                peer.close()
                return
            with peer:
                try:
                    peer.sendall(self._hello)
                    for line in peer.makefile("rb"):
                        self._line(line[:LONGEST])
                except OSError:
                    pass  # the probe has gone; the next may come

    def _line(self, line):
        try:
            said = json.loads(line.decode("utf-8"))
        except ValueError:
            return
        if isinstance(said, dict) and said.get("kind") == "read" and isinstance(said.get("took_seconds"), (int, float)):
            now = time.monotonic()
            self.first = self.first or now
            self.last = now
            self.took.append(said["took_seconds"])
            self.cpu.append(said.get("cpu_seconds") or 0.0)

    def summary(self):
        """Reads, milliseconds of one, and seconds of each second; None where nothing was heard."""
        took = sorted(self.took)
        if len(took) < 2 or not self.last > self.first:
            return None
        every = (self.last - self.first) / (len(took) - 1)
        return {"reads": len(took), "every_seconds": round(every, 3), "read_p50_ms": round(took[len(took) // 2] * 1e3, 4),
                "read_p99_ms": round(took[min(len(took) - 1, int(0.99 * len(took)))] * 1e3, 4), "read_max_ms": round(took[-1] * 1e3, 4),
                "gil_seconds_per_second": round(sum(took) / len(took) / every, 7), "cpu_seconds_per_second": round(sum(self.cpu) / len(took) / every, 7)}

    def close(self):
        """Stops listening."""
        self._closed = True
        for one in (self._peer, self._socket):
            try:
                if one is not None:
                    one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._socket.close()
        self._thread.join(SECONDS)
