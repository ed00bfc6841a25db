"""What PyTorch's allocator holds, in the vocabulary's words. It refuses to call anything that could initialise CUDA or create a
context: every name of torch is looked up, never assumed, and asked only after torch.cuda.is_initialized()."""

import os
import sys
import time

from lowtide_probe import snapshot
from lowtide_probe.bar import Bar

SCAN_EVERY = 12  # reads between two looks at the devices that were not used so far

# The list of segments, for torch without counters of private pools.
LIST_BLOCKS = 4096  # and segments, that are listed at most: about a microsecond each, with the GIL
LIST_SECONDS = 0.005  # a list that takes longer was the last
LIST_SHARE = 0.0005  # seconds of listing for each read, on average

_ENGINES = ("vllm", "sglang", "tensorrt_llm", "lmdeploy", "text_generation_server")


def torch_if_ready(modules=None):
    """The program's torch, once it is imported in full and has initialised CUDA; else None."""
    torch = (sys.modules if modules is None else modules).get("torch")
    if torch is None:
        return None
    # vars(): torch has a module __getattr__ that imports, and a module half imported has no such name yet.
    cuda = vars(torch).get("cuda")
    if cuda is None:
        return None
    asked = vars(cuda).get("is_initialized")
    return torch if asked is not None and asked() is True else None


def number(value):
    """A whole number that is not negative, else None: what was not read is absent, never zero."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def settings(environ=None):
    """The allocator's settings as the environment gives them. The first name that is set holds, as in torch."""
    environ = os.environ if environ is None else environ
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        if environ.get(name):
            return environ[name]
    return ""


def setting(text, name):
    """The value of one setting, None when the text does not name it. Lists in brackets may hold commas."""
    depth, start, parts = 0, 0, []
    for i, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    for part in reversed(parts):  # the last one holds
        key, colon, value = part.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None


class Reader:
    """Reads one process's devices. Only the probe's thread uses it."""

    def __init__(self, torch):
        self._torch = torch
        self._c = getattr(torch, "_C", None)
        self._seen = {}  # ordinal -> what does not change: gpu_uuid, limit_bytes
        self._reads = 0
        self.scanned = False  # the last read looked at everything
        self.backend = self._backend()
        self.native = self.backend == "native"
        self.settings = settings()  # torch has read them by now, and reads them once
        expandable = setting(self.settings, "expandable_segments")
        self._expandable = None if expandable is None else expandable.lower() in ("true", "1")
        self._raw = self._stats()
        self.bar = Bar()
        self.history = None  # the switch of the evidence; without it nobody knows whether stacks would be listed
        self._segments = self._lister() if self.native else None
        self._pools = {}  # ordinal -> private_pool_bytes and graph_pools, as of _listed
        self._listed = None  # how often the devices had got and given back memory then
        self._list_at = 0  # the read from which on it may be listed again
        try:
            self._count = int(torch.cuda.device_count())
        except Exception:
            self._count = 0

    def _backend(self):
        asked = getattr(self._torch.cuda, "get_allocator_backend", None)
        if asked is None:
            return "native"  # before torch 2.0 there was no other
        try:
            return str(asked())
        except Exception:
            return ""

    def _stats(self):
        raw = getattr(self._c, "_cuda_memoryStats", None)
        if raw is not None:
            return raw
        nested = getattr(self._torch.cuda, "memory_stats_as_nested_dict", None)
        if nested is not None:
            return nested
        flat = self._torch.cuda.memory_stats
        return lambda device: unflatten(flat(device))

    def devices(self):
        """One dict a device that holds memory, or held some before, in the vocabulary's names."""
        self.scanned = scan = self._reads % SCAN_EVERY == 0
        self._reads += 1
        found, made = [], []
        for i in range(self._count):
            if i not in self._seen and not (scan and self._usable(i)):
                continue
            try:
                stats = self._raw(i)
            except Exception:
                continue  # a pluggable allocator keeps none
            if i not in self._seen:
                if not number(current(stats, "reserved_bytes")):
                    continue
                self._seen[i] = {}
                self._fixed(i)
            elif scan:
                self._fixed(i)
            device = self.fields(stats)
            device.update(self._seen[i])
            found.append(device)
            made.append((i, stats.get("num_device_alloc"), stats.get("num_device_free")))
        if found and self._segments is not None and "private_pool_bytes" not in found[0]:
            pools = self._private(made)
            for device, (i, _, _) in zip(found, made):
                device.update(pools.get(i, {}))
        if found:
            found[0].update(self._pinned())  # the process has it once
        return found

    def _lister(self):
        """What lists the segments without the trace; None where torch has no such thing."""
        memory = snapshot.module(self._torch)
        listed = None if memory is None else vars(memory).get("memory_snapshot")
        if listed is None:
            return None
        options = {"include_traces": False} if "include_traces" in snapshot.parameters(listed) else {}
        return lambda: self.bar.call(listed, **options)

    def _private(self, made):
        """The private pools of the devices, by ordinal, from the list of segments: torch tells them by counters from 2.12 on. It is
        listed when a device has got or given back memory, since nothing else makes a pool larger or smaller; {} until it is. Nothing
        is listed while stacks are recorded, and never again once the program has recorded some: torch would put them into words."""
        if made == self._listed:
            return self._pools
        if self._reads < self._list_at or any(None in counts for counts in made):
            return {}
        try:
            recorded = None if self.history is None else self.history.recorded()
            if recorded is not False:
                if recorded and not self.history.mine:
                    self._segments = None
                return {}
            blocks = self.blocks()
            if blocks is None or blocks > LIST_BLOCKS:
                self._list_at = self._reads + SCAN_EVERY
                return {}
            began = time.thread_time()
            pools = {i: {} for i, _, _ in made}
            for segment in self._segments():
                pool = tuple(segment["segment_pool_id"])
                if any(pool) and segment["device"] in pools:
                    sizes = pools[segment["device"]]
                    sizes[pool] = sizes.get(pool, 0) + segment["total_size"]
            took = time.thread_time() - began
        except Exception:
            self._segments = None  # another layout
            return {}
        self._pools = {i: {"private_pool_bytes": sum(sizes.values()), "graph_pools": len(sizes)} for i, sizes in pools.items()}
        self._listed, self._list_at = made, self._reads + int(took / LIST_SHARE)
        if took > LIST_SECONDS:
            self._segments = None
        return self._pools

    def _usable(self, i):
        # The native allocator's numbers are its own. cudaMallocAsync's come from the driver, which is not asked about a device
        # that this process does not use.
        return self.native or self._context(i)

    def _context(self, i):
        asked = getattr(self._c, "_cuda_hasPrimaryContext", None)
        try:
            return asked is not None and asked(i) is True
        except Exception:
            return False

    def fields(self, stats):
        """The allocator body of one device's nested stats."""
        device = {"backend": self.backend} if self.backend else {}
        names = [
            ("allocated_bytes", current(stats, "allocated_bytes")),
            ("reserved_bytes", current(stats, "reserved_bytes")),
            ("active_bytes", current(stats, "active_bytes")),
            ("allocated_peak_bytes", current(stats, "allocated_bytes", "peak")),
            ("reserved_peak_bytes", current(stats, "reserved_bytes", "peak")),
        ]
        if self.native:  # the other back end says zero to all of these
            if self._expandable is not None:
                device["expandable_segments"] = self._expandable
            names += [
                ("requested_bytes", current(stats, "requested_bytes")),
                ("inactive_split_bytes", current(stats, "inactive_split_bytes")),
                ("segments", current(stats, "segment")),
                ("alloc_retries_total", stats.get("num_alloc_retries")),
                ("ooms_total", stats.get("num_ooms")),
                ("device_allocs_total", stats.get("num_device_alloc")),
                ("device_frees_total", stats.get("num_device_free")),
            ]
            pools = stats.get("reserved_bytes_by_private_pools")
            if isinstance(pools, dict):
                sizes = [s for s in (number(_level(p).get("current")) for p in pools.values()) if s]
                names += [("private_pool_bytes", sum(sizes)), ("graph_pools", len(sizes))]
        for name, value in names:
            value = number(value)
            if value is not None:
                device[name] = value
        return device

    def _fixed(self, i):
        known = self._seen[i]
        total = None
        try:
            properties = self._torch.cuda.get_device_properties(i)
            total = number(getattr(properties, "total_memory", None))
            if "gpu_uuid" not in known:
                uuid = device_uuid(getattr(properties, "uuid", None), i)
                if uuid:
                    known["gpu_uuid"] = uuid
        except Exception:
            pass
        limit = self._limit(i, total)
        if limit is not None:
            known["limit_bytes"] = limit
        else:
            known.pop("limit_bytes", None)

    def _limit(self, i, total):
        asked = getattr(self._c, "_cuda_getMemoryFraction", None)
        if total is None or asked is None or not self.native:
            return None
        # Older builds ask the driver about the calling thread's device, which for this thread is 0, and that would create a
        # context there.
        if not self._context(0):
            return None
        try:
            fraction = asked(i)
        except Exception:
            return None
        if not isinstance(fraction, float) or not 0 < fraction < 1:
            return None
        return int(total * fraction)

    def blocks(self):
        """How many blocks a snapshot would list, on the devices in use; None when the build does not say. Under expandable segments
        free blocks are not counted: between two live ones there is one at most."""
        blocks = 0
        for i in list(self._seen):
            stats = self._raw(i)
            active, segments = current(stats, "active"), current(stats, "segment")
            free = active if self._expandable else current(stats, "inactive_split")
            if None in (active, segments, free):
                return None
            blocks += active + segments + free
        return blocks

    def ordinals(self):
        """The ordinals of the devices in use."""
        return list(self._seen)

    def total(self, i):
        """The device's memory in bytes, None when unknown."""
        try:
            return number(self._torch.cuda.get_device_properties(i).total_memory)
        except Exception:
            return None

    def uuid(self, i):
        """The device's uuid, "" when unknown."""
        try:
            return self._seen.get(i, {}).get("gpu_uuid") or device_uuid(self._torch.cuda.get_device_properties(i).uuid, i)
        except Exception:
            return ""

    def short(self, i):
        """Numbers for a failed allocation: what is live, and what is cached in vain, where both are certain."""
        try:
            stats = self._raw(i)
            live, reserved = number(current(stats, "allocated_bytes")), number(current(stats, "reserved_bytes"))
            line = {} if live is None else {"allocated_bytes": live}
            pools = stats.get("reserved_bytes_by_private_pools")
            # Free blocks of a graph's pool are of no use to anybody else, and how many they are is not told.
            if live is not None and reserved is not None and isinstance(pools, dict):
                if not any(_level(p).get("current") for p in pools.values()) and reserved >= live:
                    line["reserved_unallocated_bytes"] = reserved - live
            return line
        except Exception:
            return {}

    def _pinned(self):
        asked = getattr(self._c, "_cuda_hostMemoryStats", None)
        try:
            if asked is not None:
                stats = asked()
            elif hasattr(self._torch.cuda, "host_memory_stats"):
                stats = unflatten(self._torch.cuda.host_memory_stats())
            else:
                return {}
            owned = number(current(stats, "reserved_bytes"))  # the first version's names
            if owned is not None:
                used = number(current(stats, "active_bytes"))
                used = number(current(stats, "allocated_bytes")) if used is None else used
            else:
                owned, used = number(current(stats, "allocated_bytes")), number(current(stats, "active_bytes"))
        except Exception:
            return {}
        pinned = {"pinned_allocated_bytes": owned, "pinned_active_bytes": used}
        return {k: v for k, v in pinned.items() if v is not None}


def _level(stat):
    inner = stat.get("all") if isinstance(stat, dict) else None
    return inner if isinstance(inner, dict) else stat if isinstance(stat, dict) else {}


def current(stats, name, metric="current"):
    """The metric of one statistic over all pools, None when the build does not keep it."""
    return _level(stats.get(name)).get(metric)


def unflatten(flat):
    """The nested form of a flat dict of stats."""
    nested = {}
    for key, value in flat.items():
        node = nested
        parts = key.split(".")
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = value
    return nested


def device_uuid(uuid, ordinal, environ=None):
    """GPU-… or MIG-…, as NVML writes it; "" when torch does not say."""
    environ = os.environ if environ is None else environ
    if uuid is None:
        return ""
    text = str(uuid)
    if text.startswith(("GPU-", "MIG-")):
        return text
    if len(text) != 36:
        return ""  # another maker's
    visible = environ.get("CUDA_VISIBLE_DEVICES", "") or environ.get("NVIDIA_VISIBLE_DEVICES", "")
    entries = [entry.strip() for entry in visible.split(",")]
    if ordinal < len(entries) and entries[ordinal].startswith("MIG-"):
        return entries[ordinal]
    return "GPU-" + text


def compiles(modules=None):
    """How many graphs torch.compile has compiled, None when it is not in use. Nothing is imported for it."""
    utils = (sys.modules if modules is None else modules).get("torch._dynamo.utils")
    counters = vars(utils).get("counters") if utils is not None else None
    if not isinstance(counters, dict):
        return None
    stats = counters.get("stats")  # get(): the dict makes what it is asked for otherwise
    return number(stats.get("unique_graphs", 0)) if isinstance(stats, dict) else 0


def hello(version, torch, reader):
    """What the probe says about its process."""
    version_of = getattr(torch, "version", None)
    return {
        "v": 1,
        "kind": "hello",
        "probe": version,
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "torch": str(getattr(torch, "__version__", "")),
        "cuda": str(getattr(version_of, "cuda", None) or ""),
        "backend": reader.backend,
        "alloc_conf": reader.settings[:1024],
        "rank": (os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "")[:16],
        "engine": next((name for name in _ENGINES if name in sys.modules), ""),
        "asks": ["snapshot", "arm", "census"],
    }
