import json
import os
import socket
import tempfile
import threading
import unittest

from wire import Broker, Ear


class Server:
    """One connection of a NATS server that takes a password and says what it read."""

    def __init__(self, *answers, lines=0):
        self.answers, self.read, self.lines = answers, [], lines
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(1)
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        peer, _ = self.socket.accept()
        with peer, peer.makefile("rwb") as stream:
            stream.write(b'INFO {"server_id":"x","headers":true}\r\n')
            stream.flush()
            self.read.append(stream.readline())
            if self.lines:
                self.read += [stream.readline() for _ in range(self.lines)]
            else:
                head = stream.readline()
                self.read += [head, stream.read(int(head.split()[-1]) + 2), stream.readline()]
            for answer in self.answers:
                stream.write(answer)
            stream.flush()

    def close(self):
        self.thread.join()
        self.socket.close()


class PublishTest(unittest.TestCase):
    def test_a_batch_goes_with_its_header_and_its_lengths(self):
        server = Server(b"+OK\r\n", b"PONG\r\n")
        with Broker("nats://sec%%23ret@127.0.0.1:%d" % server.port) as broker:
            broker.publish("lowtide.event.lab.a.declared", {"events": [{"é": 1}]})
        server.close()
        connect, head, body, ping = server.read
        self.assertEqual(json.loads(connect[len(b"CONNECT "):].decode())["auth_token"], "sec#ret")
        payload = b'{"events":[{"\\u00e9":1}]}'
        header = b"NATS/1.0\r\nContent-Type: application/json\r\n\r\n"
        self.assertEqual(head, b"HPUB lowtide.event.lab.a.declared %d %d\r\n" % (len(header), len(header) + len(payload)))
        self.assertEqual((body, ping), (header + payload + b"\r\n", b"PING\r\n"))

    def test_a_refusal_is_an_error_with_the_servers_words(self):
        server = Server(b"-ERR 'Authorization Violation'\r\n")
        with self.assertRaisesRegex(OSError, "Authorization Violation"), Broker("nats://127.0.0.1:%d" % server.port) as broker:
            broker.publish("a", {})
        server.close()


class RequestTest(unittest.TestCase):
    def ask(self, *answers):
        server = Server(*answers, lines=3)
        with Broker("nats://127.0.0.1:%d" % server.port) as broker:
            try:
                return broker.request("lowtide.ask.lab.a", {"ask": "snapshot", "pid": 9}), server
            finally:
                server.close()

    def test_the_answer_of_who_listens_there(self):
        got, server = self.ask(b"PING\r\n", b'MSG _INBOX.x 1 22\r\n{"status":"accepted" }\r\n')
        self.assertEqual(got, {"status": "accepted"})
        _, subscribed, asked, body = server.read
        inbox = subscribed.split()[1]
        self.assertEqual(subscribed, b"SUB %s 1\r\n" % inbox)
        self.assertEqual(asked, b"PUB lowtide.ask.lab.a %s 26\r\n" % inbox)
        self.assertEqual(body, b'{"ask":"snapshot","pid":9}\r\n')

    def test_nobody_there_is_none(self):
        self.assertIsNone(self.ask(b"HMSG _INBOX.x 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n")[0])


class EarTest(unittest.TestCase):
    def test_it_greets_as_a_collector_and_keeps_what_reads_cost(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ear.sock")
            ear = Ear(path)
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.settimeout(10)
                    probe.connect(path)
                    stream = probe.makefile("rwb")
                    self.assertEqual(json.loads(stream.readline().decode()), {"lowtide": 1, "interval_seconds": 1})
                    stream.write(b'{"v":1,"kind":"hello"}\nnot json\n[1]\n')
                    for took in (3e-5, 5e-5, 4e-5):
                        stream.write(json.dumps({"kind": "read", "took_seconds": took, "cpu_seconds": took / 2}).encode() + b"\n")
                    stream.flush()
                    stream.close()
            finally:
                while len(ear.took) < 3 and ear._thread.is_alive():
                    ear._thread.join(0.01)
                ear.first, ear.last = 100.0, 102.0  # two intervals of a second
                ear.close()
            self.assertEqual(ear.took, [3e-5, 5e-5, 4e-5])
            # Three reads of 0.12 ms together, one a second: 0.04 ms of each second.
            self.assertEqual(ear.summary(), {"reads": 3, "every_seconds": 1.0, "read_p50_ms": 0.04, "read_p99_ms": 0.05, "read_max_ms": 0.05,
                                             "gil_seconds_per_second": 4e-5, "cpu_seconds_per_second": 2e-5})

    def test_nothing_heard_is_no_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            ear = Ear(os.path.join(folder, "ear.sock"))
            ear.close()
            self.assertIsNone(ear.summary())
            self.assertFalse(ear._thread.is_alive())


if __name__ == "__main__":
    unittest.main()
