"""torch.cuda of the stand-in."""

import torch
import torch.cuda.memory


def is_initialized():
    if torch.state.broken:
        raise RuntimeError("broken on purpose")
    return torch.state.initialised


def init():
    torch.state.initialised = True


def get_allocator_backend():
    torch.guard("get_allocator_backend")
    return torch.state.backend


def device_count():
    torch.guard("device_count")
    return torch.state.count


def is_available():
    torch.guard("is_available")
    return True


def current_device():
    torch.touched.append("current_device")
    return 0


def mem_get_info(device=None):
    torch.touched.append("mem_get_info")
    return (1, 2)


class _Properties:
    total_memory = 8 << 30

    def __init__(self, device):
        self.uuid = "9f1d6a3c-0b7e-4a51-8c2d-%012d" % device


def get_device_properties(device):
    torch.guard("get_device_properties")
    return _Properties(device)


def memory_stats(device=None):
    torch.guard("memory_stats")
    raise AssertionError("the nested form is there and cheaper")
