"""What the flags plant: each fault is a small class with the engine's hooks, and PlantedFaults is all that were asked for.

It owns when a fault acts and what it counts. What it does to memory is model.py's and memory.py's, so that everything here runs
without torch.
"""

import os
import sys
import threading
import time

from engine import Faults

MIB = 1 << 20
STACK = 128 << 10  # bytes of a parked thread's stack: its own memory must not look like a leak of host memory


def log(text):
    """One line to stderr, with the wall-clock time."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    print("%s [worker pid=%d] %s" % (stamp, os.getpid(), text), file=sys.stderr, flush=True)


class Retain(Faults):
    """Keeps a tensor of every aborted request, which nobody will ever read."""

    def __init__(self, model, size):
        self._model, self._size = model, size

    def aborted(self, request):
        self._model.keep(self._size)


class Native(Faults):
    """Takes memory outside torch for every aborted request, as an extension with an allocator of its own would."""

    def __init__(self, driver, size):
        self.taken, self.failures = 0, 0
        self._driver, self._size = driver, size

    def aborted(self, request):
        try:
            self._driver.allocate(self._size)
            self.taken += self._size
        except RuntimeError as error:
            self.failures += 1
            log("ERROR native allocation of %d MiB: %s" % (self._size // MIB, error))


class HoldBlocks(Faults):
    """A share of aborted requests keeps its KV blocks; evenly, without a draw: 0.25 is every fourth abort."""

    def __init__(self, share):
        self._share, self._owed = share, 0.0

    def holds_blocks(self):
        self._owed += self._share
        if self._owed < 1:
            return False
        self._owed -= 1
        return True


class At(Faults):
    """Acts once at each of some seconds."""

    def __init__(self, seconds, act):
        self._due, self._act = sorted(seconds), act

    def due(self, now):
        """Whether a second has come at which it did not act yet."""
        return bool(self._due) and now >= self._due[0]

    def tick(self, now):
        if self.due(now):
            self._due.pop(0)
            self._act()


class Fragment(At):
    """Leaves the cap's worth of memory in pieces, then asks for an eighth of it at once: less than is free, more than is free anywhere."""

    def __init__(self, memory, ask, seconds, limit):
        At.__init__(self, seconds, self._ask)
        self._memory, self._fits_nowhere, self._limit = memory, ask, limit

    def _ask(self):
        holes = self._memory.fragment(self._limit)
        log("INFO the reserve is in pieces: %d more holes of 62 MiB" % holes)
        self._fits_nowhere(self._limit // 8)


class EveryAbort(Faults):
    """Does something at every so-and-so-many-th aborted request."""

    def __init__(self, act, every=1):
        self._act, self._every, self._seen = act, every, 0

    def aborted(self, request):
        self._seen += 1
        if self._seen % self._every == 0:
            self._act()


class Behind(EveryAbort):
    """Drops a tensor behind a stream that stands still, and says at each turn that the engine gets on."""

    def __init__(self, backlog, size):
        EveryAbort.__init__(self, lambda: backlog.send(size))
        self._backlog = backlog

    def tick(self, now):
        self._backlog.beat()

    def close(self):
        self._backlog.close()


class Hang(At):
    """From a second on no step returns."""

    def __init__(self, seconds):
        At.__init__(self, [seconds], self._hang)
        self._hung = False

    def _hang(self):
        self._hung = True

    def hangs(self):
        return self._hung


class Graphs(EveryAbort):
    """Captures a graph for a shape that was not there before, at every third abort: each is a little larger than the one before."""

    def __init__(self, memory, size):
        EveryAbort.__init__(self, self._capture, 3)
        self._memory, self._size, self._shapes = memory, size, 0

    def _capture(self):
        self._shapes += 1
        self._memory.capture(self._size + 4096 * self._shapes)


class HostMemory(EveryAbort):
    """Keeps what was read and written of host memory."""

    def __init__(self, size):
        EveryAbort.__init__(self, self._keep)
        self.kept = []
        self._size = size

    def _keep(self):
        self.kept.append(bytearray(b"\x01") * self._size)  # written, or the kernel would not back it with pages


class Files(EveryAbort):
    """Opens files and never closes them."""

    def __init__(self, count):
        EveryAbort.__init__(self, self._open)
        self.open = []
        self._count = count

    def _open(self):
        for _ in range(self._count):
            self.open.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def close(self):
        while self.open:
            os.close(self.open.pop())


class Threads(EveryAbort):
    """Starts threads that wait for a word that never comes."""

    def __init__(self, count):
        EveryAbort.__init__(self, self._start)
        self.parked = []
        self._count, self._word = count, threading.Event()

    def _start(self):
        before = threading.stack_size(STACK)
        try:
            for _ in range(self._count):
                thread = threading.Thread(target=self._word.wait, name="waiter", daemon=True)
                thread.start()
                self.parked.append(thread)
        finally:
            threading.stack_size(before)

    def close(self):
        self._word.set()
        while self.parked:
            self.parked.pop().join()


class Cache(Faults):
    """Healthy: remembers something of every finished request, up to a number of entries."""

    def __init__(self, memory, size, entries):
        self._memory, self._size, self._entries = memory, size, entries

    def finished(self, request):
        self._memory.remember(request.number, self._size, self._entries)


class PlantedFaults(Faults):
    """What the flags plant. limit is the bytes that never fit, driver the way to memory outside torch, backlog what --backlog-mib goes
    to; tell(name) hears of each fault's first effect."""

    def __init__(self, options, model, driver, limit, memory=None, tell=None, backlog=None):
        self._tell, self._told = tell or (lambda name: None), set()
        self._backlog = backlog
        ask = lambda: model.ask(options.oom_mib * MIB if options.oom_mib else limit)
        oversize = lambda: model.oversize(model.oversize_tokens(limit))
        self._native = Native(driver, options.leak_mib * MIB) if driver is not None and options.leak == "native" else None
        self._all = [(name, fault) for name, fault in (
            ("retain", options.retain_aborted and Retain(model, options.retain_mib * MIB)),
            ("native", self._native),
            ("kv", options.hold_kv > 0 and HoldBlocks(options.hold_kv)),
            ("oom", options.oom_at_seconds and At(options.oom_at_seconds, ask)),
            ("oversize", options.oversize_at_seconds and At(options.oversize_at_seconds, oversize)),
            ("fragment", options.fragment_at_seconds and Fragment(memory, model.ask, options.fragment_at_seconds, limit)),
            ("backlog", options.backlog_mib and Behind(backlog, options.backlog_mib * MIB)),
            ("hang", options.hang_at_seconds is not None and Hang(options.hang_at_seconds)),
            ("graphs", options.graph_mib and Graphs(memory, options.graph_mib * MIB)),
            ("pinned", options.pin_mib and EveryAbort(lambda: memory.pin(options.pin_mib * MIB))),
            ("host", options.host_mib and HostMemory(options.host_mib * MIB)),
            ("files", options.leak_files and Files(options.leak_files)),
            ("threads", options.leak_threads and Threads(options.leak_threads)),
            ("cache", options.cache_mib and Cache(memory, options.cache_mib * MIB, options.cache_entries)),
        ) if fault]

    @property
    def native_bytes(self):
        """Bytes taken outside torch."""
        return self._native.taken if self._native else 0

    @property
    def native_failures(self):
        """How often there was none left."""
        return self._native.failures if self._native else 0

    @property
    def backlog_releases(self):
        """How often the stream that stands still had to be let go."""
        return self._backlog.releases if self._backlog is not None else 0

    def _each(self, act, happened=lambda fault: True):
        for name, fault in self._all:
            first = name not in self._told and happened(fault)
            if first:  # told before it acts: what it does may raise
                self._told.add(name)
                self._tell(name)
            act(fault)

    def aborted(self, request):
        self._each(lambda fault: fault.aborted(request), acts_on("aborted"))

    def finished(self, request):
        self._each(lambda fault: fault.finished(request), acts_on("finished"))

    def holds_blocks(self):
        held = False
        for name, fault in self._all:
            if fault.holds_blocks():
                held = True
                if name not in self._told:
                    self._told.add(name)
                    self._tell(name)
        return held

    def hangs(self):
        return any([fault.hangs() for _, fault in self._all])

    def tick(self, now):
        self._each(lambda fault: fault.tick(now), lambda fault: isinstance(fault, At) and fault.due(now))

    def close(self):
        for _, fault in self._all:
            fault.close()


def acts_on(hook):
    """Whether a fault does something at that hook of the engine."""
    return lambda fault: getattr(type(fault), hook) is not getattr(Faults, hook)
