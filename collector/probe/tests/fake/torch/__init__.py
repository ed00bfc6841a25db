"""A stand-in for torch that tells on whoever initialises CUDA: no GPU, no numbers of its own, the names and shapes of the real one."""

import json
import os
import sys

__version__ = "2.11.0+cu130"

touched = []  # names that were called and would have initialised CUDA


class version:
    cuda = "13.0"
    hip = None


def stat(current=0, peak=0):
    return {"current": current, "peak": peak, "allocated": 0, "freed": 0}


def array(current=0, peak=0):
    return {"all": stat(current, peak), "small_pool": stat(), "large_pool": stat()}


class state:
    initialised = False
    count = 2
    backend = "native"
    slow = 0.0  # seconds that a read takes
    broken = False  # everything raises
    observers = []
    contexts = {0}
    fraction = 1.0
    blocks = 3  # of a snapshot
    during = None  # called in the midst of one
    recorded = None  # the options of the history that is on
    recordings = []  # every call that turned it on or off
    segments = [{"device": i % 2, "total_size": 100 + i, "segment_pool_id": pool} for i, pool in enumerate([(0, 0), (0, 0), (1, 0), (0, 3), (1, 0)])]
    listed = []  # every call that listed them: whether with the trace
    host = {"allocated_bytes": stat(2 << 20, 4 << 20), "active_bytes": stat(1 << 20), "num_host_alloc": 2}
    devices = {
        0: {
            "allocated_bytes": array(600, 900), "reserved_bytes": array(1000, 1200), "active_bytes": array(700, 950),
            "requested_bytes": array(590), "inactive_split_bytes": array(50), "segment": array(7), "num_alloc_retries": 3,
            "active": array(90), "inactive_split": array(3),
            "num_ooms": 1, "num_device_alloc": 12, "num_device_free": 5, "max_split_size": -1,
            "reserved_bytes_by_private_pools": {(0, 1): array(64), (0, 2): array(32), (0, 3): array(0)},
        },
        1: {name: array() for name in ("allocated_bytes", "reserved_bytes", "active_bytes")},
    }


class OutOfMemoryError(RuntimeError):
    pass


def guard(name):
    """What the real one would initialise CUDA in, or refuse."""
    if not state.initialised:
        touched.append(name)
        _report()
    if state.broken:
        raise RuntimeError("broken on purpose")


def _report():
    path = os.environ.get("FAKE_TORCH_REPORT")
    if path:
        with open(path, "w") as f:
            json.dump(touched, f)


class _Names:
    """torch._C: only what a test leaves here is there."""

    @staticmethod
    def _cuda_memoryStats(device):
        guard("_cuda_memoryStats")
        if state.slow:
            import time

            end = time.perf_counter() + state.slow
            while time.perf_counter() < end:
                pass
        return state.devices[device]

    @staticmethod
    def _cuda_hostMemoryStats():
        guard("_cuda_hostMemoryStats")
        return state.host

    @staticmethod
    def _cuda_isHistoryEnabled():
        guard("_cuda_isHistoryEnabled")
        return state.recorded is not None

    @staticmethod
    def _cuda_hasPrimaryContext(device):
        return device in state.contexts

    @staticmethod
    def _cuda_getMemoryFraction(device):
        guard("_cuda_getMemoryFraction")
        return state.fraction

    @staticmethod
    def _cuda_attach_out_of_memory_observer(observer):
        guard("_cuda_attach_out_of_memory_observer")
        if state.backend != "native":
            raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")
        state.observers.append(observer)


_C = _Names()


class Tensor:
    """What the census asks of one. `asked` counts how often anything was."""

    asked = 0

    def __init__(self, place=0, size=0, is_cuda=True, is_leaf=False):
        self._place, self._size, self._cuda, self._leaf = place, size, is_cuda, is_leaf

    @property
    def is_cuda(self):
        type(self).asked += 1
        return self._cuda

    @property
    def is_leaf(self):
        return self._leaf

    def untyped_storage(self):
        return self

    def data_ptr(self):
        return self._place

    def nbytes(self):
        return self._size


def fail(size=536870912, limit=8589934592, free=104857600, text=None):
    """An allocation that fails, as the native allocator does it: the observers, then the exception."""
    for observer in state.observers:
        observer(0, size, limit, free)
    raise OutOfMemoryError(text or "CUDA out of memory. Tried to allocate %.2f MiB. GPU 0 has a total capacity of 8.00 GiB of which 100.00 MiB is free. "
        "Process 417 has 1.50 GiB memory in use. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated." % (size / 1048576))


def __getattr__(name):
    if name == "_inductor":
        import importlib

        return importlib.import_module("torch._inductor")
    touched.append("torch." + name)  # the real one imports what is asked for
    _report()
    raise AttributeError(name)


import torch.cuda  # noqa: E402,F401
