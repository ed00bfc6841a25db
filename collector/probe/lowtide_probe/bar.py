"""Keeps torch from importing its compiler for a snapshot. It owns one finder, and refuses nothing to any thread but the one that takes
the snapshot."""

import sys
import threading


class Bar:
    """For the first stacks of Python that it puts into words torch looks whether torch._inductor knows their code, and that look imports
    it where the program has not: some seconds with the GIL, and memory that the program did not ask for. AttributeError is what
    the look takes for a no."""

    NAME = "torch._inductor"

    def __init__(self):
        self._threads = set()

    def find_spec(self, name, path=None, target=None):
        if name == self.NAME and threading.get_ident() in self._threads:
            raise AttributeError("not imported for a snapshot")
        return None

    def call(self, function, **options):
        """What the function returns that makes the snapshot."""
        if self.NAME in sys.modules:
            return function(**options)
        if not any(finder is self for finder in sys.meta_path):
            sys.meta_path.insert(0, self)  # to stay: taken out, it would make a thread that imports at that moment miss a finder
        thread = threading.get_ident()
        self._threads.add(thread)
        try:
            return function(**options)
        finally:
            self._threads.discard(thread)
