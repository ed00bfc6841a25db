"""Counts live CUDA tensors that carry a grad_fn, which a server that only infers has none of. It refuses to run code of the program:
an object is told by its type alone, and only torch's own Tensor, no subclass, is asked anything."""

import gc
import time

PIECE = 4096


def count(torch, seconds):
    """The census, for at most so many seconds beyond the one call that lists the objects. It sees what Python's collector sees:
    no tensor that only C++ holds, and none of what gc.freeze() put aside, which makes it incomplete."""
    began = time.monotonic()
    tensor = vars(torch).get("Tensor")
    tensors = total = 0
    storages = set()
    objects = gc.get_objects()
    objects.reverse()
    complete = gc.get_freeze_count() == 0
    # From the end, which are the youngest: this list keeps alive what the program drops meanwhile, so those are let go first.
    while objects:
        if time.monotonic() - began > seconds:
            complete = False
            break
        found = [o for o in objects[-PIECE:] if type(o) is tensor]
        del objects[-PIECE:]
        while found:
            size = measure(found.pop(), storages)
            if size is not None:
                tensors += 1
                total += size
        time.sleep(0)  # a turn for the program's threads
    while objects:
        del objects[-PIECE:]
    return {"tensors": tensors, "bytes": total, "complete": complete, "took_seconds": round(time.monotonic() - began, 6)}


def measure(tensor, storages):
    """The bytes that a tensor adds to the storages seen before; None when it is not on a GPU, or a leaf."""
    try:
        # A leaf is one without a grad_fn. Asking for the grad_fn itself would make an object.
        if not tensor.is_cuda or tensor.is_leaf:
            return None
    except Exception:
        return None
    try:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place in storages:
            return 0
        storages.add(place)
        return storage.nbytes()
    except Exception:  # older than torch 2, or one without memory of its own
        try:
            return tensor.nelement() * tensor.element_size()
        except Exception:
            return 0
