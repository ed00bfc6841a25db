"""worker.py over a model of a few lines: scheduling, metrics and the faults that need no GPU, on a machine without torch.

It is for trying the matrix out and for its tests. It answers every step after 25 ms, as a busy card would, with the same token.
"""

import sys
import time
import types


class Model:
    """Takes a worker's place for model.Model; its sizes are what the flags say, its memory is none."""

    kept, kept_bytes, weight_bytes, kv_bytes = (), 0, 0, 0

    def __init__(self, *sizes):
        pass

    def warm_up(self, sequences, tokens):
        pass

    def execute(self, step):
        time.sleep(0.025)
        return [1 for _ in step.requests()]

    def is_oom(self, error):
        return isinstance(error, MemoryError)


def main():
    """Runs the worker over the model above."""
    sys.modules["torch"] = types.SimpleNamespace(float32=None, bfloat16=None, float16=None)
    sys.modules["model"] = types.SimpleNamespace(Model=Model, devices_for=lambda kind, count: [kind] * count)
    import worker
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
