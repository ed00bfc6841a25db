"""What is read, from stats in the shapes that PyTorch's versions have."""

import importlib
import os
import sys
import unittest
from unittest import mock

import stage

sys.path[:0] = [stage.FAKE, stage.PROBE]
import torch  # noqa: E402  the stand-in

from lowtide_probe import history, reading, watch  # noqa: E402
from lowtide_probe.link import MAX_LINE, encode  # noqa: E402


class Reading(unittest.TestCase):
    def setUp(self):
        global torch
        for name in [n for n in sys.modules if n == "torch" or n.startswith("torch.")]:
            del sys.modules[name]
        torch = importlib.import_module("torch")
        torch.cuda.init()
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            os.environ.pop(name, None)

    def tearDown(self):
        self.setUp()

    def test_native_fields(self):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:128,expandable_segments:True"
        devices = reading.Reader(torch).devices()
        self.assertEqual(devices, [{
            "gpu_uuid": "GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000", "backend": "native", "expandable_segments": True,
            "allocated_bytes": 600, "allocated_peak_bytes": 900, "reserved_bytes": 1000, "reserved_peak_bytes": 1200, "active_bytes": 700,
            "requested_bytes": 590, "inactive_split_bytes": 50, "segments": 7, "alloc_retries_total": 3, "ooms_total": 1,
            "device_allocs_total": 12, "device_frees_total": 5, "private_pool_bytes": 96, "graph_pools": 2,
            "pinned_allocated_bytes": 2 << 20, "pinned_active_bytes": 1 << 20,
        }])  # GPU 1 holds nothing: it is another rank's
        self.assertEqual(torch.touched, [])

    def test_async_back_end_has_only_what_it_keeps(self):
        torch.state.backend = "cudaMallocAsync"
        (device,) = reading.Reader(torch).devices()
        self.assertEqual(sorted(device), ["active_bytes", "allocated_bytes", "allocated_peak_bytes", "backend", "gpu_uuid", "pinned_active_bytes",
            "pinned_allocated_bytes", "reserved_bytes", "reserved_peak_bytes"])

    def test_async_back_end_leaves_devices_without_a_context_alone(self):
        torch.state.backend, torch.state.contexts = "cudaMallocAsync", set()
        asked = []
        torch._C._cuda_memoryStats = lambda device: asked.append(device)
        self.assertEqual(reading.Reader(torch).devices(), [])
        self.assertEqual(asked, [])

    def test_what_a_build_does_not_keep_is_absent(self):
        for name in ("reserved_bytes_by_private_pools", "num_device_alloc", "requested_bytes"):
            del torch.state.devices[0][name]
        torch.state.devices[0]["num_ooms"] = -1
        torch._C._cuda_hostMemoryStats = None
        (device,) = reading.Reader(torch).devices()
        for name in ("private_pool_bytes", "graph_pools", "device_allocs_total", "requested_bytes", "ooms_total", "pinned_allocated_bytes", "expandable_segments", "limit_bytes"):
            self.assertNotIn(name, device)

    def private(self, reader):
        """What is told of private pools, by device."""
        return [(device.get("private_pool_bytes"), device.get("graph_pools")) for device in reader.devices()]

    def test_private_pools_before_torch_counted_them(self):
        stats = torch.state.devices[0]
        del stats["reserved_bytes_by_private_pools"]
        reader = reading.Reader(torch)
        self.assertEqual((self.private(reader), torch.state.listed), ([(None, None)], []))  # nobody can say whether stacks are recorded
        reader.history = history.History(torch, reader.ordinals)
        # Of the stand-in's segments 100, 102 and 104 are device 0's: the first in the common pool, two of 206 together in (1, 0).
        self.assertEqual(self.private(reader), [(206, 1)])
        self.assertEqual(self.private(reader), [(206, 1)])
        self.assertEqual(torch.state.listed, [False])  # once, without the trace: no memory has come or gone
        stats["num_device_alloc"] += 1
        torch.state.segments.append({"device": 0, "total_size": 4, "segment_pool_id": (7, 0)})
        self.assertEqual((self.private(reader), torch.state.listed), ([(210, 2)], [False, False]))
        # While stacks are recorded for the collector what is known holds until memory comes or goes; then nothing is.
        torch.state.recorded, reader.history.mine = {}, True
        self.assertEqual(self.private(reader), [(210, 2)])
        stats["num_device_free"] += 1
        self.assertEqual((self.private(reader), len(torch.state.listed)), ([(None, None)], 2))
        torch.state.recorded, reader.history.mine = None, False
        self.assertEqual(self.private(reader), [(210, 2)])
        # The program's own stacks may be of C++, which take minutes to be put into words, also when it has ended.
        torch.state.recorded = {}
        stats["num_device_free"] += 1
        self.private(reader)
        torch.state.recorded = None
        self.assertEqual((self.private(reader), len(torch.state.listed)), ([(None, None)], 3))
        self.assertEqual(torch.touched, [])

    def test_private_pools_that_cost_too_much(self):
        stats = torch.state.devices[0]
        del stats["reserved_bytes_by_private_pools"]
        clock = [0.0]

        def turn(seconds):
            """A reader whose lists take so long."""
            reader = reading.Reader(torch)
            reader.history = history.History(torch, reader.ordinals)
            listed = reader._segments
            reader._segments = lambda: (clock.__setitem__(0, clock[0] + seconds), listed())[1]
            return reader

        with mock.patch.object(reading.time, "thread_time", lambda: clock[0]):
            reader = turn(0.003)
            told = []
            for _ in range(13):  # memory comes all the time
                stats["num_device_alloc"] += 1
                told.append(self.private(reader)[0][1] is not None)
            self.assertEqual(told, [True] + 5 * [False] + [True] + 5 * [False] + [True])  # 0.5 ms a read
            reader = turn(0.006)
            self.assertEqual(self.private(reader), [(206, 1)])
            for _ in range(40):
                stats["num_device_alloc"] += 1
                self.assertEqual(self.private(reader), [(None, None)])  # that was the last
        reader = turn(0)
        stats["active"] = torch.array(5000)
        count = len(torch.state.listed)
        self.assertEqual((self.private(reader), len(torch.state.listed)), ([(None, None)], count))
        stats["active"] = torch.array(5)
        for segments in ([{"device": 0}], None):  # other layouts
            torch.state.segments = segments
            self.assertEqual(self.private(turn(0)), [(None, None)])
        del torch.cuda.memory.memory_snapshot
        self.assertEqual(self.private(reading.Reader(torch)), [(None, None)])

    def test_flat_stats_of_an_old_build(self):
        torch._C = None
        torch.cuda.memory_stats = lambda device: {"reserved_bytes.all.current": 10 * (1 - device), "allocated_bytes.all.current": 4, "num_ooms": 2}
        (device,) = reading.Reader(torch).devices()
        self.assertEqual((device["reserved_bytes"], device["allocated_bytes"], device["ooms_total"]), (10, 4, 2))

    def test_pinned_names_of_the_first_version(self):
        torch.state.host = {"reserved_bytes": torch.stat(9), "allocated_bytes": torch.stat(5), "segment": torch.stat(1)}
        (device,) = reading.Reader(torch).devices()
        self.assertEqual((device["pinned_allocated_bytes"], device["pinned_active_bytes"]), (9, 5))

    def test_unused_devices_are_looked_at_once_in_a_while(self):
        reader, asked = reading.Reader(torch), []
        original = reader._raw
        reader._raw = lambda device: asked.append(device) or original(device)
        for _ in range(reading.SCAN_EVERY):
            reader.devices()
        self.assertEqual(asked.count(1), 1)
        torch.state.devices[1]["reserved_bytes"] = torch.array(77)
        self.assertEqual([d["reserved_bytes"] for d in reader.devices()], [1000, 77])
        torch.state.devices[1]["reserved_bytes"] = torch.array(0)
        self.assertEqual([d["reserved_bytes"] for d in reader.devices()], [1000, 0])  # it was seen: zero is a reading
        self.assertEqual([("pinned_active_bytes" in d) for d in reader.devices()], [True, False])

    def test_limit_of_the_process(self):
        torch.state.fraction = 0.5
        self.assertEqual(reading.Reader(torch).devices()[0]["limit_bytes"], 4 << 30)
        torch.state.contexts = {3}  # asking would create a context on GPU 0
        self.assertNotIn("limit_bytes", reading.Reader(torch).devices()[0])

    def test_everything_raises(self):
        reader = reading.Reader(torch)
        torch.state.broken = True
        self.assertEqual(reader.devices(), [])
        self.assertEqual(reader.short(0), {})
        self.assertEqual(reading.Reader(torch).devices(), [])

    def test_numbers_of_a_failure(self):
        reader = reading.Reader(torch)
        self.assertEqual(reader.short(0), {"allocated_bytes": 600})  # the private pools' free blocks are not known
        torch.state.devices[0]["reserved_bytes_by_private_pools"] = {}
        self.assertEqual(reader.short(0), {"allocated_bytes": 600, "reserved_unallocated_bytes": 400})

    def test_settings(self):
        self.assertEqual(reading.settings({"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "a:2"}), "a:1")
        self.assertEqual(reading.settings({"PYTORCH_ALLOC_CONF": "", "PYTORCH_CUDA_ALLOC_CONF": "a:2"}), "a:2")
        text = "roundup_power2_divisions:[256:1,512:2,>:8], expandable_segments:True,backend:native"
        self.assertEqual(reading.setting(text, "expandable_segments"), "True")
        self.assertEqual(reading.setting(text, "roundup_power2_divisions"), "[256:1,512:2,>:8]")
        self.assertIsNone(reading.setting(text, "512"))
        self.assertIsNone(reading.setting("", "backend"))

    def test_uuids(self):
        plain = "9f1d6a3c-0b7e-4a51-8c2d-000000000000"
        self.assertEqual(reading.device_uuid(plain, 0, {}), "GPU-" + plain)
        self.assertEqual(reading.device_uuid("MIG-" + plain, 0, {}), "MIG-" + plain)
        self.assertEqual(reading.device_uuid(plain, 1, {"CUDA_VISIBLE_DEVICES": "GPU-1,MIG-2"}), "MIG-2")
        self.assertEqual(reading.device_uuid(plain, 0, {"NVIDIA_VISIBLE_DEVICES": "MIG-7"}), "MIG-7")
        self.assertEqual(reading.device_uuid(plain, 0, {"CUDA_VISIBLE_DEVICES": "3"}), "GPU-" + plain)
        self.assertEqual(reading.device_uuid(None, 0, {}), "")
        self.assertEqual(reading.device_uuid("9f1d6a3c", 0, {}), "")

    def test_compiles(self):
        self.assertIsNone(reading.compiles({}))
        utils = type(sys)("torch._dynamo.utils")
        modules = {"torch._dynamo.utils": utils}
        self.assertIsNone(reading.compiles(modules))
        utils.counters = {}
        self.assertEqual(reading.compiles(modules), 0)
        self.assertEqual(utils.counters, {})
        utils.counters = {"stats": {"unique_graphs": 3}}
        self.assertEqual(reading.compiles(modules), 3)

    def test_torch_is_ready(self):
        self.assertIs(reading.torch_if_ready({"torch": torch}), torch)
        self.assertIsNone(reading.torch_if_ready({}))
        self.assertIsNone(reading.torch_if_ready({"torch": type(sys)("torch")}))  # half imported
        torch.state.initialised = False
        self.assertIsNone(reading.torch_if_ready({"torch": torch}))
        self.assertEqual(torch.touched, [])


class Pace(unittest.TestCase):
    def test_multiples_of_the_interval(self):
        pace = watch.Pace()
        self.assertEqual(pace.next(1764470001.25), 1764470005.0)
        self.assertEqual(pace.next(1764470005.0), 1764470010.0)

    def test_slow_reads_double_and_fast_ones_halve(self):
        pace = watch.Pace()
        for want in (10, 20, 40, 60, 60):
            pace.took(0.006)
            self.assertEqual(pace.interval, want)
        for _ in range(watch.FAST_READS - 1):
            pace.took(0.005)
        self.assertEqual(pace.interval, 60)
        pace.took(0.0002)
        self.assertEqual(pace.interval, 30)
        for _ in range(4 * watch.FAST_READS):
            pace.took(0.0002)
        self.assertEqual(pace.interval, 5)

    def test_the_collector_sets_the_base(self):
        pace = watch.Pace()
        pace.took(1)
        pace.want(2.0)
        self.assertEqual(pace.interval, 2.0)


class Texts(unittest.TestCase):
    def test_find(self):
        class OutOfMemoryError(RuntimeError):
            pass

        inner = OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        try:
            try:
                raise inner
            except RuntimeError as e:
                raise ValueError("engine is dead") from e
        except ValueError as outer:
            self.assertIs(watch.find(outer), inner)
        self.assertIsNotNone(watch.find(RuntimeError("CUDA error: out of memory")))
        self.assertIsNotNone(watch.find(RuntimeError("Allocation on device 0 would exceed allowed memory. (out of memory)")))
        self.assertIsNone(watch.find(ValueError("out of patience")))
        self.assertIsNone(watch.find(None))
        circle = ValueError("a")
        circle.__cause__ = circle
        self.assertIsNone(watch.find(circle))

    def test_lines_are_bounded_and_strict(self):
        self.assertIsNone(encode({"a": float("nan")}))
        self.assertIsNone(encode({"a": object()}))
        self.assertIsNone(encode({"a": "x" * MAX_LINE}))
        # Half a pair would be no JSON to the collector, and six bytes for each letter of most scripts would be too long a line.
        self.assertEqual(encode({"a": "\ud800"}), b'{"a":"?"}\n')
        self.assertIsNotNone(encode({"text": "\u5185" * watch.MAX_TEXT}))

    def test_what_comes_meanwhile_is_kept(self):
        w = watch.Watch([])
        w._marked, w._mark = ("busy", ""), (1.0, "busy", "")

        class Meanwhile(tuple):  # compared at the very moment in which the program says idle
            def __getitem__(self, key):
                if isinstance(key, slice):
                    w._mark = (2.0, "quiet", "")
                return super().__getitem__(key)

        w._mark = Meanwhile(w._mark)
        w._tell()
        self.assertEqual(w._mark, (2.0, "quiet", ""))

    def test_bye_though_the_thread_has_taken_the_failures(self):
        w = watch.Watch([])
        w.armed = True
        sent = []
        w._link.send = lambda data, seconds=0: sent.append(data) or True

        class Taken(list):  # there when it is looked at, and gone when it is taken
            def __bool__(self):
                return True

            def popleft(self):
                raise IndexError("pop from an empty deque")

        w._failures = Taken()
        w.bye()
        self.assertEqual(len(sent), 1)
        self.assertIn(b'"bye"', sent[0])


if __name__ == "__main__":
    unittest.main()
