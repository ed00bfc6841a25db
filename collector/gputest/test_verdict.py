import ast
import io
import os
import unittest

import rows
import table
import verdict
import worker

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20


def line_of(module, name):
    with open(os.path.join(HERE, module), encoding="utf-8") as source:
        return next(node.end_lineno for node in ast.walk(ast.parse(source.read())) if isinstance(node, ast.FunctionDef) and node.name == name)


def finding(of="retention", state="suspected", severity="ticket", **more):
    return dict({"class": of, "state": state, "severity": severity, "incident": "i", "worker": {"pid": 9}, "summary": "s", "seen": 200.0}, **more)


ROW = rows.Row("retention", "x", "", "retention", severity="ticket", holder=("model.py", "keep"), snapshot="stacks")
SNAPSHOT = {"stacks": [{"frames": ["a.py:1 f"], "live_bytes": 1}], "file": "gpu-a-9.pickle"}


class JudgeTest(unittest.TestCase):
    def judge(self, row, findings, snapshots=(SNAPSHOT,), ooms=(), **more):
        return verdict.judge(row, 9, findings, list(snapshots), list(ooms), HERE, **more)

    def test_memory_from_before_stacks_were_recorded_names_nobody(self):
        frame = "model.py:%d keep" % line_of("model.py", "keep")
        found = self.held(frame)
        found["holders"].insert(0, {"live_bytes": 900 * MIB})
        self.assertEqual(self.judge(ROW, [found])["holder"], frame)

    def held(self, frame):
        return finding(state="confirmed", seen=230.0, holders=[{"frames": [frame, "faults.py:1 aborted"], "live_bytes": 5}])

    def test_a_row_that_is_as_it_must_be(self):
        frame = "gputest/model.py:%d keep" % line_of("model.py", "keep")
        got = self.judge(ROW, [finding(), self.held(frame)])
        self.assertEqual(got["faults"], [])
        self.assertEqual((got["class"], got["state"], got["severity"], got["suspected_seconds"], got["confirmed_seconds"], got["holder"], got["snapshot"]),
                         ("retention", "confirmed", "ticket", 200.0, 230.0, frame, "gpu-a-9.pickle"))

    def test_each_thing_that_is_amiss_is_named(self):
        good = self.held("model.py:%d keep" % line_of("model.py", "keep"))
        for findings, words, more in (
                ([], "no retention was found", {}),
                ([finding()], "retention is suspected, must be confirmed", {}),
                ([good, finding("native_growth")], "also found: native_growth", {}),
                ([dict(good, severity="page")], "is page, must be ticket", {}),
                ([finding(incident="other"), good], "2 incidents", {}),
                ([good, finding(state="resolved", resolution="24 h without it")], "it was resolved: 24 h", {}),
                ([finding(state="confirmed")], "the first holder is None, must be keep in model.py", {}),
                ([self.held("model.py:1 keep")], "the first holder is model.py:1 keep", {}),
                ([self.held("engine.py:%d keep" % line_of("model.py", "keep"))], "the first holder is engine.py", {}),
                ([good], "no snapshot came", {"snapshots": ()}),
                ([good], "no snapshot of 1 shows it", {"snapshots": ({"stacks": [{"live_bytes": 1}]},)})):
            self.assertIn(words, "; ".join(self.judge(ROW, findings, **more)["faults"]))

    def test_on_a_shared_card_a_ticket_may_be_a_page(self):
        row = rows.Row("fd-leak", "x", "", "fd_leak")
        for severity, faults in (("ticket", []), ("page", []), ("info", ["fd_leak is info, must be ticket or page"])):
            self.assertEqual(self.judge(row, [finding("fd_leak", "confirmed", severity)])["faults"], faults)

    def test_a_second_verdict_is_compared_with_the_first(self):
        live = {"class": "retention", "state": "confirmed", "severity": "page", "others": [], "holder": "a.py:1 f", "suspected_seconds": 200.0}
        self.assertEqual(verdict.differences(live, dict(live, suspected_seconds=190.0)), [])
        self.assertEqual(verdict.differences(live, dict(live, severity="ticket", others=["cotenant"], holder=None)),
                         ["severity ticket, live page", "other classes cotenant, live none", "holder none, live a.py:1 f"])

    def test_without_evidence_the_class_is_enough(self):
        self.assertEqual(self.judge(ROW, [finding(state="confirmed")], snapshots=(), evidence=False)["faults"], [])

    def test_a_healthy_row_has_no_finding_at_all(self):
        row = rows.Row("healthy", "nothing")
        self.assertEqual(self.judge(row, [])["faults"], [])
        self.assertEqual(self.judge(row, [finding()])["faults"], ["also found: retention"])

    def test_what_snapshots_show(self):
        # 894 MiB were asked for where 5.4 GiB were free in holes of 62 MiB.
        piece = {"free_bytes": 5400 * MIB, "largest_free_bytes": 62 * MIB}
        self.assertTrue(verdict.pieces(piece, [{"requested_bytes": 894 * MIB}]))
        self.assertTrue(verdict.pieces(dict(piece, last_oom={"requested_bytes": 894 * MIB}), []))
        self.assertFalse(verdict.pieces(piece, [{"requested_bytes": 6000 * MIB}]))
        self.assertFalse(verdict.pieces(piece, [{"requested_bytes": 40 * MIB}]))
        self.assertFalse(verdict.pieces(piece, []))
        self.assertEqual([verdict.SHOWS["pending"]({"pending_bytes": n * MIB}, []) for n in (64, 65)], [False, True])
        self.assertEqual([verdict.SHOWS["private"](s, []) for s in ({}, {"private_bytes": 65 * MIB})], [False, True])


class PrintTest(unittest.TestCase):
    def test_steps_with_a_probe_are_compared_with_those_without(self):
        step = {"steps": 9, "step_p50_seconds": 0.08, "step_p99_seconds": 0.15, "step_max_seconds": 0.4, "snapshots": 0}
        said = io.StringIO()
        table.compared({"metered": step, "unwatched": dict(step, step_p50_seconds=0.1, step_p99_seconds=0.12), "retention": dict(step, snapshots=2),
                        "dead": {"step_max_seconds": None}}, said)
        self.assertEqual(said.getvalue().splitlines(), [
            "steps with a probe against those without: 0.8000 at the median, 1.2500 at p99", "longest step of metered: 400.0 ms",
            "longest step of unwatched: 400.0 ms", "longest step of retention: 400.0 ms, of which 2 snapshots were taken"])

    def test_a_replay_equals_the_live_verdict_and_is_right_or_not(self):
        self.assertEqual([table.replayed(r) for r in (None, {"differs": [], "faults": ["x"]}, {"differs": ["x"], "faults": []})],
                         ["", "the same, wrong", "differs, right"])


class TableTest(unittest.TestCase):
    def test_every_row_is_one_that_its_program_takes(self):
        every = rows.table()
        self.assertEqual(len({row.name for row in every}), len(every))
        for row in every:
            if row.program == "worker.py":
                for device in ("cuda", "cpu") if row.cpu else ("cuda",):
                    worker.parse(row.command(device, 8100))
            if row.snapshot is not None:
                self.assertIn(row.snapshot, verdict.SHOWS)
            if row.holder is not None:
                self.assertGreater(line_of(*row.holder), 0)

    def test_all_classes_that_the_issue_plants_are_there(self):
        self.assertEqual({row.verdict for row in rows.table()} - {None}, {
            "retention", "fragmentation", "stream_backlog", "graph_pools", "native_growth", "kv_block_leak", "oversize_request", "pinned_memory",
            "host_memory", "fd_leak", "thread_leak", "stall", "software_fault"})

    def test_rows_are_chosen_by_name(self):
        every = rows.table()
        self.assertEqual([row.name for row in rows.chosen(every, ["fd-leak", "retention"], "cuda")], ["retention", "fd-leak"])
        self.assertNotIn("retention", [row.name for row in rows.chosen(every, [], "cpu")])
        with self.assertRaisesRegex(ValueError, "no such row; the rows are metered, "):
            rows.chosen(every, ["nonsense"], "cuda")
        with self.assertRaisesRegex(ValueError, "--only retention: these rows need a GPU"):
            rows.chosen(every, ["retention"], "cpu")


if __name__ == "__main__":
    unittest.main()
