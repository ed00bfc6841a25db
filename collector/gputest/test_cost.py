import io
import json
import os
import shutil
import tempfile
import unittest
from contextlib import redirect_stdout

import cost

TICKS = os.sysconf("SC_CLK_TCK")


class CostTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        self.now = 0.0

    def write(self, pid, user=0, system=0, start=900, rss=2048, pss=1024, switches=0, state="S", comm="a (b) c"):
        base = os.path.join(self.root, str(pid))
        os.makedirs(os.path.join(base, "task", str(pid)), exist_ok=True)
        fields = [state, "1", "1", "1", "0", "-1", "0", "0", "0", "0", "0", str(user), str(system), "0", "0", "20", "0", "7", "0",
                  str(start), "0", "0", "0"]
        line = "%d (%s) %s\n" % (pid, comm, " ".join(fields))
        for path, text in (("stat", line), ("task/%d/stat" % pid, line), ("smaps_rollup", "Pss:  %d kB\n" % pss),
                           ("status", "VmHWM:\t 9000 kB\nVmRSS:\t %d kB\nRssAnon:\t 512 kB\nvoluntary_ctxt_switches:\t%d\n" % (rss, switches))):
            with open(os.path.join(base, path), "w") as handle:
                handle.write(text)

    def measure(self, targets, during, seconds=4, every=1):
        def sleep(wait):
            self.now += wait
            during(self.now)

        return cost.measure(targets, seconds, every, self.root, True, lambda: self.now, sleep)

    def test_seconds_bytes_and_switches_are_differences(self):
        self.write(5, user=10 * TICKS, system=TICKS, switches=3)

        def during(now):
            self.write(5, user=int((10 + now / 2) * TICKS), system=TICKS + int(now * TICKS / 4), rss=2048 + int(now) * 100,
                       pss=1024 + int(now), switches=3 + int(now) * 10)

        got, = self.measure([("worker", 5)], during)
        self.assertEqual((got["cpu_seconds"], got["user_seconds"], got["system_seconds"], got["cpu_share"]), (3.0, 2.0, 1.0, 0.75))
        self.assertEqual((got["rss_first_bytes"], got["rss_bytes"], got["rss_max_bytes"]), (2048 * 1024, 2448 * 1024, 2448 * 1024))
        self.assertEqual((got["pss_bytes"], got["anon_bytes"], got["rss_high_bytes"], got["threads"]),
                         (1028 * 1024, 512 * 1024, 9000 * 1024, 7))
        self.assertEqual((got["voluntary_switches"], got["involuntary_switches"]), (40, None))
        self.assertEqual(got["thread_seconds"], {"5 a (b) c": 3.0})
        self.assertEqual((got["name"], got["seconds"], got["ended"], got["samples"]), ("worker", 4.0, False, 5))

    def test_a_process_that_ends_or_whose_pid_is_reused_is_told(self):
        for pid in (5, 6, 7):
            self.write(pid, user=TICKS)

        def during(now):
            if now == 2:
                shutil.rmtree(os.path.join(self.root, "5"))
                self.write(6, user=0, start=901)
                self.write(7, user=TICKS, state="Z")

        for got in self.measure([("gone", 5), ("reused", 6), ("zombie", 7)], during):
            self.assertEqual((got["ended"], got["samples"], got["cpu_seconds"], got["seconds"]), (True, 2, 0.0, 1.0), got["name"])

    def test_nobody_there(self):
        got, = self.measure([("nobody", 8)], lambda now: None)
        self.assertEqual(got, {"name": "nobody", "pid": 8, "ended": True, "samples": 0})
        with redirect_stdout(io.StringIO()):
            self.assertEqual(cost.main(["nobody=8", "--seconds", "0", "--proc", self.root]), 1)

    def test_this_very_process_on_the_real_proc(self):
        said = io.StringIO()
        with redirect_stdout(said):
            self.assertEqual(cost.main(["me=%d" % os.getpid(), "--seconds", "0", "--threads"]), 0)
        got, = json.loads(said.getvalue())["processes"]
        self.assertEqual((got["name"], got["cpu_seconds"], got["cpu_share"]), ("me", 0.0, None))
        self.assertGreater(got["rss_bytes"], 1 << 20)

    def test_targets(self):
        self.assertEqual(cost.target("a=b=12"), ("a=b", 12))
        self.assertEqual(cost.target("12"), ("12", 12))
        for wrong in ("a", "=5", "a=", "a=x"):
            with self.assertRaises(cost.argparse.ArgumentTypeError):
                cost.target(wrong)


if __name__ == "__main__":
    unittest.main()
