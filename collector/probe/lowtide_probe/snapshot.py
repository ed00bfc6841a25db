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
PIECE = 1024


class Unsupported(Exception):
    """This torch, or its allocator, has no such thing."""


class Refused(Exception):
    """It would be more than is allowed."""


class Failed(Exception):
    """It was begun, and broke or was stopped."""


class Writer:
    """A file for pickle: writes at most so many bytes, until the deadline. Every write lets go of the GIL."""

    def __init__(self, fd, most, seconds):
        self.bytes = 0
        self._fd, self._most, self._seconds = fd, most, seconds
        self._until = time.monotonic() + seconds

    def write(self, data):
        rest = memoryview(data)
        if self.bytes + len(rest) > self._most:
            raise Failed("stopped: more than the %d bytes allowed" % self._most)
        while rest:
            if time.monotonic() > self._until:
                raise Failed("stopped: not written within %g s" % self._seconds)
            sent = os.write(self._fd, rest[: 1 << 20])
            self.bytes += sent
            rest = rest[sent:]
        return len(data)


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
        self._whole = names.get("_snapshot") or names.get("memory_snapshot")

    def usable(self, fd):
        """Raises where no snapshot can be written."""
        if not self._reader.native:
            raise Unsupported("the allocator is %s, which keeps no snapshot" % (self._reader.backend or "unknown"))
        if self._whole is None:
            raise Unsupported("this torch has no snapshot")
        info = os.fstat(fd)
        # A pipe, say, could keep the thread waiting for ever.
        if not stat.S_ISREG(info.st_mode) or info.st_size or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise Refused("the descriptor is no empty file open for writing")

    def fits(self, most, entries):
        """Raises when a snapshot with so many entries of history is expected to be larger than most."""
        blocks = self._reader.blocks()
        if blocks is None:
            return  # the writer counts, too
        expected = blocks * (ENTRY_BYTES if entries else BLOCK_BYTES) + entries * ENTRY_BYTES
        if expected > most:
            raise Refused("about %d bytes are expected (%d blocks, at most %d entries of history), and %d allowed" % (expected, blocks, entries, most))

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
            writer = Writer(fd, most, max(seconds - held, 0.0))
            pickle.Pickler(writer, 4).dump(tree)  # 4 is what every reader of snapshots knows
            ordinals = sorted({segment["device"] for segment in tree.get("segments", ()) if "device" in segment})
        finally:
            free(tree)
            held += time.thread_time() - cpu
        devices = {str(i): self._reader.uuid(i) for i in ordinals}
        return {"bytes": writer.bytes, "gil_seconds": round(held, 6), "devices": {i: uuid for i, uuid in devices.items() if uuid}}


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
