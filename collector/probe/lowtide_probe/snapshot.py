"""Writes the allocator's snapshot as torch does: torch's own function makes it, pickle writes it. It refuses one that would be too
large before it is made, and stops when it takes too much room or time. It opens no file: the descriptor is the collector's."""

import fcntl
import os
import pickle
import stat
import time
from inspect import signature

# Estimates, on the high side: a block is about 100 bytes of pickle, one with a stack some hundred, an entry of the history the same.
BLOCK_BYTES = 256
ENTRY_BYTES = 1024
PIECE = 1024  # objects that are freed in one go
# What is pickled before the file is written to, which lets go of the GIL: pickle alone would write every 64 KiB, and wait as often until
# a busy program gives the GIL back. In between the program gets it when it has waited for its 5 ms, as always.
BUFFER = 4 << 20
WRITE_SECONDS = 1.0  # that writing has at least: what torch has made, however long it took, is not thrown away at once

# What stays free of the disk. A file may wait for its failure for days after the collector has looked.
FREE_BYTES = 1 << 30
FREE_SHARE = 20  # a twentieth
MEMORY = 2  # times its expected size, that the objects of a snapshot need at most


class Unsupported(Exception):
    """This torch, or its allocator, has no such thing."""


class Refused(Exception):
    """It would be more than is allowed."""


class Failed(Exception):
    """It was begun, and broke or was stopped."""


class Passing(Failed):
    """It was stopped by what may be different in a minute."""


class Writer:
    """A file for pickle: at most so many bytes, until the deadline. made is how much of the time is spent already. The file is written to
    when BUFFER bytes are there, and by flush()."""

    def __init__(self, fd, most, seconds, made):
        self.bytes = 0
        self._buffer = bytearray()
        self._fd, self._most, self._seconds, self._made = fd, most, seconds, made
        self._until = time.monotonic() + max(seconds - made, WRITE_SECONDS)

    def write(self, data):
        if self.bytes + len(self._buffer) + len(data) > self._most:
            raise Failed("stopped: more than the %d bytes allowed" % self._most)
        self._buffer += data
        if len(self._buffer) >= BUFFER:
            self.flush()
        return len(data)

    def flush(self):
        rest = memoryview(self._buffer)
        while rest:
            if time.monotonic() > self._until:
                raise Passing("stopped: not ready within the %.3g s allowed (torch took %.3g s to make it, %d bytes are written)" % (self._seconds, self._made, self.bytes))
            sent = os.write(self._fd, rest)
            self.bytes += sent
            rest = rest[sent:]
        self._buffer = bytearray()  # a new one, for the views of the old


def module(torch):
    """torch.cuda.memory, None where there is none. vars(), because torch imports what is asked for otherwise."""
    cuda = vars(torch).get("cuda")
    return None if cuda is None else vars(cuda).get("memory")


def parameters(function):
    """The names of a function's parameters, empty when it does not tell."""
    try:
        return set(signature(function).parameters)
    except (TypeError, ValueError):
        return set()


class Snapshots:
    """Takes snapshots of one process."""

    def __init__(self, torch, reader):
        self._reader = reader
        memory = module(torch)
        names = {} if memory is None else vars(memory)
        self._make = names.get("_snapshot") or names.get("memory_snapshot")
        self._bar = reader.bar

    def _whole(self):
        return self._bar.call(self._make)

    def usable(self, fd):
        """Raises where no snapshot can be written."""
        if not self._reader.native:
            raise Unsupported("the allocator is %s, which keeps no snapshot" % (self._reader.backend or "unknown"))
        if self._make is None:
            raise Unsupported("this torch has no snapshot")
        info = os.fstat(fd)
        # A pipe, say, could keep the thread waiting for ever.
        if not stat.S_ISREG(info.st_mode) or info.st_size or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise Refused("the descriptor is no empty file open for writing")

    def fits(self, fd, most, entries):
        """Raises when a snapshot with so many entries of history is expected to be larger than most, or than the disk has room for."""
        blocks = self._reader.blocks()
        expected = 0  # unknown: the writer counts, too
        if blocks is not None:
            expected = blocks * (ENTRY_BYTES if entries else BLOCK_BYTES) + entries * ENTRY_BYTES
            if expected > most:
                raise Refused("about %d bytes are expected (%d blocks, at most %d entries of history), and %d allowed" % (expected, blocks, entries, most))
        disk = os.fstatvfs(fd)
        free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        if total and free - expected < max(FREE_BYTES, total // FREE_SHARE):  # a memfd has no total
            raise Refused("too little disk is free: %d MiB of %d MiB, and about %d bytes are expected" % (free >> 20, total >> 20, expected))
        memory = available()
        if memory is not None and MEMORY * expected > memory:
            raise Refused("too little memory is free: %d MiB, and %d MiB may be needed to make it" % (memory >> 20, MEMORY * expected >> 20))

    def traced(self):
        """Whether a snapshot has history in it, for builds that do not say whether they record it."""
        tree = self._whole()
        return isinstance(tree, dict) and any(tree.get("device_traces", ()))

    def write(self, fd, most, seconds):
        """Writes a snapshot. What is known about it: its size, its devices, and for how long at most it held the GIL: all the time
        that torch needs to make it, and the time that this thread was running while it was written and freed."""
        began = time.perf_counter()
        tree = self._whole()
        if not isinstance(tree, dict):
            tree = {"segments": tree}  # torch 1: the segments alone
        held = time.perf_counter() - began
        cpu = time.thread_time()
        try:
            writer = Writer(fd, most, seconds, held)
            pickle.Pickler(writer, 4).dump(tree)  # 4 is what every reader of snapshots knows
            writer.flush()
            ordinals = sorted({segment["device"] for segment in tree.get("segments", ()) if "device" in segment})
        finally:
            free(tree)
            held += time.thread_time() - cpu
        devices = {str(i): self._reader.uuid(i) for i in ordinals}
        return {"bytes": writer.bytes, "gil_seconds": round(held, 6), "devices": {i: uuid for i, uuid in devices.items() if uuid}}


def available(root="/"):
    """The bytes of memory that are left on this machine and, with cgroup v2, in this container; None when neither says."""
    left = []
    try:
        with open(os.path.join(root, "proc/meminfo"), "rb") as f:
            left += [int(line.split()[1]) << 10 for line in f if line.startswith(b"MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    try:
        said = {}
        for name in ("max", "current", "stat"):
            with open(os.path.join(root, "sys/fs/cgroup/memory." + name), "rb") as f:
                said[name] = f.read(1 << 16)
        cache = [int(line.split()[1]) for line in said["stat"].splitlines() if line.startswith(b"inactive_file ")]
        left.append(max(int(said["max"]) - int(said["current"]) + sum(cache), 0))  # without a limit it says max, which is no number
    except (OSError, ValueError, IndexError):
        pass
    return min(left) if left else None


def free(tree):
    """Frees a snapshot piece by piece: in one go, millions of objects would hold the GIL."""
    try:
        for segment in tree.get("segments", ()):
            shrink(segment.get("blocks"))
        for trace in tree.get("device_traces", ()):
            shrink(trace)
    except Exception:
        pass  # another layout: it goes with its last reference


def shrink(items):
    while isinstance(items, list) and items:
        del items[-PIECE:]
