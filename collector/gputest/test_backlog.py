import threading
import unittest

import backlog
from backlog import Backlog

MIB = 1 << 20


class Word(list):
    """The word in host memory; whoever waits for it is told when it changes."""

    def __init__(self):
        list.__init__(self, [0])
        self.changed = threading.Condition()

    def pin_memory(self):
        return self

    def data_ptr(self):
        return 4096

    def __setitem__(self, at, value):
        with self.changed:
            list.__setitem__(self, at, value)
            self.changed.notify_all()


class Stream:
    def __init__(self, number, passed):
        self.cuda_stream, self.sent, self._passed = number, [], passed

    def query(self):
        return self._passed


class Tensor:
    def __init__(self, size):
        self.size = size

    def record_stream(self, stream):
        stream.sent.append(self.size)


class Torch:
    int32 = None

    def __init__(self, passed=False):
        self.streams, self.word = [], Word()
        torch = self

        class Cuda:
            def Stream(self, device):
                torch.streams.append(Stream(len(torch.streams) + 1, passed))
                return torch.streams[-1]

        self.cuda = Cuda()

    def zeros(self, size, dtype=None):
        return self.word


class Driver:
    """Notes (stream, address, value) of each wait."""

    def __init__(self):
        self.waits = []

    def wait_value(self, *wait):
        self.waits.append(wait)


class BacklogTest(unittest.TestCase):
    def make(self, limit=3600.0, passed=False):
        self.torch, self.driver, self.said, self.made = Torch(passed), Driver(), [], []

        def tensor(size):
            self.made.append(size)
            return Tensor(size)

        made = Backlog(self.torch, "cuda:0", self.driver, tensor, self.said.append, limit)
        self.addCleanup(made.close)
        return made

    def stands(self, *streams):
        """A step of a model that is held up while one of these streams stands."""
        def step():
            number, _, value = self.driver.waits[-1] if self.driver.waits else (0, 0, 0)
            if number in streams:
                with self.torch.word.changed:
                    self.assertTrue(self.torch.word.changed.wait_for(lambda: self.torch.word[0] >= value, 60))

        return step

    def test_tensors_wait_for_a_word_that_comes_at_the_end(self):
        made = self.make()
        made.send(16 * MIB)
        made.send(16 * MIB)
        self.assertEqual((self.driver.waits, self.torch.streams[0].sent, made.bytes), ([(1, 4096, 1)], [16 * MIB] * 2, 32 * MIB))
        self.assertEqual(self.torch.word[0], 0)
        made.close()
        self.assertEqual((self.torch.word[0], made.releases), (1, 0))

    def test_who_waits_for_the_stream_is_let_go_and_the_next_tensor_waits_on_another(self):
        made = self.make(limit=0.2)
        made.send(MIB)
        self.stands(1)()
        self.assertEqual(self.torch.word[0], 1)
        made.close()  # the watch has ended
        self.assertEqual((made.releases, len(self.said)), (1, 1))
        made.send(MIB)
        self.assertEqual([(number, value) for number, _, value in self.driver.waits], [(1, 1), (2, 2)])

    def test_a_rehearsal_reserves_first_and_finds_a_stream_that_holds_nobody_up(self):
        made = self.make(limit=0.2)
        made.rehearse(16 * MIB, self.stands(1, 2))
        self.assertEqual(self.made[:256], [16 * MIB] * 256)
        self.assertEqual((made.bytes, made.releases), (0, 2))
        made.send(MIB)  # the stream that was good is taken
        self.assertEqual([(number, value) for number, _, value in self.driver.waits], [(1, 1), (2, 2), (3, 3), (3, 4)])
        self.assertEqual(self.torch.word[0], 3)

    def test_where_every_stream_holds_the_model_up_it_says_so(self):
        made = self.make(limit=0.05)
        with self.assertRaisesRegex(RuntimeError, "each of 8 "):
            made.rehearse(backlog.RESERVED, self.stands(*range(1, 9)))
        self.assertEqual(self.made, [backlog.RESERVED] * 9)

    def test_a_stream_that_passed_is_no_backlog(self):
        with self.assertRaisesRegex(RuntimeError, "has passed"):
            self.make(passed=True).send(MIB)


if __name__ == "__main__":
    unittest.main()
