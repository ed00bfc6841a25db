"""What the collector may ask, over a real socket with real descriptors, and how much of it."""

import json
import os
import random
import socket
import sys
import unittest

import stage

sys.path[:0] = [stage.FAKE, stage.PROBE]
from lowtide_probe import asking  # noqa: E402


def opened():
    """How many descriptors this process has. The one that lists them is among them, each time."""
    return len(os.listdir("/proc/self/fd"))


class Ears(unittest.TestCase):
    def setUp(self):
        self.theirs, self.ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.ours.setblocking(False)
        self.addCleanup(self.theirs.close)
        self.addCleanup(self.ours.close)
        self.files = []
        for name in "abcdefghij":
            fd = os.memfd_create(name)
            self.addCleanup(os.close, fd)
            self.files.append(fd)
        self.before = opened()

    def names(self, fds):
        return [os.readlink("/proc/self/fd/%d" % fd)[7] for fd in fds]  # /memfd:a (deleted)

    def test_a_line_and_its_descriptor(self):
        ear = asking.Ear()
        stage.send(self.theirs, b'{"ask":1}\n', [self.files[0]])
        self.assertTrue(ear.listen(self.ours))
        ((line, fds),) = ear.take()
        self.assertEqual((line, self.names(fds)), (b'{"ask":1}', ["a"]))
        self.assertFalse(os.get_inheritable(fds[0]))  # a program started meanwhile does not keep it
        asking.close(fds)
        self.assertEqual((fds, opened()), ([], self.before))

    def test_each_line_has_its_own(self):
        ear = asking.Ear()
        self.theirs.sendall(b"none\nnone either\n")
        stage.send(self.theirs, b"one\n", self.files[:1])
        stage.send(self.theirs, b"split ", self.files[1:2])
        self.theirs.sendall(b"in the middle\nnone aga")
        stage.send(self.theirs, b"in\n", [])
        stage.send(self.theirs, b"two\n", self.files[2:4])
        self.assertTrue(ear.listen(self.ours))
        heard = ear.take()
        self.assertEqual([(line, self.names(fds)) for line, fds in heard],
            [(b"none", []), (b"none either", []), (b"one", ["a"]), (b"split in the middle", ["b"]), (b"none again", []), (b"two", ["c", "d"])])
        for _, fds in heard:
            asking.close(fds)
        self.assertEqual(opened(), self.before)

    def test_what_is_too_much_is_closed(self):
        for data, fds in ((b"x" * (asking.MAX_LINE + 1), 2), (b"\n" * (asking.MAX_LINES + 1), 2), (b"y\n" * 40000, 2)):
            ear = asking.Ear()
            stage.send(self.theirs, data[:1], self.files[:fds])
            self.theirs.sendall(data[1:])
            self.assertFalse(ear.listen(self.ours), data[:2])
            self.assertEqual((ear.take(), opened()), ([], self.before))
            while True:
                try:
                    self.ours.recv(1 << 20)
                except BlockingIOError:
                    break

    def test_more_descriptors_than_there_is_room_for(self):
        ear = asking.Ear()
        stage.send(self.theirs, b"ten\n", self.files)
        self.assertTrue(ear.listen(self.ours))
        ((_, fds),) = ear.take()
        self.assertEqual(len(fds), asking.MAX_FDS)  # the kernel has kept back the others
        asking.close(fds)
        for fd in self.files[:3]:  # and one by one, with a line that never ends
            stage.send(self.theirs, b"x", [fd] * 4)
        self.assertFalse(ear.listen(self.ours))
        self.assertEqual(opened(), self.before)

    def test_the_end(self):
        ear = asking.Ear()
        stage.send(self.theirs, b"last\nhal", self.files[:1])
        self.theirs.shutdown(socket.SHUT_WR)
        self.assertFalse(ear.listen(self.ours))
        ear.close()
        self.assertEqual((ear.take(), opened()), ([], self.before))


class Asks(unittest.TestCase):
    def ask(self, **changes):
        said = {"lowtide": 1, "ask": "snapshot", "id": "7f3a", "max_bytes": 268435456, "budget_seconds": 10, "history_seconds": 600,
            "max_entries": 50000, "census": False, "census_seconds": 0.2}
        said.update(changes)
        return asking.Ask(json.dumps({name: value for name, value in said.items() if value is not None}).encode())

    def test_as_agreed(self):
        ask = self.ask()
        self.assertEqual((ask.kind, ask.id, ask.max_bytes, ask.budget, ask.history, ask.entries, ask.census, ask.census_seconds),
            ("snapshot", "7f3a", 268435456, 10, 600, 50000, False, 0.2))
        ask = asking.Ask(b'{"lowtide":1,"ask":"arm","id":"b","max_bytes":1000,"budget_seconds":5}')
        self.assertEqual((ask.kind, ask.max_bytes, ask.budget, ask.history, ask.census), ("arm", 1000, 5, 0, False))
        ask = asking.Ask(b'{"lowtide":1,"ask":"census","id":"c"}')
        self.assertEqual((ask.census, ask.census_seconds), (True, 0.2))

    def test_beyond_the_probe_s_own_limits(self):
        ask = self.ask(max_bytes=1 << 40, budget_seconds=1e308, history_seconds=1e9, max_entries=1 << 62, census_seconds=60)
        self.assertEqual((ask.max_bytes, ask.budget, ask.history, ask.entries, ask.census_seconds), (1 << 30, 30, 3600, 100000, 0.2))
        self.assertEqual(self.ask(ask="arm", budget_seconds=30).budget, 10)
        self.assertEqual((self.ask(history_seconds=None).history, self.ask(history_seconds=0).entries), (0, 0))

    def test_what_is_wrong_is_named(self):
        for changes, text in (({"ask": "memory"}, "ask: 'memory' is none of snapshot, arm, census"), ({"ask": ["x"]}, "is none of"),
                ({"max_bytes": None}, "max_bytes: None is not a number from 1 on"), ({"max_bytes": "9"}, "max_bytes"), ({"max_bytes": True}, "max_bytes"),
                ({"history_seconds": -1}, "history_seconds: -1 is not a number from 0 on"), ({"max_entries": 0}, "max_entries"),
                ({"budget_seconds": float("nan")}, "budget_seconds: nan"), ({"max_bytes": -(10 ** 400)}, "max_bytes")):
            with self.assertRaisesRegex(asking.Invalid, text.replace("(", r"\(")) as raised:
                self.ask(**changes)
            self.assertEqual(raised.exception.id, "7f3a")

    def test_who_is_not_to_be_answered(self):
        for line in (b"", b"\x00\xff", b"[1]", b"1", b"{}", b'{"lowtide":2,"ask":"census","id":"a"}', b"[" * 4096, b'{"lowtide":1,"ask":"census"}',
                b'{"lowtide":1,"ask":"census","id":""}', b'{"lowtide":1,"ask":"census","id":7}', b'{"lowtide":1,"ask":"census","id":"a\\nb"}',
                b'{"lowtide":1,"ask":"census","id":"%s"}' % (b"x" * 65)):
            with self.assertRaises(asking.Invalid) as raised:
                asking.Ask(line)
            self.assertEqual(raised.exception.id, "", line[:60])

    def test_any_bytes(self):
        chance = random.Random(5)
        line = b'{"lowtide":1,"ask":"snapshot","id":"7f3a","max_bytes":268435456,"budget_seconds":1e1,"history_seconds":600,"max_entries":50000}'
        good = 0
        for _ in range(20000):
            changed = bytearray(line)
            for _ in range(chance.randrange(4)):
                at = chance.randrange(len(changed))
                changed[at : at + chance.randrange(3)] = bytes(chance.choice(b'0-9eE."{}[]:,ntf\\\x00\xff') for _ in range(chance.randrange(4)))
            try:
                ask = asking.Ask(bytes(changed))
            except asking.Invalid:
                continue
            good += 1
            self.assertTrue(0 <= ask.max_bytes <= asking.MAX_BYTES and 0 <= ask.budget <= 30 and 0 <= ask.history <= 3600 and ask.entries <= 100000)
        self.assertGreater(good, 4000)


if __name__ == "__main__":
    unittest.main()
