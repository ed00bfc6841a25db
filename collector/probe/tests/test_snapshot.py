"""Snapshots, history and census of one process, with torch's stand-in in the forms that its versions have."""

import gc
import importlib
import os
import pickle
import sys
import time
import unittest
from unittest import mock

import stage

sys.path[:0] = [stage.FAKE, stage.PROBE]
import torch  # noqa: E402  the stand-in

from lowtide_probe import census, history, reading, snapshot  # noqa: E402

UUID = "GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000"


class Case(stage.Case):
    def setUp(self):
        super().setUp()
        global torch
        for name in [n for n in sys.modules if n == "torch" or n.startswith("torch.")]:
            del sys.modules[name]
        torch = importlib.import_module("torch")
        torch.cuda.init()
        self.addCleanup(lambda: self.assertEqual(torch.touched, []))


class Snapshots(Case):
    def snapshots(self):
        reader = reading.Reader(torch)
        reader.devices()
        return snapshot.Snapshots(torch, reader)

    def test_what_torch_says_is_what_is_written(self):
        torch.state.recorded = {}
        torch.state.blocks = 5000
        fd, path = self.file()
        said = self.snapshots().write(fd, 10 << 20, 10)
        self.assertEqual(self.unpickle(path), torch.cuda.memory._snapshot())
        with open(path, "rb") as f:
            self.assertEqual(f.read(2), b"\x80\x04")  # protocol 4
        self.assertEqual((said["bytes"], said["devices"]), (os.path.getsize(path), {"0": UUID}))
        self.assertGreater(said["gil_seconds"], 0)

    def test_no_more_bytes_than_allowed(self):
        torch.state.blocks = 50000
        fd, path = self.file()
        with self.assertRaisesRegex(snapshot.Failed, "more than the 200000 bytes allowed"):
            self.snapshots().write(fd, 200000, 10)
        self.assertLessEqual(os.path.getsize(path), 200000)

    def test_stopped_in_the_midst_of_it(self):
        torch.state.blocks = 20000  # more than a MiB
        fd, path = self.file()
        with mock.patch.object(snapshot, "BUFFER", 100000), self.assertRaisesRegex(snapshot.Failed, "more than the 450000 bytes allowed"):
            self.snapshots().write(fd, 450000, 10)
        self.assertLessEqual(os.path.getsize(path), 450000)
        self.assertGreater(os.path.getsize(path), 300000)

    def test_few_writes(self):
        torch.state.recorded = {}
        torch.state.blocks = 100000
        fd, path = self.file()
        sizes, write = [], os.write
        with mock.patch.object(os, "write", lambda fd, data: sizes.append(len(data)) or write(fd, data)):
            said = self.snapshots().write(fd, 100 << 20, 10)
        self.assertEqual(said["bytes"], os.path.getsize(path))
        self.assertEqual(sum(sizes), os.path.getsize(path))
        self.assertEqual(self.unpickle(path), torch.cuda.memory._snapshot())
        self.assertLessEqual(len(sizes), 1 + sum(sizes) // (3 << 20))

    def test_writes_that_the_disk_takes_in_part(self):
        fd, path = self.file()
        write = os.write
        with mock.patch.object(os, "write", lambda fd, data: write(fd, data[:7])):
            self.snapshots().write(fd, 1 << 20, 10)
        self.assertEqual(self.unpickle(path), torch.cuda.memory._snapshot())

    def test_no_more_time_than_allowed(self):
        fd, path = self.file()
        self.snapshots().write(fd, 1 << 20, 0)  # made it is, and writing is a matter of microseconds
        fd, path = self.file("late")
        with mock.patch.object(snapshot, "WRITE_SECONDS", 0), self.assertRaisesRegex(snapshot.Passing, r"not ready within the 0 s allowed \(torch took \S+ s to make it, 0 bytes are written\)"):
            self.snapshots().write(fd, 1 << 20, 0)
        self.assertEqual(os.path.getsize(path), 0)

    def test_a_disk_with_little_room(self):
        snapshots, fd = self.snapshots(), self.file()[0]
        for free, total, ok in ((2 << 30, 10 << 30, True), (1 << 30, 10 << 30, False), (2 << 30, 100 << 30, False), (6 << 30, 100 << 30, True), (0, 0, True)):
            disk = mock.Mock(f_bavail=free >> 12, f_frsize=4096, f_blocks=total >> 12)
            with mock.patch.object(os, "fstatvfs", lambda fd: disk):
                if ok:
                    snapshots.fits(fd, 1 << 20, 0)
                    continue
                with self.assertRaisesRegex(snapshot.Refused, "too little disk is free: %d MiB of %d MiB, and about 25600 bytes are expected" % (free >> 20, total >> 20)):
                    snapshots.fits(fd, 1 << 20, 0)

    def test_a_full_disk(self):
        full = os.open("/dev/full", os.O_WRONLY)
        self.addCleanup(os.close, full)
        with self.assertRaisesRegex(OSError, "No space left"):
            self.snapshots().write(full, 1 << 20, 10)

    def test_the_descriptor(self):
        snapshots = self.snapshots()
        fd, path = self.file()
        snapshots.usable(fd)
        self.assertIsNone(snapshots.usable(os.memfd_create("m")))
        os.write(fd, b"there is something in it")
        reader, writer = os.pipe()
        for bad in (fd, writer, os.open(path, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY)):
            with self.assertRaisesRegex(snapshot.Refused, "no empty file open for writing"):
                snapshots.usable(bad)

    def test_little_memory(self):
        snapshots, fd = self.snapshots(), self.file()[0]
        for memory, ok in ((51200, True), (51199, False), (None, True)):  # twice the 25600 bytes that 100 blocks are expected to be
            with mock.patch.object(snapshot, "available", lambda: memory):
                if ok:
                    snapshots.fits(fd, 1 << 20, 0)
                    continue
                with self.assertRaisesRegex(snapshot.Refused, "too little memory is free: 0 MiB, and 0 MiB may be needed"):
                    snapshots.fits(fd, 1 << 20, 0)

    def test_memory_that_is_left(self):
        def root(name, **files):
            for path, text in files.items():
                path = os.path.join(self.folder, name, path.replace("__", "/").replace("memory_", "memory."))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as f:
                    f.write(text)
            return os.path.join(self.folder, name)

        meminfo = {"proc__meminfo": "MemTotal:       16384 kB\nMemAvailable:    1000 kB\n"}
        group = {"sys__fs__cgroup__memory_max": "900000\n", "sys__fs__cgroup__memory_current": "700000\n", "sys__fs__cgroup__memory_stat": "anon 5\ninactive_file 50000\n"}
        self.assertIsNone(snapshot.available(root("nothing")))
        self.assertEqual(snapshot.available(root("host", **meminfo)), 1024000)
        self.assertEqual(snapshot.available(root("both", **meminfo, **group)), 250000)
        self.assertEqual(snapshot.available(root("unlimited", **meminfo, **dict(group, sys__fs__cgroup__memory_max="max\n"))), 1024000)
        self.assertEqual(snapshot.available(root("full", **dict(group, sys__fs__cgroup__memory_current="990000\n"))), 0)
        self.assertEqual(snapshot.available(root("broken", proc__meminfo="MemAvailable:\n")), None)

    def test_refused_by_its_expected_size(self):
        # The stand-in has 90 active blocks, 7 segments and 3 holes: 100 blocks.
        snapshots, fd = self.snapshots(), os.memfd_create("m")
        self.addCleanup(os.close, fd)
        snapshots.fits(fd, 25600, 0)
        with self.assertRaisesRegex(snapshot.Refused, r"about 25600 bytes are expected \(100 blocks, at most 0 entries of history\), and 25599 allowed"):
            snapshots.fits(fd, 25599, 0)
        snapshots.fits(fd, 1024 * 50100, 50000)
        with self.assertRaisesRegex(snapshot.Refused, "50000 entries"):
            snapshots.fits(fd, 1024 * 50100 - 1, 50000)

    def test_expandable_segments_count_no_holes(self):
        with mock.patch.dict(os.environ, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"):
            snapshots = self.snapshots()
        with self.assertRaisesRegex(snapshot.Refused, "187 blocks"):  # 90 active, as many holes at most, 7 segments
            snapshots.fits(self.file()[0], 1, 0)

    def test_counters_that_a_build_does_not_keep(self):
        del torch.state.devices[0]["active"]
        self.snapshots().fits(self.file()[0], 1, 0)  # the writer still counts

    def test_other_allocators(self):
        fd, _ = self.file()
        torch.state.backend = "cudaMallocAsync"
        with self.assertRaisesRegex(snapshot.Unsupported, "the allocator is cudaMallocAsync, which keeps no snapshot"):
            self.snapshots().usable(fd)

    def test_torch_of_old(self):
        fd, path = self.file()
        del torch.cuda.memory._snapshot
        torch.cuda.memory.memory_snapshot = lambda: [{"device": 0, "blocks": []}]  # torch 1: the segments alone
        self.snapshots().write(fd, 1 << 20, 10)
        self.assertEqual(self.unpickle(path), {"segments": [{"device": 0, "blocks": []}]})
        del torch.cuda.memory.memory_snapshot
        with self.assertRaisesRegex(snapshot.Unsupported, "this torch has no snapshot"):
            self.snapshots().usable(self.file("other")[0])
        del torch.cuda.memory
        with self.assertRaisesRegex(snapshot.Unsupported, "this torch has no snapshot"):
            self.snapshots().usable(self.file("third")[0])

    def test_other_layouts_are_freed_too(self):
        for tree in ({}, {"segments": None}, {"segments": [3], "device_traces": {}}, {"segments": [{}], "device_traces": [()]}):
            snapshot.free(tree)
        tree = {"segments": [{"blocks": [1] * 5000}, {"blocks": [2]}], "device_traces": [[3] * 2000, []]}
        snapshot.free(tree)
        self.assertEqual(tree, {"segments": [{"blocks": []}, {"blocks": []}], "device_traces": [[], []]})


class Histories(Case):
    def history(self, ordinals=(0,)):
        return history.History(torch, lambda: list(ordinals))

    def test_on_and_off(self):
        switch = self.history(ordinals=(0, 1))
        self.assertIs(switch.recorded(), False)
        switch.on(50000)
        self.assertEqual((switch.mine, switch.recorded(), switch.entries), (True, True, 50000))
        switch.off()
        switch.off()
        # Stacks of Python only, and only of what is live.
        self.assertEqual(torch.state.recordings, [("all", {"context": "state", "stacks": "python", "max_entries": 50000}), (None, {})])
        self.assertEqual((switch.mine, switch.recorded()), (False, False))

    def test_a_wrapper_that_does_not_tell(self):
        del torch.cuda.memory._record_memory_history.__signature__
        self.history().on(9)
        self.assertEqual(torch.state.recordings, [("all", {"context": "state", "stacks": "python", "max_entries": 9})])

    def test_the_old_form(self):
        calls = []

        def record(enabled, record_context=True, trace_alloc_max_entries=1, trace_alloc_record_context=False, device=None, record_context_cpp=False):
            calls.append((enabled, record_context, trace_alloc_max_entries, trace_alloc_record_context, device, record_context_cpp))

        torch.cuda.memory._record_memory_history = record
        switch = self.history()
        switch.on(1000)
        switch.off()
        self.assertEqual(calls, [(True, True, 1000, False, None, False), (False, True, 1, False, None, False)])
        with self.assertRaisesRegex(snapshot.Unsupported, "of one device only"):
            self.history(ordinals=(1,)).on(1000)

    def test_without_a_bound(self):
        torch.cuda.memory._record_memory_history = lambda enabled, device=None: self.fail("turned on")
        with self.assertRaisesRegex(snapshot.Unsupported, "has no bound"):
            self.history().on(1000)
        del torch.cuda.memory._record_memory_history
        with self.assertRaisesRegex(snapshot.Unsupported, "records no history"):
            self.history().on(1000)

    def test_half_on(self):
        def record(*args, **options):
            torch.state.recordings.append(args)
            if args[0]:
                raise RuntimeError("on one device of two")

        record.__signature__ = torch.cuda.memory._record_memory_history.__signature__
        torch.cuda.memory._record_memory_history = record
        switch = self.history()
        with self.assertRaisesRegex(RuntimeError, "one device of two"):
            switch.on(10)
        switch.off()
        self.assertEqual(torch.state.recordings, [("all",), (None,)])

    def test_never_on_after_the_end(self):
        switch = self.history()
        switch.on(10)
        switch.end()
        switch.end()
        with self.assertRaisesRegex(snapshot.Unsupported, "the process ends"):
            switch.on(10)
        self.assertEqual([first for first, _ in torch.state.recordings], ["all", None])

    def test_a_build_that_does_not_say(self):
        torch._C._cuda_isHistoryEnabled = None
        self.assertIsNone(self.history().recorded())


class Strange:
    """What a census must not touch: everything that is asked of it raises, and says so."""

    touched = []

    def __getattribute__(self, name):
        Strange.touched.append(name)
        raise RuntimeError(name)


class Census(Case):
    def count(self, seconds=10.0):
        said = census.count(torch, seconds)
        self.assertGreater(said.pop("took_seconds"), 0)
        return said

    def test_tensors_with_a_grad_fn(self):
        gc.unfreeze()
        kept = [torch.Tensor(1000, 64), torch.Tensor(1000, 64), torch.Tensor(2000, 32),  # two of one storage
            torch.Tensor(3000, 16, is_cuda=False), torch.Tensor(4000, 8, is_leaf=True)]
        self.assertEqual(self.count(), {"tensors": 3, "bytes": 96, "complete": True})
        kept.clear()
        self.assertEqual(self.count(), {"tensors": 0, "bytes": 0, "complete": True})

    def test_nothing_of_the_program_s_runs(self):
        class Own(torch.Tensor):
            @property
            def is_cuda(self):
                Strange.touched.append("is_cuda")

        kept = [Strange(), Own(), [Strange]]
        self.assertEqual(self.count()["tensors"], 0)
        self.assertEqual(Strange.touched, [])
        del kept

    def test_a_tensor_that_raises(self):
        kept = torch.Tensor(1, 10)
        with mock.patch.object(torch.Tensor, "untyped_storage", side_effect=RuntimeError("no storage")):
            self.assertEqual(self.count(), {"tensors": 1, "bytes": 0, "complete": True})
        with mock.patch.object(torch.Tensor, "is_leaf", new_callable=mock.PropertyMock, side_effect=RuntimeError("gone")):
            self.assertEqual(self.count()["tensors"], 0)
        del kept

    def test_within_its_time(self):
        kept = [[] for _ in range(300000)]
        began = time.monotonic()
        said = self.count(seconds=0.001)
        self.assertFalse(said["complete"])
        self.assertLess(time.monotonic() - began, 1)
        del kept

    def test_what_was_frozen_is_not_seen(self):
        kept = torch.Tensor(1, 10)
        gc.freeze()
        self.addCleanup(gc.unfreeze)
        self.assertEqual(self.count(), {"tensors": 0, "bytes": 0, "complete": False})
        del kept

    def test_nothing_is_kept(self):
        class Watched(torch.Tensor):
            pass

        kept = [Watched()]
        before = sys.getrefcount(kept[0])
        self.count(seconds=0)
        self.assertEqual(sys.getrefcount(kept[0]), before)


if __name__ == "__main__":
    unittest.main()
