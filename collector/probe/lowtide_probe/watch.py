"""The life of the probe in one process: wait for torch and CUDA, then read, tell of failures and marks, and say bye. It owns the
thread and every hook. It refuses to let an exception out of either."""

import atexit
import collections
import queue
import signal
import sys
import threading
import time
import weakref

import lowtide_probe
from lowtide_probe import reading
from lowtide_probe.evidence import Evidence
from lowtide_probe.link import Link, encode

POLL_SECONDS = 1.0  # between two looks whether CUDA is initialised
LISTEN_SECONDS = 1.0  # between two looks whether the collector asks for something, or is gone
SLOW_SECONDS = 0.005  # a read that takes longer doubles the interval: it may have held up the program
SLOWEST_SECONDS = 60.0
FAST_READS = 12  # in a row, until a doubled interval is halved
MARK_SECONDS = 0.5  # between two marks; the newest one in between holds
BYE_SECONDS = 0.2
KEEP_SECONDS = 600.0  # a failure that could not be told for longer is forgotten
SAME_SECONDS = 10.0  # an exception without a weak reference is not told again for so long
MAX_TEXT = 16 * 1024

# A fault of the thread itself: blocked, it would end the program without a word of faulthandler's.
FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGABRT"}


class Wake:
    """Ends the thread's wait. An Event would not do: its lock is held while it is set, and a signal handler of the program that
    calls at that moment, in the same thread, would wait for it for ever. SimpleQueue.put is reentrant."""

    def __init__(self):
        self._queue = queue.SimpleQueue()

    def set(self):
        if self._queue.empty():
            self._queue.put(None)

    def wait(self, seconds):
        """Waits that long at most, and takes back what was set."""
        try:
            self._queue.get(timeout=seconds)
            while True:
                self._queue.get_nowait()
        except queue.Empty:
            pass


class Pace:
    """When to read: at multiples of the interval in wall-clock time, so that all of a host are read in the same moment."""

    def __init__(self):
        self.base = self.interval = 5.0
        self._fast = 0

    def want(self, base):
        if base != self.base:
            self.base = self.interval = base
            self._fast = 0

    def took(self, seconds):
        if seconds > SLOW_SECONDS:
            self.interval = max(self.base, min(self.interval * 2, SLOWEST_SECONDS))
            self._fast = 0
            return
        self._fast += 1
        if self._fast >= FAST_READS and self.interval > self.base:
            self.interval = max(self.base, self.interval / 2)
            self._fast = 0

    def next(self, now):
        """The next time to read, after now."""
        return (now // self.interval + 1) * self.interval


class Watch:
    """One process's probe. `armed` is True once CUDA was found initialised."""

    def __init__(self, paths):
        self.armed = False
        self._link = Link(paths)
        self._pace = Pace()
        self._wake = Wake()
        self._failures = collections.deque(maxlen=64)  # (monotonic time, encoded line)
        self._mark = None  # the newest that is not told
        self._marked = ("", "")  # the last that was told
        self._mark_at = 0.0
        self._reader = None
        self._evidence = None
        self._torch = None
        self._hello = None
        self._told = None
        self._exit_code = None
        self._texts = collections.deque(maxlen=8)  # the exceptions that were told: weak reference, id, text, when
        self._bye = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="lowtide-probe", daemon=True)

    def start(self):
        self._thread.start()

    def abandon(self):
        """In a forked child: the connection is the parent's, and so are the hooks' answers."""
        self._abandoned = True
        if self._evidence is not None:
            self._evidence.abandon()
        self._link.close()

    # The thread.

    def _run(self):
        try:
            # The program's signals are for its own threads: one that it has blocked to wait for it must not end up here.
            signal.pthread_sigmask(signal.SIG_BLOCK, [s for s in signal.valid_signals() if getattr(s, "name", "") not in FAULTS])
        except Exception:
            pass
        try:
            while self._torch is None:
                try:
                    self._torch = reading.torch_if_ready()
                except Exception:
                    pass  # a module half imported: look again
                if self._torch is None:
                    self._wake.wait(POLL_SECONDS)
            self._arm()
        except Exception:
            return
        due = self._pace.next(time.time())
        while not self._bye:
            try:
                due = self._turn(due)
            except Exception:
                self._wake.wait(POLL_SECONDS)  # whatever broke must not make this thread spin

    def _turn(self, due):
        if self._link.connect():
            if self._told is None or self._told[0] != self._link.session:
                self._greet()
                self._pace.want(self._link.interval)
                due = self._pace.next(time.time())
            self._tell()
        self._wake.wait(self._pause(due))
        alive = self._link.alive()
        try:
            self._evidence.turn()
        except Exception:
            pass
        if not alive:
            # Nobody to tell: the program is not read either. The next attempt is not before a second.
            return self._pace.next(time.time())
        self._tell()
        now = time.time()
        # A clock that was set back leaves due far ahead.
        due = min(due, now + self._pace.interval)
        if now < due:
            return due
        self._read(now)
        return self._pace.next(now)

    def _pause(self, due):
        if not self._link.connected:
            return POLL_SECONDS
        pause = min(max(due - time.time(), 0.0), self._pace.interval, LISTEN_SECONDS)
        if self._mark is not None:
            pause = min(pause, max(self._mark_at + MARK_SECONDS - time.monotonic(), 0.01))
        return pause

    def _arm(self):
        self._reader = reading.Reader(self._torch)
        self._evidence = Evidence(self._torch, self._reader, self._link)
        if self._reader.native:
            attach = getattr(getattr(self._torch, "_C", None), "_cuda_attach_out_of_memory_observer", None)
            if attach is not None:
                try:
                    attach(self._observe)
                except Exception:
                    pass
        self._hook()
        self.armed = True

    def _greet(self):
        """Say hello on a new connection, and again when something of it has changed."""
        said = reading.hello(lowtide_probe.__version__, self._torch, self._reader)
        told = (self._link.session, said)
        data = encode(said)
        if told != self._told and data is not None and self._link.send(data):
            self._told = told

    def _tell(self):
        """Send the failures, oldest first, and the newest mark."""
        self._link.flush()
        while self._failures and self._link.connected:
            at, data = self._failures.popleft()  # first, so that bye() does not send it again
            if time.monotonic() - at < KEEP_SECONDS and not self._link.send(data):
                self._failures.appendleft((at, data))
                return
        mark = self._mark
        if mark is None or time.monotonic() - self._mark_at < MARK_SECONDS:
            return
        if mark[1:] == self._marked:  # back where it was
            if self._mark is mark:  # not one that has come meanwhile
                self._mark = None
            return
        line = {"v": 1, "kind": "mark", "time": mark[0], "mark": mark[1], "name": mark[2]}
        if self._link.send(encode(line) or b""):
            self._marked, self._mark_at = mark[1:], time.monotonic()
            if self._mark is mark:
                self._mark = None

    def _read(self, now):
        began, cpu = time.perf_counter(), time.thread_time()
        devices = self._reader.devices()
        compiles = reading.compiles()
        took, cpu = time.perf_counter() - began, time.thread_time() - cpu
        line = {
            "v": 1,
            "kind": "read",
            "time": now,
            "took_seconds": round(took, 7),
            "cpu_seconds": round(cpu, 7),
            "interval_seconds": self._pace.interval,
            "devices": devices,
        }
        if compiles is not None:
            line["compiles_total"] = compiles
        self._pace.took(took)
        line["interval_seconds"] = self._pace.interval
        data = encode(line)
        if data is not None:
            self._link.send(data)
        if self._reader.scanned:
            self._greet()

    # What the program's threads call.

    def mark(self, kind, name):
        if self._abandoned:
            return
        pending = self._mark
        last = self._marked if pending is None else pending[1:]
        mark = (kind, str(name)[:128])
        if mark == last:
            return
        self._mark = (time.time(),) + mark
        if pending is None:  # otherwise the thread knows
            self._wake.set()

    def _observe(self, device, alloc, limit, free):
        """PyTorch's callback, on the thread whose allocation failed. What it raised would replace the program's exception."""
        try:
            if self._abandoned:
                return
            line = {"v": 1, "kind": "oom", "time": time.time(), "source": "observer"}
            uuid = self._reader.uuid(device)
            if uuid:
                line["gpu_uuid"] = uuid
            for name, value in (("requested_bytes", alloc), ("free_bytes", free)):
                if reading.number(value) is not None:
                    line[name] = value
            total = self._reader.total(device)
            # The third number is the limit that was set for the process, or else all of the device, which is no limit.
            if total is not None and reading.number(limit) is not None and limit < total - total // 128:
                line["limit_bytes"] = limit
            line.update(self._reader.short(device))
            self._urgent(line)
            self._evidence.failed()
        except Exception:
            pass

    def text(self, error, checked=True):
        """Tell the text of an exception, when it says (or the caller knows) that memory ran out."""
        if self._abandoned or not self.armed:
            return
        found = find(error) if isinstance(error, BaseException) else None
        if found is None and not checked and isinstance(error, (str, BaseException)):
            found = error
        if found is None:
            return
        text = found if isinstance(found, str) else "%s: %s" % (type(found).__name__, found)
        if not isinstance(found, str):
            if self._told_before(found, text):
                return  # it was caught and told, and then raised again
            try:
                reference = weakref.ref(found)
            except TypeError:
                reference = None  # the built-in exceptions take none
            self._texts.append((reference, id(found), text, time.monotonic()))
        self._urgent({"v": 1, "kind": "oom", "time": time.time(), "source": "exception", "text": text[:MAX_TEXT]})

    def _told_before(self, error, text):
        for reference, number, said, at in list(self._texts):
            if reference is not None and reference() is error:
                return True
            if reference is None and number == id(error) and said == text and time.monotonic() - at < SAME_SECONDS:
                return True
        return False

    def _urgent(self, line):
        # The process may die at once, so what goes without waiting goes from here.
        data = encode(line)
        if data is None:
            return
        if self._failures or not self._link.send_now(data):
            self._failures.append((time.monotonic(), data))
        self._wake.set()

    def _hook(self):
        """Chain the hooks for what nobody catches. A program that sets its own later without chaining takes ours away."""
        before, thread_before = sys.excepthook, threading.excepthook

        def excepthook(kind, value, trace):
            try:
                if not self._abandoned:
                    if not issubclass(kind, KeyboardInterrupt):
                        self._exit_code = 1
                    self.text(value)
            except Exception:
                pass
            return before(kind, value, trace)

        def thread_excepthook(args):
            try:
                self.text(args.exc_value)
            except Exception:
                pass
            return thread_before(args)

        sys.excepthook, threading.excepthook = excepthook, thread_excepthook
        atexit.register(self.bye)
        try:
            # Forked children of multiprocessing end without atexit, and run its own finalizers.
            util = sys.modules.get("multiprocessing.util")
            if util is not None and sys.modules["multiprocessing.process"].parent_process() is not None:
                util.Finalize(None, self.bye, exitpriority=-100)
        except Exception:
            pass

    def bye(self):
        """Say that this process ends by itself."""
        try:
            if self._bye or self._abandoned or not self.armed:
                return
            self._bye = True
            self._wake.set()
            lines = []
            try:
                while True:
                    lines.append(self._failures.popleft()[1])
            except IndexError:  # all, or the thread was faster
                pass
            evidence = self._evidence
            lines += [] if evidence is None else evidence.rest()
            lines.append(encode({"v": 1, "kind": "bye", "time": time.time(), "exit_code": self._exit_code}))
            self._link.send(b"".join(lines), BYE_SECONDS)
            if evidence is not None:
                evidence.end()
        except Exception:
            pass


def find(error):
    """The exception in the chain of one that says that memory ran out; None when there is none."""
    seen = 0
    while error is not None and seen < 8:
        if any(base.__name__ == "OutOfMemoryError" for base in type(error).__mro__):
            return error
        text = str(error)[:MAX_TEXT]
        if "out of memory" in text and ("CUDA" in text or "HIP" in text or "device" in text) or "CUBLAS_STATUS_ALLOC_FAILED" in text:
            return error
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None
