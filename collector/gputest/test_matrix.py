import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

import matrix
import rows
from rig import Follower, Rig

HERE = os.path.dirname(os.path.abspath(__file__))
FAKE = os.path.join(HERE, "testdata", "fake_lowtide.py")


class RigTest(unittest.TestCase):
    def test_a_follower_leaves_a_torn_line_for_later(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x")
            follower = Follower(path)
            self.assertEqual(follower.new(), [])
            with open(path, "w") as out:
                out.write('{"a":1}\nwords\n[3]\n{"b"')
                out.flush()
                self.assertEqual(follower.new(), [{"a": 1}])
                out.write(':2}\n')
                out.flush()
            self.assertEqual(follower.new(), [{"b": 2}])
            self.assertEqual(follower.new(), [])

    def test_who_does_not_end_is_killed_and_told(self):
        with tempfile.TemporaryDirectory() as folder:
            rig = Rig("lowtide", folder)
            deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('{\"ready\": 1}', flush=True); time.sleep(600)"
            process = rig.start("deaf", [sys.executable, "-c", deaf])
            self.assertTrue(rig.wait(30, lambda: rig.ready("deaf"), 0.02))
            rig.stop(0.2)
            self.assertEqual((rig.faults, process.returncode), (["deaf did not stop within 0 s"], -9))

    def test_up_that_does_not_come_up_says_where_to_look(self):
        with tempfile.TemporaryDirectory() as folder:
            rig = Rig("false", folder)
            with self.assertRaisesRegex(SystemExit, "(?s)^error: start lowtide up: .*\nhint: .*up.err"):
                rig.up()
            rig.stop()


class MatrixTest(unittest.TestCase):
    def run_matrix(self, folder, finds, *argv):
        out = subprocess.run([sys.executable, "-B", os.path.join(HERE, "matrix.py"), "--lowtide", FAKE, "--out", os.path.join(folder, "out"), "--device", "cpu",
                              "--program", "dry.py", "--first-port", "0"] + list(argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                             universal_newlines=True, env=dict(os.environ, FAKE_FINDS=json.dumps(finds)))
        path = os.path.join(folder, "out", "matrix.json")
        self.assertTrue(os.path.exists(path), out.stderr)
        with open(path) as handle:
            return out, json.load(handle)

    def test_rows_run_side_by_side_and_each_gets_its_verdict(self):
        finds = {"fd-leak": ["fd_leak", "suspected", "confirmed"], "kv-block-leak": ["retention", "suspected"]}
        with tempfile.TemporaryDirectory() as folder:
            out, got = self.run_matrix(folder, finds, "--only", "healthy,fd-leak,thread-leak,kv-block-leak", "--evidence", "off", "--least", "1", "--seconds", "4")
            self.assertEqual((out.returncode, got["faults"]), (1, []))
            by = {row["row"]: row for row in got["rows"]}
            self.assertEqual({name: row["faults"] for name, row in by.items()}, {
                "healthy": [], "fd-leak": [], "thread-leak": ["no thread_leak was found"],
                "kv-block-leak": ["also found: retention", "no kv_block_leak was found"]})
            self.assertEqual((by["fd-leak"]["class"], by["fd-leak"]["state"], by["fd-leak"]["replay"]),
                             ("fd_leak", "confirmed", {"differs": [], "faults": []}))
            self.assertIn("draining", by["thread-leak"]["stderr"])
            self.assertIn("a fake is up", got["up_stderr"])
            self.assertRegex(out.stdout, r"(?m)^fd-leak +fd_leak +fd_leak +confirmed +ticket .* the same, right +ok$")
            self.assertRegex(out.stdout, r"(?m)^thread-leak +thread_leak +nothing .* the same, wrong +FAILED$")
            self.assertIn("kv-block-leak: also found: retention", out.stdout)
            self.assertEqual(sorted(os.listdir(os.path.join(folder, "out", "matrix"))), ["fd-leak.ndjson.gz", "healthy.ndjson.gz", "labels.json"])
            self.assertEqual(sorted(os.listdir(os.path.join(folder, "out", "failed"))), ["kv-block-leak.ndjson.gz", "thread-leak.ndjson.gz"])
            with open(os.path.join(folder, "out", "matrix", "labels.json")) as handle:
                labels = json.load(handle)
            self.assertEqual(labels["fd-leak"], {"class": "fd_leak", "state": "confirmed", "pid": by["fd-leak"]["pid"],
                                                "planted": "four open files of every aborted request"})
            with gzip.open(os.path.join(folder, "out", "matrix", "fd-leak.ndjson.gz")) as recording:
                lines = [json.loads(line.decode()) for line in recording]
            self.assertEqual([line["worker"]["pid"] for line in lines], [by["fd-leak"]["pid"]])

    def test_every_row_right_is_exit_code_0(self):
        with tempfile.TemporaryDirectory() as folder:
            out, got = self.run_matrix(folder, {"fd-leak": ["fd_leak", "confirmed"]}, "--only", "fd-leak,metered", "--evidence", "off", "--least", "1", "--seconds", "60")
            self.assertEqual((out.returncode, got["faults"]), (0, []), out.stdout)
            # All rows were as they must be, so it did not wait for its seconds.
            self.assertLess(got["seconds"], 40)

    def test_a_worker_that_cannot_start_fails_its_row_and_no_other(self):
        with tempfile.TemporaryDirectory() as folder:
            out, got = self.run_matrix(folder, {}, "--only", "healthy", "--evidence", "off", "--least", "1", "--seconds", "2", "--program", "no-such.py")
            self.assertEqual(out.returncode, 1)
            self.assertRegex(got["rows"][0]["faults"][0], "^it ended with 1 before it served$")
            self.assertIn("no-such.py", got["rows"][0]["stderr"])

    def test_snapshots_are_asked_for_by_whoever_can(self):
        with tempfile.TemporaryDirectory() as folder:
            for code, evidence in ((0, "processor"), (2, "matrix")):
                fake = os.path.join(folder, "lowtide%d" % code)
                with open(fake, "w") as out:
                    out.write("#!/bin/sh\nexit %d\n" % code)
                os.chmod(fake, 0o755)
                made = matrix.Matrix(matrix.parse(["--lowtide", fake, "--out", folder, "--up=--slo=x"]), [])
                flags = made.flags()
                self.assertEqual((made.evidence, "--evidence-history" in flags, flags[-1]), (evidence, code == 0, "--slo=x"))

    def test_a_refused_ask_is_made_again_and_an_accepted_one_is_not(self):
        answers = [{"status": "refused"}, {"status": "accepted"}]
        asked = []

        class Broker:
            def __init__(self, address):
                pass

            def __enter__(self):
                return self

            def __exit__(self, *error):
                return False

            def request(self, subject, question):
                asked.append((subject, question))
                return answers[len(asked) - 1]

        table = {row.name: row for row in rows.table()}
        made = matrix.Matrix(matrix.parse([]), [table["fragmentation"], table["retention"], table["healthy"]])
        process = lambda pid: type("Process", (), {"pid": pid})
        made.process = {"fragmentation": process(8), "retention": process(9), "healthy": process(10)}
        made.broker = {"nats": "nats://x"}
        made.who = {pid: ({"cluster": "lab", "name": "a"}, {"pid": pid, "start_ticks": 5}, "now") for pid in (8, 9, 10)}
        kept, matrix.Broker = matrix.Broker, Broker
        try:
            with redirect_stderr(io.StringIO()):
                for passed in (100, 149, 150, 151, 161, 200):
                    made.ask(passed)
        finally:
            matrix.Broker = kept
        question = {"ask": "snapshot", "pid": 9, "incident": "matrix", "reason": "matrix retention", "history_seconds": 24, "start_ticks": 5}
        self.assertEqual(asked, [("lowtide.ask.lab.a", question)] * 2)  # of fragmentation nothing: there was no OOM

    def test_without_a_gpu_it_refuses_loudly(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a GPU")
        said, fell = io.StringIO(), io.StringIO()
        with redirect_stdout(said), redirect_stderr(fell):
            self.assertEqual(matrix.main(["--lowtide", FAKE]), 2)
        self.assertEqual(said.getvalue(), "")
        self.assertRegex(fell.getvalue(), r"(?s)^error: run the matrix: there is no GPU: .*\nhint: ")

    def test_what_cannot_be_run_names_the_remedy(self):
        for argv, words in ((["--device", "cpu", "--program", "dry.py", "--lowtide", "/nonexistent"], "build it with make build"),
                            (["--only", "nonsense"], "no such row")):
            fell = io.StringIO()
            with redirect_stderr(fell):
                self.assertEqual(matrix.main(argv), 2)
            self.assertIn(words, fell.getvalue())


if __name__ == "__main__":
    unittest.main()
