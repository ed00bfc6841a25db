import os
import threading
import unittest

import worker
from faults import At, Files, Graphs, HostMemory, PlantedFaults, Threads


class Memory:
    """Notes what it is asked for."""

    def __init__(self):
        self.said = []

    def __getattr__(self, name):
        def method(*args):
            self.said.append((name,) + args)
            return 5

        return method


class Request:
    number = 7


def planted(argv, limit=8 << 30):
    model, memory, told = Memory(), Memory(), []
    return PlantedFaults(worker.parse(argv), model, None, limit, memory, told.append), model, memory, told


class FaultsTest(unittest.TestCase):
    def test_each_flag_asks_memory_for_its_mebibytes_at_an_abort(self):
        faults, _, memory, told = planted(["--pin-mib", "24"])
        faults.aborted(Request)
        faults.finished(Request)
        faults.tick(1e9)
        self.assertEqual((memory.said, told), ([("pin", 25165824)], ["pinned"]))

    def test_a_backlog_is_fed_by_aborts_hears_of_every_turn_and_is_let_go_at_the_end(self):
        backlog, told = Memory(), []
        faults = PlantedFaults(worker.parse(["--backlog-mib", "24"]), None, None, 1, None, told.append, backlog)
        faults.tick(1)
        self.assertEqual(told, [])
        faults.aborted(Request)
        faults.finished(Request)
        faults.close()
        self.assertEqual((backlog.said, told), ([("beat",), ("send", 25165824), ("close",)], ["backlog"]))

    def test_a_hang_begins_at_its_second(self):
        faults, _, _, told = planted(["--hang-at-seconds", "70"])
        faults.tick(69.9)
        self.assertEqual((faults.hangs(), told), (False, []))
        faults.tick(70)
        self.assertEqual((faults.hangs(), told), (True, ["hang"]))
        faults.tick(71)
        self.assertEqual((faults.hangs(), told), (True, ["hang"]))

    def test_every_third_abort_captures_a_graph_of_a_shape_of_its_own(self):
        memory = Memory()
        graphs = Graphs(memory, 1 << 20)
        for _ in range(9):
            graphs.aborted(Request)
        self.assertEqual([name for name, _ in memory.said], ["capture"] * 3)
        self.assertEqual(len({size for _, size in memory.said}), 3)

    def test_a_fragmented_reserve_is_asked_for_an_eighth_of_the_cap(self):
        # An eighth is below the 15 % of the limit above which the rules call a request oversize.
        faults, model, memory, told = planted(["--cap-fraction", "0.05", "--fragment-at-seconds", "10", "--fragment-at-seconds", "20"])
        for now in (5, 11, 12, 21, 30):
            faults.tick(now)
        self.assertEqual(memory.said, [("fragment", 8 << 30)] * 2)
        self.assertEqual(model.said, [("ask", 1 << 30)] * 2)
        self.assertEqual(told, ["fragment"])

    def test_the_first_effect_is_told_even_where_it_raises(self):
        told = []
        faults = PlantedFaults(worker.parse(["--oversize-at-seconds", "3"]), None, None, 1, None, told.append)
        faults.tick(2)
        self.assertEqual(told, [])
        with self.assertRaises(AttributeError):  # the model is none at all
            faults.tick(3)
        self.assertEqual(told, ["oversize"])

    def test_what_is_due_is_done_once(self):
        done = []
        at = At([2, 1], lambda: done.append(1))
        self.assertEqual([at.due(0.5), at.due(1)], [False, True])
        for now in (1, 1.5, 2, 2.5):
            at.tick(now)
        self.assertEqual(len(done), 2)

    def test_files_stay_open_until_the_end(self):
        before = len(os.listdir("/proc/self/fd"))
        files = Files(4)
        files.aborted(Request)
        files.aborted(Request)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before + 8)
        files.close()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_threads_wait_until_the_end(self):
        before = threading.active_count()
        stack = threading.stack_size()
        threads = Threads(3)
        threads.aborted(Request)
        threads.aborted(Request)
        self.assertEqual(threading.active_count(), before + 6)
        self.assertEqual(threading.stack_size(), stack)
        threads.close()
        self.assertEqual(threading.active_count(), before)

    def test_host_memory_is_written_and_so_resident(self):
        with open("/proc/self/statm") as handle:
            before = int(handle.read().split()[1])
        host = HostMemory(64 << 20)
        host.aborted(Request)
        with open("/proc/self/statm") as handle:
            after = int(handle.read().split()[1])
        self.assertGreater((after - before) * os.sysconf("SC_PAGE_SIZE"), 60 << 20)
        self.assertEqual(len(host.kept[0]), 64 << 20)

    def test_the_cache_is_fed_by_finished_requests_only(self):
        faults, _, memory, told = planted(["--cache-mib", "8", "--cache-entries", "48"])
        faults.aborted(Request)
        self.assertEqual((memory.said, told), ([], []))
        faults.finished(Request)
        self.assertEqual((memory.said, told), ([("remember", 7, 8388608, 48)], ["cache"]))

    def test_a_retained_tensor_is_told_once(self):
        faults, model, _, told = planted(["--retain-aborted", "--hold-kv"])
        for _ in range(3):
            faults.holds_blocks()
            faults.aborted(Request)
        self.assertEqual((len(model.said), told), (3, ["kv", "retain"]))

    def test_the_end_lets_everything_go(self):
        faults, _, _, _ = planted(["--leak-threads", "2", "--leak-files", "2"])
        faults.aborted(Request)
        before = threading.active_count()
        faults.close()
        self.assertEqual(threading.active_count(), before - 2)


class FlagsTest(unittest.TestCase):
    def test_what_contradicts_itself_is_refused_with_the_remedy(self):
        for argv, words in ((["--fragment-at-seconds", "5"], "give it a --cap-fraction"), (["--pin-mib", "-1"], "must not be negative"),
                            (["--cache-entries", "0"], "at least 1"), (["--device", "cpu", "--pin-mib", "1", "--graph-mib", "1"], "--graph-mib and --pin-mib need a GPU"),
                            (["--device", "cpu", "--backlog-mib", "1"], "need a GPU"), (["--device", "cpu", "--oversize-at-seconds", "1"], "need a GPU")):
            with self.assertRaisesRegex(ValueError, words):
                worker.parse(argv)


if __name__ == "__main__":
    unittest.main()
