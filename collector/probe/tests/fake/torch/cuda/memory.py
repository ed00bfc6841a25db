"""torch.cuda.memory of the stand-in: what torch 2.11 has of history and snapshots."""

import inspect
import sys

import torch


def _snapshot(device=None, augment_with_fx_traces=False):
    torch.guard("_snapshot")
    if torch.state.during is not None:
        torch.state.during()
    frames = [{"name": "forward", "filename": "/srv/model.py", "line": 42}] if torch.state.recorded else []
    if frames:  # the real one, whose look for it imports it
        try:
            torch._inductor
        except AttributeError:
            pass
    blocks = [{"address": 4096 * i, "size": 4096, "requested_size": 4000, "state": "active_allocated", "frames": frames} for i in range(torch.state.blocks)]
    traces = [{"action": "alloc", "addr": 0, "size": 4000, "stream": 0, "time_us": 1764470000000000}] if torch.state.recorded else []
    return {
        "segments": [{"device": 0, "address": 0, "total_size": 1 << 21, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "blocks": blocks}],
        "device_traces": [traces, []], "allocator_settings": {"expandable_segments": False}, "external_annotations": [],
    }


def memory_snapshot(mempool_id=None, include_traces=True):
    torch.guard("memory_snapshot")
    torch.state.listed.append(include_traces)
    return torch.state.segments


def _record_memory_history(enabled="all", *args, **kwargs):
    torch.guard("_record_memory_history")
    if args or isinstance(enabled, bool):
        raise AssertionError("the old form")
    torch.state.recordings.append((enabled, kwargs))
    torch.state.recorded = None if enabled is None else kwargs


def _record_memory_history_impl(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None, clear_history=False,
        compile_context=False, global_record_annotations=False, skip_actions=None):
    raise AssertionError("called past the public name")


_record_memory_history.__signature__ = inspect.signature(_record_memory_history_impl)
