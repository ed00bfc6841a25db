"""Lowtide's probe: tells the collector of this host what PyTorch's allocator holds, from inside the worker.

It owns one daemon thread, which is not there before the program has imported torch by itself, and the allocation history that it
turns on for the collector, for a while. It refuses to import torch, to initialise CUDA, to replace anything in torch, to handle
signals, to print, and to raise into the program.

LOWTIDE_PROBE=0 turns it off. LOWTIDE_PROBE_SOCKET names the collector's socket; without it the probe looks for
/run/lowtide/probe.sock and, when not root, $XDG_RUNTIME_DIR/lowtide/probe.sock. Where neither the socket nor its folder exists
there is no collector, and the probe does nothing.

    import lowtide_probe
    lowtide_probe.busy()      # a worker without metrics says when it has work
    lowtide_probe.idle()      # and when all of it is done
    lowtide_probe.oom(error)  # the text of an out-of-memory error that the program catches itself
"""

# This module is imported by every Python process where the .pth file is installed: it imports nothing that is not loaded anyway.
import os
import sys

__version__ = "0.2.0"
__all__ = ["start", "busy", "idle", "oom"]

_watch = None  # the process's one Watch, once torch is there
_finder = None
_forks = False


def start(*_args, **_kwargs):
    """Start to watch this process, now or when it imports torch. It may be called any number of times, and never raises."""
    global _finder
    try:
        if _watch is not None or os.environ.get("LOWTIDE_PROBE", "") == "0" or not _collected():
            return
        if "torch" in sys.modules:
            _begin()
        elif _finder is None:
            _finder = _Finder()
            sys.meta_path.insert(0, _finder)
    except Exception:
        pass


def busy(name=""):
    """Say that this worker has work. Without a collector, or before torch has initialised CUDA, this does nothing."""
    _mark("busy", name)


def idle(name=""):
    """Say that this worker's work is done: its memory is comparable to other idle moments now."""
    _mark("quiet", name)


def oom(error=None):
    """Tell the text of an out-of-memory error that the program has caught: an exception or a string."""
    try:
        if _watch is not None:
            _watch.text(error, checked=False)
    except Exception:
        pass


def _mark(kind, name):
    try:
        if _watch is not None:
            _watch.mark(kind, name)
    except Exception:
        pass


def sockets():
    """The paths where a collector may listen, in the order they are tried."""
    named = os.environ.get("LOWTIDE_PROBE_SOCKET", "")
    if named:
        return [named]
    paths = ["/run/lowtide/probe.sock"]
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if own and os.geteuid() != 0:
        paths.append(os.path.join(own, "lowtide", "probe.sock"))
    return paths


def _collected():
    # A named socket is waited for; so is one whose folder is there, since collectors are replaced while workers run.
    if os.environ.get("LOWTIDE_PROBE_SOCKET", ""):
        return True
    return any(os.path.isdir(os.path.dirname(path)) for path in sockets())


class _Finder:
    """Learns that the program imports torch, and finds nothing. A thread that polls would be in every Python process."""

    seen = False

    def find_spec(self, name, path=None, target=None):
        # Not "torch": importlib.util.find_spec asks for that, too, in programs that only want to know whether there is one.
        if not self.seen and name.startswith("torch."):
            self.seen = True  # a forked child does not begin anew
            try:
                _begin()
            except Exception:
                pass
        return None


def _begin():
    global _watch, _forks
    if _watch is not None:
        return
    from lowtide_probe.watch import Watch

    _watch = Watch(sockets())
    if not _forks:
        _forks = True
        os.register_at_fork(after_in_child=_forked)
    _watch.start()


def _forked():
    # Threads do not survive a fork, and the connection carries the parent's pid. A child whose parent had initialised CUDA
    # cannot use it, so nothing is there to be watched.
    global _watch
    try:
        parent, _watch = _watch, None
        if parent is None:
            return
        parent.abandon()
        if "torch" in sys.modules and not parent.armed:
            _begin()
    except Exception:
        pass
