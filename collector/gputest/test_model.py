import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

from shape import Shape
from test_metrics import read

try:
    import torch

    import model as transformer
except ImportError:
    torch = None

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = ("--device cpu --dtype float32 --port 0 --layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 128 --vocab 500 "
        "--max-model-len 256 --kv-blocks 24 --prompt-mean 40 --prompt-max 128 --output-mean 24 --output-max 64 --rate 20 "
        "--burst-seconds 3 --drain-seconds 1 --abort-fraction 0.3 --max-num-seqs 8 --max-num-batched-tokens 256").split()


@unittest.skipIf(torch is None, "torch is not installed for this python: the transformer is not tested here")
class ModelTest(unittest.TestCase):
    def test_paged_decoding_says_what_a_whole_recomputation_says(self):
        # One device, and the layers split over two.
        for parts in (1, 2):
            shape = Shape(4, 64, 4, 2, 128, 500, 256)
            made = transformer.Model(shape, transformer.devices_for("cpu", parts), 40, 16, torch.float32, 3)
            made.warm_up(4, 100)
            source = random.Random(1)
            prompts = [[source.randrange(500) for _ in range(count)] for count in (50, 17)]
            tables = [[7, 3, 9, 22, 30], [5, 1, 2]]
            with torch.inference_mode():
                paged = [prompt + made._prefill(prompt, table).tolist() for prompt, table in zip(prompts, tables)]
                whole = [list(tokens) for tokens in paged]
                for _ in range(20):
                    for tokens, token in zip(paged, made._decode(paged, tables).tolist()):
                        tokens.append(token)
                    for tokens in whole:
                        tokens += made._prefill(tokens, list(range(31, 39))).tolist()
            self.assertEqual(paged, whole)

    def test_the_tensors_weigh_what_the_shape_says(self):
        shape = Shape(3, 64, 4, 2, 128, 500, 256)
        made = transformer.Model(shape, transformer.devices_for("cpu", 1), 40, 16, torch.float32, 3)
        self.assertEqual(made.weight_bytes, 4 * shape.parameters)
        self.assertEqual(made.kv_bytes, 40 * shape.kv_block_bytes(16, 4))
        made.keep(1 << 20)
        self.assertEqual((len(made.kept), made.kept_bytes), (1, 1 << 20))

    def test_a_warm_up_puts_tokens_together_in_every_way_that_a_step_can(self):
        made = transformer.Model(Shape(1, 64, 4, 2, 128, 500, 128), transformer.devices_for("cpu", 1), 40, 16, torch.float32, 3)
        seen, kept = set(), torch.cat

        def cat(tensors, *args, **named):
            if tensors[0].dtype == torch.int64:
                seen.add(tuple(tensor.shape[0] for tensor in tensors))
            return kept(tensors, *args, **named)

        torch.cat = cat
        try:
            made.warm_up(3, 64)
        finally:
            torch.cat = kept
        self.assertEqual(seen, {(1,), (2,), (3,), (1, 1), (1, 2), (1, 1, 1)})

    def test_what_counts_as_out_of_memory(self):
        made = transformer.Model(Shape(1, 64, 4, 2, 128, 500, 256), transformer.devices_for("cpu", 1), 40, 16, torch.float32, 3)
        self.assertTrue(made.is_oom(RuntimeError("CUDA error: out of memory")))
        self.assertTrue(made.is_oom(MemoryError()))
        self.assertFalse(made.is_oom(RuntimeError("CUDA error: an illegal memory access was encountered")))
        self.assertFalse(made.is_oom(ValueError("out of memory")))

    def test_a_worker_serves_and_drains_when_it_is_told_to_end(self):
        process = subprocess.Popen([sys.executable, "-B", os.path.join(HERE, "worker.py")] + TINY + ["--retain-aborted", "--retain-mib", "1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        ready = json.loads(process.stdout.readline())
        self.assertEqual((ready["ready"], ready["pid"]), (True, process.pid))
        address = "http://127.0.0.1:%d/metrics" % ready["port"]
        aborted, until = 0, time.monotonic() + 60
        while aborted < 3:  # the model answers in milliseconds; the clients send twenty a second
            self.assertLess(time.monotonic(), until, "fewer than three aborts within a minute")
            with urllib.request.urlopen(address, timeout=30) as answer:
                _, values = read(answer.read().decode())
            aborted = values["vllm:request_success_total", frozenset({("model_name", "lowtide-lab"), ("engine", "0"),
                                                                      ("finished_reason", "abort")})]
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=60)
        first, end = (json.loads(line) for line in out.splitlines())
        self.assertEqual(first["planted"], "retain")
        self.assertEqual(process.returncode, 0, log)
        self.assertEqual(sum(end["finished"].values()), end["sent"])
        self.assertEqual((end["free_blocks"], end["ooms"]), (24, 0))
        self.assertEqual(end["retained_tensors"], end["finished"]["abort"])
        self.assertEqual(end["retained_bytes"], end["retained_tensors"] << 20)
        self.assertIn("draining", log)


if __name__ == "__main__":
    unittest.main()
