import ast
import os
import unittest

import rows
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
                ([dict(good, severity="page")], "is a page, must be a ticket", {}),
                ([finding(incident="other"), good], "2 incidents", {}),
                ([good, finding(state="resolved", resolution="24 h without it")], "it was resolved: 24 h", {}),
                ([finding(state="confirmed")], "the first holder is None, must be keep in model.py", {}),
                ([self.held("model.py:1 keep")], "the first holder is model.py:1 keep", {}),
                ([self.held("engine.py:%d keep" % line_of("model.py", "keep"))], "the first holder is engine.py", {}),
                ([good], "no snapshot came", {"snapshots": ()}),
                ([good], "no snapshot of 1 shows it", {"snapshots": ({"stacks": [{"live_bytes": 1}]},)})):
            self.assertIn(words, "; ".join(self.judge(ROW, findings, **more)["faults"]))

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


class CutTest(unittest.TestCase):
    def test_a_recording_has_its_own_process_and_the_host(self):
        host = {"cluster": "lab", "name": "a", "boot_id": "b"}
        own = {"host": host, "worker": {"pid": 9}, "process": {"fds": 3}}
        self.assertEqual(verdict.cut(own, 9)["process"], {"fds": 3})
        self.assertEqual(verdict.cut(own, 9)["host"]["boot_id"], verdict.BOOT)
        self.assertEqual(host["boot_id"], "b")
        self.assertIsNone(verdict.cut({"worker": {"pid": 8}, "process": {}}, 9))
        self.assertIsNone(verdict.cut({"xid": {"pid": 8, "code": 31}}, 9))
        self.assertIsNotNone(verdict.cut({"xid": {"pid": 9, "code": 31}}, 9))
        self.assertIsNone(verdict.cut({"xid": {"code": 31}}, 9))
        self.assertIsNotNone(verdict.cut({"xid": {"code": 31}}, 9, faulty=True))
        self.assertIsNone(verdict.cut({"xid": {"pid": 8, "code": 31}}, 9, faulty=True))
        card = verdict.cut({"host": host, "gpu": {"uuid": "GPU-x", "used_bytes": 5, "processes_complete": True}}, 9)
        self.assertEqual(card["gpu"], {"uuid": "GPU-x", "used_bytes": 5})

    def test_serial_numbers_become_numbers(self):
        seen = {}
        line = '{"a":"GPU-1234abcd-0000-1111-2222-333344445555","b":"GPU-ffffffff-0000-1111-2222-333344445555"}'
        self.assertEqual(verdict.neutral(line, seen), '{"a":"GPU-00000000-0000-4000-8000-000000000001","b":"GPU-00000000-0000-4000-8000-000000000002"}')
        self.assertEqual(verdict.neutral("GPU-ffffffff-0000-1111-2222-333344445555", seen), "GPU-00000000-0000-4000-8000-000000000002")


class TableTest(unittest.TestCase):
    def test_every_row_is_one_that_its_program_takes(self):
        table = rows.table()
        self.assertEqual(len({row.name for row in table}), len(table))
        for row in table:
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
            "host_memory", "fd_leak", "thread_leak", "software_fault"})

    def test_rows_are_chosen_by_name(self):
        table = rows.table()
        self.assertEqual([row.name for row in rows.chosen(table, ["fd-leak", "retention"], "cuda")], ["retention", "fd-leak"])
        self.assertNotIn("retention", [row.name for row in rows.chosen(table, [], "cpu")])
        with self.assertRaisesRegex(ValueError, "no such row; the rows are metered, "):
            rows.chosen(table, ["nonsense"], "cuda")
        with self.assertRaisesRegex(ValueError, "--only retention: these rows need a GPU"):
            rows.chosen(table, ["retention"], "cpu")


if __name__ == "__main__":
    unittest.main()
