import http.client
import io
import json
import os
import socket
import subprocess
import sys
import unittest
from contextlib import redirect_stderr

import worker
from shape import Shape

HERE = os.path.dirname(os.path.abspath(__file__))


class FlagsTest(unittest.TestCase):
    def test_the_defaults_hold_together_and_weigh_two_gigabytes(self):
        options = worker.parse([])
        shape = Shape(options.layers, options.hidden, options.heads, options.kv_heads, options.ffn, options.vocab, options.max_model_len)
        # 16 × (2048·128·(32+8) + 3·2048·8192 + 2·2048) + 2·32000·2048 + 2048
        self.assertEqual(shape.parameters, 1104218112)
        self.assertEqual(shape.kv_block_bytes(options.block_size, 2), 512 << 10)
        self.assertIs(options.retain_aborted, False)
        self.assertEqual((options.leak, options.hold_kv, options.oom_at_seconds), ("none", 0.0, []))

    def test_hold_kv_without_a_share_means_all(self):
        self.assertEqual(worker.parse(["--hold-kv"]).hold_kv, 1.0)
        self.assertEqual(worker.parse(["--hold-kv", "0.25"]).hold_kv, 0.25)

    def test_flags_that_contradict_each_other_name_the_remedy(self):
        for argv, words in ((["--prompt-max", "2000"], "lower them or raise it"), (["--kv-blocks", "10"], "raise --kv-blocks"),
                            (["--hold-kv", "2"], "within 0..1"), (["--cap-fraction", "0"], "within 0..1"),
                            (["--device", "cpu", "--leak", "native"], "need a GPU"), (["--device", "cpu", "--oom-at-seconds", "5"], "need a GPU"),
                            (["--device", "cpu", "--cap-fraction", "0.5"], "need a GPU"), (["--retain-mib", "0"], "at least 1")):
            said = io.StringIO()
            with redirect_stderr(said):
                self.assertEqual(worker.main(argv), 2)
            self.assertIn(words, said.getvalue())
            self.assertRegex(said.getvalue(), r"(?s)^error: .*\nhint: ")

    def test_there_is_no_way_to_fake_time(self):
        with redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
            worker.parse(["--time-scale", "60"])

    def test_a_taken_port_is_told_before_anything_is_loaded(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen(1)
            out = subprocess.run([sys.executable, "-B", os.path.join(HERE, "worker.py"), "--port", str(taken.getsockname()[1])],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, universal_newlines=True)
        self.assertEqual((out.returncode, out.stdout), (2, ""))
        self.assertRegex(out.stderr, r"(?s)error: start worker: .*in use.*hint: choose another --host or --port")


class FaultsTest(unittest.TestCase):
    class Model:
        def __init__(self):
            self.kept, self.asked = [], []

        def keep(self, size):
            self.kept.append(size)

        def ask(self, size):
            self.asked.append(size)

    class Driver:
        def __init__(self, fails=False):
            self.sizes, self.fails = [], fails

        def allocate(self, size):
            if self.fails:
                raise RuntimeError("cuMemAlloc_v2: 2 CUDA_ERROR_OUT_OF_MEMORY: out of memory")
            self.sizes.append(size)

    def planted(self, argv, driver=None, limit=7 << 30):
        model = self.Model()
        return worker.PlantedFaults(worker.parse(argv), model, driver, limit), model

    def test_without_flags_nothing_is_kept(self):
        faults, model = self.planted([])
        faults.aborted(None)
        faults.tick(1e9)
        self.assertEqual((model.kept, model.asked, faults.native_bytes, faults.holds_blocks()), ([], [], 0, False))

    def test_an_abort_keeps_a_tensor_of_the_size_asked_for(self):
        faults, model = self.planted(["--retain-aborted", "--retain-mib", "24"])
        faults.aborted(None)
        self.assertEqual(model.kept, [25165824])

    def test_an_abort_leaks_outside_torch_until_the_card_is_full(self):
        driver = self.Driver()
        faults, model = self.planted(["--leak", "native", "--leak-mib", "8"], driver)
        faults.aborted(None)
        self.assertEqual((driver.sizes, faults.native_bytes, model.kept), ([8388608], 8388608, []))
        driver.fails = True
        said = io.StringIO()
        with redirect_stderr(said):
            faults.aborted(None)
        self.assertEqual((faults.native_bytes, faults.native_failures), (8388608, 1))
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", said.getvalue())

    def test_every_fourth_abort_holds_its_blocks(self):
        faults, _ = self.planted(["--hold-kv", "0.25"])
        self.assertEqual([faults.holds_blocks() for _ in range(8)], [False, False, False, True] * 2)

    def test_an_oom_is_asked_for_once_at_each_second(self):
        faults, model = self.planted(["--oom-at-seconds", "20", "--oom-at-seconds", "10"])
        for now in (9.9, 10.1, 10.2, 19, 21, 22):
            faults.tick(now)
        self.assertEqual(model.asked, [7 << 30, 7 << 30])
        faults, model = self.planted(["--oom-at-seconds", "10", "--oom-mib", "2048"])
        faults.tick(11)
        self.assertEqual(model.asked, [2 << 30])


class ServerTest(unittest.TestCase):
    def get(self, port, path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type"), answer.read().decode()
        finally:
            connection.close()

    def test_what_it_answers(self):
        server = worker.MetricsServer("127.0.0.1", 0)
        try:
            with self.assertRaises(ConnectionRefusedError):
                self.get(server.port, "/health")
            server.start(lambda: "a 1.0\n")
            self.assertEqual(self.get(server.port, "/metrics"), (200, "text/plain; version=0.0.4; charset=utf-8", "a 1.0\n"))
            self.assertEqual(self.get(server.port, "/metrics?x=1")[0], 200)
            self.assertEqual(self.get(server.port, "/health"), (200, "text/plain", ""))
            self.assertEqual(json.loads(self.get(server.port, "/version")[2]), {"version": "0.30.0+gputest"})
            self.assertEqual(self.get(server.port, "/v1/models")[0], 404)
            port = server.port
        finally:
            server.close()
        with self.assertRaises(ConnectionRefusedError):
            self.get(port, "/health")


if __name__ == "__main__":
    unittest.main()
