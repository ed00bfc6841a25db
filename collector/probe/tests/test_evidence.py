"""The collector asks a program for evidence, over a real socket."""

import os
import signal
import time
import unittest

import stage

UUID = "GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000"
LARGE = 16 << 20
WINDOW = dict(max_bytes=256 << 20, budget_seconds=10, max_entries=50000)

# How many descriptors the program has, and those that the probe was given.
COUNT = "len(__import__('os').listdir('/proc/self/fd'))"
GIVEN = "[t for t in (__import__('os').readlink('/proc/self/fd/' + f) for f in __import__('os').listdir('/proc/self/fd') if __import__('os').path.lexists('/proc/self/fd/' + f)) if 'lowtide-probe-' in t]"


class Case(stage.Case):
    def started(self, before=""):
        """A collector and a program with CUDA, which has said hello and been read."""
        self.heard = self.collector()
        program = self.program()
        program.do("import lowtide_probe.evidence as e; from contextlib import suppress")
        program.do("import torch")
        if before:
            program.do(before)
        program.do("torch.cuda.init()")
        self.assertEqual(self.heard.wait("hello")["asks"], ["snapshot", "arm", "census"])
        self.heard.wait("read")
        return program

    def answer(self, name="snapshot"):
        line = self.heard.wait("snapshot", lambda line: line["id"] == name)
        self.assertAlmostEqual(line.pop("time"), time.time(), delta=5)
        self.assertEqual((line.pop("v"), line.pop("kind"), line.pop("id"), line.pop("connection")), (1, "snapshot", name, 1))
        return line

    def until(self, program, expression, want):
        """Waits until the program says so. Each question is a turn of its main thread, so this does not spin."""
        end = time.monotonic() + stage.PATIENCE
        while program.do(expression) != want:
            if time.monotonic() > end:
                self.fail("%s is %s" % (expression, program.do(expression)))


class Asked(Case):
    def test_a_snapshot_at_once(self):
        program = self.started()
        fd, path = self.file()
        self.heard.ask("snapshot", fds=[fd], max_bytes=LARGE, budget_seconds=10)
        line = self.answer()
        self.assertGreaterEqual(line.pop("took_seconds"), line.pop("gil_seconds"))
        self.assertEqual(line, {"reason": "asked", "status": "ok", "bytes": os.path.getsize(path), "devices": {"0": UUID}})
        self.assertEqual([len(segment["blocks"]) for segment in self.unpickle(path)["segments"]], [3])
        self.assertEqual(program.do("torch.state.recordings"), "[]")
        self.assertEqual(program.do(GIVEN), "[]")  # closed
        self.untouched()

    def test_history_for_a_while(self):
        program = self.started()
        fd, path = self.file()
        self.heard.ask("snapshot", fds=[fd], history_seconds=0.3, **WINDOW)
        on = self.heard.wait("recording")
        self.assertEqual((on["id"], on["history"]), ("snapshot", "on"))
        self.assertEqual(program.do("torch.state.recorded"), "{'stacks': 'python', 'max_entries': 50000, 'context': 'state'}")
        line = self.answer()
        self.assertEqual((line["status"], line["history_seconds"]), ("ok", 0.3))
        off = self.heard.wait("recording")
        self.assertEqual(off["history"], "off")
        self.assertGreaterEqual(off["time"] - on["time"], 0.29)
        self.assertEqual(program.do("torch.state.recorded"), "None")
        taken = self.unpickle(path)  # with what only the history knows
        self.assertEqual(taken["segments"][0]["blocks"][0]["frames"][0]["line"], 42)
        self.assertEqual(len(taken["device_traces"][0]), 1)
        self.assertEqual(program.do(GIVEN), "[]")
        self.untouched()  # torch's look for its compiler has imported nothing
        self.assertEqual(program.do("torch._inductor.__name__"), "'torch._inductor'")  # which the program still may

    def test_history_ends_with_the_collector(self):
        program = self.started()
        before = program.do(COUNT)
        fd, path = self.file()
        self.heard.ask("snapshot", fds=[fd], history_seconds=600, **WINDOW)
        self.heard.ask("arm", fds=[self.file("post-mortem")[0]], max_bytes=LARGE)
        self.heard.wait("recording")
        self.until(program, "len(%s)" % GIVEN, "2")
        self.heard.close()
        self.until(program, "[first for first, _ in torch.state.recordings]", "['all', None]")
        self.until(program, COUNT, str(int(before) - 1))  # the connection is closed, too
        self.assertEqual(os.path.getsize(path), 0)
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")  # no longer armed
        self.heard = self.collector()  # and the next collector may ask at once
        self.heard.wait("hello")
        self.heard.ask("snapshot", fds=[fd], max_bytes=LARGE)
        self.assertEqual(self.answer()["status"], "ok")

    def test_history_that_cannot_be_turned_off_at_first(self):
        program = self.started()
        program.do("record, times = torch.cuda.memory._record_memory_history, []")
        program.do("flaky = lambda enabled, **options: (times.append(enabled), len(times) == 2 and 1 / 0, record(enabled, **options))")
        program.do("flaky.__signature__ = record.__signature__; lowtide_probe._watch._evidence._history._record = flaky")
        self.heard.ask("snapshot", fds=[self.file()[0]], history_seconds=0.01, **WINDOW)
        self.assertEqual(self.answer()["status"], "ok")
        self.assertEqual(self.heard.wait("recording", lambda line: line["history"] == "off")["id"], "snapshot")
        self.assertEqual(program.do("times, torch.state.recorded"), "(['all', None, None], None)")

    def test_history_of_the_program_is_left_alone(self):
        program = self.started("torch.cuda.init(); torch.cuda.memory._record_memory_history(max_entries=7)")
        fd, path = self.file()
        for seconds in (600, 0):
            self.heard.ask("snapshot", fds=[fd], history_seconds=seconds, **WINDOW)
            line = self.answer()
            self.assertEqual((line["status"], line["error"][:53]), ("refused", "the program records allocation history by itself, may"))
            self.assertNotIn("note", line)
            program.do("lowtide_probe._watch._evidence._asked -= 60")
        self.assertEqual(program.do("torch.state.recordings"), "[('all', {'max_entries': 7})]")
        self.assertEqual(os.path.getsize(path), 0)

    def test_history_of_the_program_in_a_build_that_does_not_say(self):
        program = self.started("torch.cuda.init(); torch.cuda.memory._record_memory_history(max_entries=7); del type(torch._C)._cuda_isHistoryEnabled")
        self.heard.ask("snapshot", fds=[self.file()[0]], history_seconds=600, **WINDOW)
        self.assertEqual(self.answer()["note"], "the program records history by itself")
        self.assertEqual(program.do("len(torch.state.recordings)"), "1")

    def test_history_that_the_program_ends(self):
        program = self.started()
        self.heard.ask("snapshot", fds=[self.file()[0]], history_seconds=0.5, **WINDOW)
        self.heard.wait("recording")
        program.do("torch.cuda.memory._record_memory_history(None)")
        self.assertEqual(self.heard.wait("recording")["note"], "the program had turned it off before")

    def test_without_history_where_there_is_none(self):
        program = self.started("del torch.cuda.memory._record_memory_history")
        self.heard.ask("snapshot", fds=[self.file()[0]], history_seconds=600, **WINDOW)
        line = self.answer()
        self.assertEqual((line["status"], line["note"]), ("ok", "without history: this torch records no history"))
        self.assertEqual(program.end(), "")

    def test_history_that_would_be_too_large(self):
        program = self.started()
        self.heard.ask("snapshot", fds=[self.file()[0]], history_seconds=600, max_entries=50000, max_bytes=51302399)
        line = self.answer()
        self.assertEqual((line["status"], line["note"]), ("ok",
            "without history: about 51302400 bytes are expected (100 blocks, at most 50000 entries of history), and 51302399 allowed"))
        self.assertEqual(program.do("torch.state.recordings"), "[]")

    def test_refused_by_size(self):
        self.started()
        fd, path = self.file()
        self.heard.ask("snapshot", fds=[fd], max_bytes=1000)
        line = self.answer()
        self.assertEqual((line["status"], line["error"]), ("refused", "about 25600 bytes are expected (100 blocks, at most 0 entries of history), and 1000 allowed"))
        self.assertEqual(os.path.getsize(path), 0)

    def test_asked_before_the_first_read(self):
        self.heard = self.collector(greeting=b'{"lowtide":1,"interval_seconds":60}\n')
        program = self.program()
        program.torch()
        self.heard.wait("hello")
        self.heard.ask("snapshot", fds=[self.file()[0]], max_bytes=1000)
        self.assertIn("(100 blocks,", self.answer()["error"])

    def test_stopped_by_size(self):
        self.started("torch.state.blocks = 100000")  # more than the counters say
        fd, path = self.file()
        self.heard.ask("snapshot", fds=[fd], max_bytes=1 << 20)
        line = self.answer()
        self.assertEqual((line["status"], line["error"]), ("failed", "stopped: more than the 1048576 bytes allowed"))
        self.assertLessEqual(os.path.getsize(path), 1 << 20)

    def test_one_at_a_time_and_not_too_often(self):
        program = self.started()
        self.heard.ask("snapshot", fds=[self.file("a")[0]], id="a", history_seconds=0.3, **WINDOW)
        self.heard.wait("recording")
        self.heard.ask("snapshot", fds=[self.file("b")[0]], id="b", max_bytes=LARGE)
        self.heard.ask("census", id="c")
        self.assertEqual(self.answer("b"), {"reason": "asked", "status": "refused", "error": "another one is under way", "passing": True})
        self.assertEqual(self.answer("c")["status"], "refused")
        self.assertEqual(self.answer("a")["status"], "ok")
        self.heard.ask("snapshot", fds=[self.file("d")[0]], id="d", max_bytes=LARGE)
        line = self.answer("d")
        self.assertRegex(line["error"], r"^not more than one in 60 s: try again in \d+ s$")
        self.assertIs(line["passing"], True)
        program.do("lowtide_probe._watch._evidence._asked -= 60")
        self.heard.ask("snapshot", fds=[self.file("e")[0]], id="e", max_bytes=LARGE)
        self.assertEqual(self.answer("e")["status"], "ok")
        self.assertEqual(program.do(GIVEN), "[]")

    def test_the_other_back_end(self):
        program = self.started("torch.state.backend = 'cudaMallocAsync'")
        for kind, reason in (("snapshot", "asked"), ("arm", "oom")):
            self.heard.ask(kind, fds=[self.file(kind)[0]], max_bytes=LARGE, **({} if kind == "arm" else {"history_seconds": 600}))
            line = self.answer(kind)
            self.assertEqual((line["status"], line["error"], line["reason"]), ("unsupported", "the allocator is cudaMallocAsync, which keeps no snapshot", reason))
        self.assertEqual(program.do("torch.state.recordings"), "[]")
        self.assertEqual(program.do(GIVEN), "[]")

    def test_wrong_descriptors(self):
        program = self.started()
        first, second = self.file("a")[0], self.file("b")[0]
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        for name, fds, error in (("none", [], "one descriptor must come with it, not 0"), ("two", [first, second], "one descriptor must come with it, not 2"),
                ("pipe", [writer], "the descriptor is no empty file open for writing")):
            self.heard.ask("snapshot", id=name, fds=fds, max_bytes=LARGE)
            line = self.answer(name)
            self.assertEqual((line["status"], line["error"]), ("refused", error))
            program.do("lowtide_probe._watch._evidence._asked -= 60")
        self.heard.ask("snapshot", id="field", fds=[first])
        self.assertEqual(self.answer("field")["error"], "max_bytes: None is not a number from 1 on")
        stage.send(self.heard.connections[0], b"nonsense\n", [first, second])
        self.heard.ask("snapshot", id="good", fds=[first], max_bytes=LARGE)
        self.assertEqual(self.answer("good")["status"], "ok")
        self.assertEqual(program.do(GIVEN), "[]")

    def test_everything_raises(self):
        program = self.started()
        program.do("torch.state.broken = True")
        self.heard.ask("snapshot", id="a", fds=[self.file("a")[0]], history_seconds=600, census=True, **WINDOW)
        line = self.answer("a")
        self.assertEqual((line["status"], line["error"]), ("failed", "RuntimeError: broken on purpose"))
        self.heard.ask("arm", id="b", fds=[self.file("b")[0]], max_bytes=LARGE)
        self.until(program, "lowtide_probe._watch._evidence._armed is not None", "True")
        with self.assertRaisesRegex(AssertionError, "OutOfMemoryError: CUDA out of memory"):
            program.do("torch.fail()")
        self.assertEqual(self.answer("b")["status"], "failed")
        program.do("torch.state.broken = False; lowtide_probe._watch._evidence._asked -= 60")
        program.do("lowtide_probe._watch._evidence._hear = None")  # the probe's own fault
        self.heard.ask("snapshot", id="c", fds=[self.file("c")[0]], max_bytes=LARGE)
        self.heard.wait("read")
        self.heard.wait("read")
        self.assertEqual(program.do(GIVEN), "[]")
        self.assertEqual(program.end(), "")

    def test_census(self):
        program = self.started("import gc; gc.unfreeze(); kept = [torch.Tensor(1, 100), torch.Tensor(2, 20, is_leaf=True)]")
        self.heard.ask("census", census_seconds=0.2)
        line = self.answer("census")
        self.assertLess(line["census"].pop("took_seconds"), 5)
        self.assertEqual(line, {"reason": "asked", "status": "ok", "census": {"tensors": 1, "bytes": 100, "complete": True}})
        program.do("lowtide_probe._watch._evidence._asked -= 60")
        self.heard.ask("snapshot", fds=[self.file()[0]], max_bytes=LARGE, census=True)
        line = self.answer()
        self.assertEqual((line["status"], line["census"]["tensors"]), ("ok", 1))
        program.do("asked = torch.Tensor.asked; lowtide_probe._watch._evidence._asked -= 60")
        self.heard.ask("snapshot", id="without", fds=[self.file("without")[0]], max_bytes=LARGE)
        self.assertNotIn("census", self.answer("without"))  # only who asks for it gets it
        self.assertEqual(program.do("torch.Tensor.asked == asked"), "True")

    def test_flood_of_asks(self):
        program = self.started()
        fd = self.file()[0]
        try:
            for _ in range(500):
                self.heard.ask("arm", fds=[fd], max_bytes=LARGE)
        except OSError:
            pass
        self.heard.wait("closed")
        self.heard.accepted.get(timeout=stage.PATIENCE)
        self.heard.accepted.get(timeout=stage.PATIENCE)  # it came back
        self.until(program, GIVEN, "[]")
        self.assertEqual(program.end(), "")


class PostMortem(Case):
    def armed(self, program, name="arm", **fields):
        fd, path = self.file(name)
        self.heard.ask("arm", id=name, fds=[fd], **dict(dict(max_bytes=LARGE, budget_seconds=5), **fields))
        self.until(program, "getattr(getattr(lowtide_probe._watch._evidence._armed, 'ask', None), 'id', '')", repr(name))
        return path

    def test_at_the_first_failure(self):
        program = self.started()
        path = self.armed(program)
        with self.assertRaisesRegex(AssertionError, "OutOfMemoryError: CUDA out of memory"):
            program.do("torch.fail()")
        order = []
        while len(order) < 2:
            _, line = self.heard.lines.get(timeout=stage.PATIENCE)
            order += [line] if line["kind"] in ("oom", "snapshot") else []
        self.assertEqual([line["kind"] for line in order], ["oom", "snapshot"])  # what is certain goes first
        line = order[1]
        self.assertEqual((line["id"], line["reason"], line["status"], line["bytes"], line["devices"]), ("arm", "oom", "ok", os.path.getsize(path), {"0": UUID}))
        self.assertEqual(len(self.unpickle(path)["segments"]), 1)
        self.assertEqual(program.do(GIVEN), "[]")

    def test_one_an_hour(self):
        program = self.started()
        self.armed(program, "first")
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        self.assertEqual(self.answer("first")["status"], "ok")
        path = self.armed(program, "second")
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        self.assertEqual(os.path.getsize(path), 0)
        program.do("lowtide_probe._watch._evidence._written -= 3600")  # which it waits for, armed
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        self.assertEqual(self.answer("second")["bytes"], os.path.getsize(path))

    def test_armed_anew(self):
        program = self.started()
        first = self.armed(program, "first")
        second = self.armed(program, "second")
        self.assertEqual(program.do("len(%s)" % GIVEN), "1")
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        self.assertEqual(self.answer("second")["status"], "ok")
        self.assertEqual(os.path.getsize(first), 0)
        self.assertGreater(os.path.getsize(second), 0)

    def test_a_failure_in_the_midst_of_it(self):
        # Garbage that is collected meanwhile may run code of the program's that allocates.
        program = self.started()
        path = self.armed(program)
        program.do("ooms = []")
        program.do("torch.state.during = lambda: (ooms.append(1), [observer(0, 1 << 30, 8 << 30, 5) for observer in torch.state.observers])")
        with self.assertRaisesRegex(AssertionError, "OutOfMemoryError: CUDA out of memory"):
            program.do("torch.fail()")
        self.assertEqual(self.answer("arm")["bytes"], os.path.getsize(path))
        self.assertEqual(program.do("ooms"), "[1]")

    def test_a_failure_while_a_snapshot_is_taken(self):
        program = self.started()
        path = self.armed(program)
        program.do("import threading; inside, go = threading.Event(), threading.Event()")
        program.do("torch.state.during = lambda: (inside.set(), go.wait(20))")
        self.heard.ask("snapshot", fds=[self.file("asked")[0]], max_bytes=LARGE)
        program.do("inside.wait(20)")
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")  # does not wait for it
        program.do("go.set()")
        self.assertEqual(self.answer()["status"], "ok")
        self.assertEqual(os.path.getsize(path), 0)
        program.do("torch.state.during = None")
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")  # and still armed
        self.assertEqual(self.answer("arm")["bytes"], os.path.getsize(path))

    def test_within_its_size(self):
        program = self.started()
        path = self.armed(program, max_bytes=1000)
        with self.assertRaisesRegex(AssertionError, "OutOfMemoryError: CUDA out of memory"):
            program.do("torch.fail()")
        self.assertEqual((self.answer("arm")["status"], os.path.getsize(path)), ("refused", 0))

    def test_within_its_time(self):
        program = self.started("torch.state.during = lambda: __import__('time').sleep(0.02)")
        program.do("import lowtide_probe.snapshot; lowtide_probe.snapshot.WRITE_SECONDS = 0")
        path = self.armed(program, budget_seconds=0.01)
        with self.assertRaisesRegex(AssertionError, "OutOfMemoryError: CUDA out of memory"):
            program.do("torch.fail()")
        line = self.answer("arm")
        self.assertEqual((line["status"], line["passing"], os.path.getsize(path)), ("failed", True, 0))
        self.assertRegex(line["error"], r"^stopped: not ready within the 0\.00\d+ s allowed \(torch took 0\.0[2-9]\d* s to make it, 0 bytes are written\)$")

    def test_interrupted_by_the_program(self):
        program = self.started("torch.state.during = lambda: (_ for _ in ()).throw(KeyboardInterrupt())")
        path = self.armed(program)
        program.do("try_it = lambda: [observer(0, 1 << 20, 8 << 30, 5) for observer in torch.state.observers]")
        program.do("from unittest import TestCase; TestCase().assertRaises(KeyboardInterrupt, try_it)")  # it is the program's own
        line = self.answer("arm")
        self.assertEqual((line["status"], line["error"], os.path.getsize(path)), ("failed", "stopped: the program interrupted it", 0))
        self.assertEqual(program.do(GIVEN), "[]")
        program.do("torch.state.during = None; lowtide_probe._watch._evidence._written -= 3600")
        path = self.armed(program, "again")  # and nothing stays locked
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        self.assertEqual(self.answer("again")["bytes"], os.path.getsize(path))

    def test_with_the_history_that_is_on(self):
        program = self.started()
        path = self.armed(program)
        self.heard.ask("snapshot", fds=[self.file("asked")[0]], history_seconds=600, **dict(WINDOW, max_entries=1000))
        self.heard.wait("recording")
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        line = self.answer("arm")
        self.assertEqual(line["status"], "ok")
        self.assertGreater(line["history_seconds"], 0)
        self.assertEqual(self.unpickle(path)["segments"][0]["blocks"][0]["frames"][0]["line"], 42)
        self.assertEqual(program.do("torch.state.recorded is not None"), "True")  # it goes on

    def test_a_process_that_dies_in_the_same_moment(self):
        program = self.started()
        path = self.armed(program)
        code, _ = program.die("[observer(0, 1 << 20, 8 << 30, 5) for observer in torch.state.observers]; __import__('os')._exit(9)")
        self.assertEqual(code, 9)
        self.assertEqual(self.answer("arm")["bytes"], os.path.getsize(path))

    def test_told_at_the_end_when_it_could_not_be_told_at_once(self):
        program = self.started()
        path = self.armed(program)
        program.do("lowtide_probe._watch._link.send_now = lambda data: False; lowtide_probe._watch._evidence.turn = lambda: None")
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        self.assertEqual(program.end(), "")
        self.assertEqual(self.answer("arm")["bytes"], os.path.getsize(path))


class Ends(Case):
    def test_history_is_off_at_exit(self):
        seen = os.path.join(self.folder, "recordings")
        program = self.started("import atexit; atexit.register(lambda: open(%r, 'w').write(repr([first for first, _ in torch.state.recordings])))" % seen)
        self.heard.ask("snapshot", fds=[self.file()[0]], history_seconds=600, **WINDOW)
        self.heard.wait("recording")
        self.assertEqual(program.end(), "")
        self.heard.wait("bye")
        with open(seen) as f:
            self.assertEqual(f.read(), "['all', None]")

    def test_a_forked_child_has_nothing_of_it(self):
        program = self.started()
        self.heard.ask("snapshot", fds=[self.file("asked")[0]], history_seconds=600, **WINDOW)
        self.heard.ask("arm", fds=[self.file("armed")[0]], max_bytes=256 << 20)
        self.heard.wait("recording")
        self.until(program, "len(%s)" % GIVEN, "2")
        program.do("import multiprocessing, threading; context = multiprocessing.get_context('fork'); answers = context.Queue()")
        program.do("child = lambda: answers.put((%s, threading.active_count(), [observer(0, 1, 2, 3) for observer in torch.state.observers], len(torch.state.recordings)))" % GIVEN)
        program.do("worker = context.Process(target=child); worker.start()")
        self.assertEqual(program.do("answers.get(timeout=20)"), "([], 1, [None], 1)")  # no descriptor, no thread, no post-mortem, no call
        program.do("worker.join(20)")
        self.assertEqual(program.do("len(%s), torch.state.recorded is not None" % GIVEN), "(2, True)")  # the parent's stay
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        self.assertEqual(self.answer("arm")["status"], "ok")

    def test_a_child_that_is_forked_while_it_is_written(self):
        program = self.started()
        program.do("import multiprocessing; context = multiprocessing.get_context('fork'); answers = context.Queue(); import threading")
        program.do("inside, go = threading.Event(), threading.Event()")
        program.do("torch.state.during = lambda: (inside.set(), go.wait(20))")
        fd, path = self.file()
        self.heard.ask("snapshot", fds=[fd], max_bytes=LARGE)
        program.do("inside.wait(20)")
        program.do("child = lambda: answers.put(%s)" % GIVEN)
        program.do("worker = context.Process(target=child); worker.start()")
        self.assertEqual(program.do("answers.get(timeout=20)"), "[]")
        program.do("worker.join(20); go.set()")
        self.assertEqual(self.answer()["bytes"], os.path.getsize(path))

    def test_the_probes_own_fault_before_it_begins(self):
        program = self.started()
        program.do("lowtide_probe._watch._evidence._reader.ordinals = lambda: 1 / 0")
        self.heard.ask("snapshot", fds=[self.file()[0]], max_bytes=LARGE)
        self.assertEqual(self.answer()["note"], "ZeroDivisionError: division by zero")
        self.assertEqual(program.do(GIVEN), "[]")

    def test_a_program_started_meanwhile_keeps_no_descriptor(self):
        program = self.started()
        self.heard.ask("arm", fds=[self.file("armed")[0]], max_bytes=LARGE)
        self.until(program, "len(%s)" % GIVEN, "1")
        program.do("import subprocess, sys")
        self.assertEqual(program.do("subprocess.check_output([sys.executable, '-S', '-c', 'import os; print(%s)' % " + repr(GIVEN) + "], close_fds=False, text=True)"), "'[]\\n'")

    def test_killed(self):
        program = self.started()
        self.heard.ask("snapshot", fds=[self.file()[0]], history_seconds=600, **WINDOW)
        self.heard.wait("recording")
        program.process.send_signal(signal.SIGTERM)
        self.assertEqual(program.process.wait(stage.PATIENCE), -signal.SIGTERM)
        self.heard.wait("closed")


if __name__ == "__main__":
    unittest.main()
