"""Allocation history for a while: which line of Python allocated what. It owns the switch, and refuses to leave it on: a window has
an end, the bound on entries is always given, and where the program records by itself nothing is touched."""

import threading

from lowtide_probe import snapshot

END_SECONDS = 0.2  # that the end of the process waits for the switch


class History:
    """The switch of one process. Only the probe's own thread turns it on."""

    def __init__(self, torch, ordinals):
        memory = snapshot.module(torch)
        self._record = None if memory is None else vars(memory).get("_record_memory_history")
        self._impl = None if memory is None else vars(memory).get("_record_memory_history_impl")
        self._asked = getattr(getattr(torch, "_C", None), "_cuda_isHistoryEnabled", None)
        self._ordinals = ordinals
        self._lock = threading.Lock()
        self._ended = False
        self.mine = False  # on, and turned on here
        self.entries = 0  # that a device keeps then, at most
        self._off = None  # what turns it off in this build

    def recorded(self):
        """Whether this process records history; None when the build does not say."""
        if self._asked is None:
            return None
        try:
            return bool(self._asked())
        except Exception:
            return None

    def on(self, entries):
        """Begins to record. Raises Unsupported where that would not be bounded, or not cheap."""
        if self._record is None:
            raise snapshot.Unsupported("this torch records no history")
        first, options, off = self._arguments(entries)
        with self._lock:
            if self._ended:
                raise snapshot.Unsupported("the process ends")
            # From here on it may be on, also when this raises.
            self.mine, self.entries, self._off = True, entries, off
            self._record(first, **options)

    def off(self):
        """Ends what on() began. Raises when torch does, and then it can be called again."""
        with self._lock:
            self._end()

    def end(self):
        """At the end of the process: off, and never on again."""
        self._ended = True
        if self.mine and self._lock.acquire(timeout=END_SECONDS):
            try:
                self._end()
            finally:
                self._lock.release()

    def _end(self):
        if self.mine:
            self._record(self._off)
            self.mine = False

    def _arguments(self, entries):
        """The first argument, the options, and the first argument for off. They changed twice; only names that are there are given."""
        names = snapshot.parameters(self._record)
        if names <= {"enabled", "args", "kwargs"} and self._impl is not None:
            names = snapshot.parameters(self._impl)
        if {"stacks", "max_entries"} <= names:  # 2.1 and later
            options = {"stacks": "python", "max_entries": entries}
            if "context" in names:
                options["context"] = "state"  # stacks of what is live; the entries themselves go without, which keeps them small
            return "all", options, None
        if self._ordinals() != [0]:
            raise snapshot.Unsupported("this torch records the history of one device only, the first")
        if "trace_alloc_max_entries" in names:
            options = {"record_context": True, "trace_alloc_max_entries": entries, "trace_alloc_record_context": False, "record_context_cpp": False}
            return True, {name: value for name, value in options.items() if name in names}, False
        raise snapshot.Unsupported("the history of this torch has no bound")
