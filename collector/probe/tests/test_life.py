"""The probe inside a program, against a collector on a real socket."""

import os
import signal
import sys
import time
import unittest

import stage


class Life(stage.Case):
    def test_nothing_happens_before_torch(self):
        collector = self.collector()
        program = self.program()
        self.assertEqual(program.do("'torch' in __import__('sys').modules, __import__('threading').active_count()"), "(False, 1)")
        program.do("import torch")
        self.assertEqual(program.do("__import__('threading').active_count()"), "2")
        program.do("__import__('time').sleep(0.1)")  # ten polls of the sped-up probe
        self.assertTrue(collector.accepted.empty())
        self.untouched()
        program.do("torch.cuda.init()")
        hello = collector.wait("hello")
        self.assertEqual({k: hello[k] for k in ("v", "probe", "pid", "torch", "cuda", "backend", "engine", "rank")},
            {"v": 1, "probe": "0.2.0", "pid": program.process.pid, "torch": "2.11.0+cu130", "cuda": "13.0", "backend": "native", "engine": "", "rank": ""})
        read = collector.wait("read")
        self.assertEqual(read["devices"][0]["allocated_bytes"], 600)
        self.assertEqual(read["devices"][0]["gpu_uuid"], "GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000")
        self.assertAlmostEqual(read["time"], time.time(), delta=5)
        self.assertGreater(read["took_seconds"], 0)
        self.untouched()
        self.assertEqual(program.end(), "")
        self.assertIsNone(collector.wait("bye")["exit_code"])

    def test_who_only_looks_for_torch_has_no_thread(self):
        # transformers and others look whether there is a torch, in processes that never import it.
        collector = self.collector()
        program = self.program()
        program.do("import importlib.util, threading")
        self.assertEqual(program.do("importlib.util.find_spec('torch') is not None and threading.active_count()"), "1")
        program.torch()
        collector.wait("hello")

    def test_reads_fall_on_multiples_of_the_interval(self):
        collector = self.collector(greeting=b'{"lowtide":1,"interval_seconds":0.25}\n')
        program = self.program()
        program.torch()
        times = [collector.wait("read")["time"] for _ in range(3)]
        self.assertLess(min(at % 0.25 for at in times), 0.2)  # a busy machine may delay one of them
        self.assertEqual(len({at // 0.25 for at in times}), 3)

    def test_start_may_be_called_often_and_late(self):
        collector = self.collector()
        program = self.program(start=False)
        program.torch()
        program.do(stage.QUICK)
        program.do("import lowtide_probe")
        for _ in range(3):
            program.do("lowtide_probe.start()")
        collector.wait("read")
        self.assertEqual(program.do("__import__('threading').active_count()"), "2")
        self.assertEqual(collector.accepted.qsize(), 1)

    def test_turned_off(self):
        for environment in ({"LOWTIDE_PROBE": "0"}, {"LOWTIDE_PROBE_SOCKET": ""}):
            program = self.program(**environment)
            if os.path.isdir("/run/lowtide") and "LOWTIDE_PROBE" not in environment:
                print("SKIPPED: this machine has a collector's folder", file=sys.stderr)
                continue
            program.torch()
            self.assertEqual(program.do("__import__('threading').active_count()"), "1")
            program.do("lowtide_probe.busy(); lowtide_probe.idle(); lowtide_probe.oom(ValueError('x')); lowtide_probe.oom()")
            self.assertEqual(program.end(), "")

    def test_slow_read_doubles_the_interval(self):
        collector = self.collector()
        program = self.program()
        program.do("import torch; torch.state.slow = 0.008")
        program.do("torch.cuda.init()")
        self.assertEqual([collector.wait("read")["interval_seconds"] for _ in range(3)], [0.1, 0.2, 0.4])

    def test_collector_goes_and_comes_back(self):
        first = self.collector()
        program = self.program()
        program.torch()
        first.wait("read")
        first.close()
        program.do("lowtide_probe.idle('drained')")  # kept until somebody listens
        second = self.collector()
        self.assertEqual(second.wait("hello")["kind"], "hello")
        mark = second.wait("mark")
        self.assertEqual((mark["mark"], mark["name"]), ("quiet", "drained"))
        second.wait("read")
        self.assertEqual(program.end(), "")

    def test_collector_that_talks_nonsense(self):
        for greeting in (b"\x00\xff\n", b"{}\n", b"[1]\n", b'{"lowtide":2,"interval_seconds":5}\n', b'{"lowtide":1,"interval_seconds":1e999}\n',
                b'{"lowtide":1,"interval_seconds":-1}\n', b'"' + b"x" * 9000, b"[" * 5000 + b"\n"):
            collector = self.collector(greeting=greeting)
            program = self.program()
            program.torch()
            collector.accepted.get(timeout=stage.PATIENCE)
            collector.accepted.get(timeout=stage.PATIENCE)  # it left, and looked again
            collector.close()
            self.assertEqual(program.do("1 + 1"), "2")
            self.assertEqual(program.end(), "")

    def test_collector_that_floods(self):
        collector = self.collector(greeting=b'{"lowtide":1,"interval_seconds":0.05}\n' + b"x" * 200000)
        program = self.program()
        program.torch()
        collector.accepted.get(timeout=stage.PATIENCE)
        collector.accepted.get(timeout=stage.PATIENCE)
        self.assertEqual(program.end(), "")

    def test_collector_that_reads_nothing_does_not_stop_the_program(self):
        collector = self.collector(silent=True)
        program = self.program()
        program.torch()
        collector.accepted.get(timeout=stage.PATIENCE)
        program.do("big = 'x' * 60000")
        began = time.monotonic()
        program.do("[lowtide_probe.oom(RuntimeError('CUDA out of memory ' + str(i) + big)) for i in range(200)] and None")
        self.assertLess(time.monotonic() - began, 2)
        self.assertLessEqual(int(program.do("len(lowtide_probe._watch._failures)")), 64)

    def test_everything_raises(self):
        collector = self.collector()
        program = self.program()
        program.do("import torch; torch.cuda.init(); torch.state.broken = True")
        program.do("__import__('time').sleep(0.1)")
        program.do("torch.state.broken = False")
        collector.wait("read", lambda line: line["devices"])
        program.do("torch.state.broken = True")
        self.assertEqual(collector.wait("read", lambda line: not line["devices"])["devices"], [])
        self.assertEqual(program.end(), "")

    def test_threads_of_the_program(self):
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("hello")
        program.do("import threading; threads = [threading.Thread(target=lambda: [(lowtide_probe.busy(), lowtide_probe.idle()) for _ in range(2000)]) for _ in range(8)]")
        program.do("[t.start() for t in threads] and [t.join() for t in threads] and None")
        program.do("lowtide_probe.busy('last')")
        collector.wait("mark", lambda line: line["name"] == "last")
        self.assertEqual(program.end(), "")


class Marks(stage.Case):
    def test_the_newest_mark_holds(self):
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("hello")
        program.do("lowtide_probe.busy()")
        self.assertEqual(collector.wait("mark")["mark"], "busy")
        program.do("lowtide_probe.busy(); lowtide_probe.idle('a'); lowtide_probe.busy(); lowtide_probe.idle('a')")
        mark = collector.wait("mark")
        self.assertEqual((mark["mark"], mark["name"]), ("quiet", "a"))


class Failures(stage.Case):
    def test_observer_tells_at_once(self):
        collector = self.collector(greeting=b'{"lowtide":1,"interval_seconds":60}\n')
        program = self.program()
        program.torch()
        collector.wait("hello")
        program.do("from contextlib import suppress")
        program.do("with suppress(torch.OutOfMemoryError): torch.fail(limit=4 << 30)")
        line = collector.wait("oom")
        self.assertAlmostEqual(line.pop("time"), time.time(), delta=5)
        self.assertEqual(line, {"v": 1, "kind": "oom", "source": "observer", "gpu_uuid": "GPU-9f1d6a3c-0b7e-4a51-8c2d-000000000000",
            "requested_bytes": 536870912, "free_bytes": 104857600, "limit_bytes": 4 << 30, "allocated_bytes": 600, "connection": 1})
        program.do("with suppress(torch.OutOfMemoryError): torch.fail()")
        self.assertNotIn("limit_bytes", collector.wait("oom"))  # the whole device is no limit

    def test_a_process_that_dies_in_the_same_moment(self):
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("read")
        code, _ = program.die("[observer(0, 1 << 20, 8 << 30, 5) for observer in torch.state.observers]; __import__('os')._exit(9)")
        self.assertEqual(code, 9)
        self.assertEqual(collector.wait("oom")["requested_bytes"], 1 << 20)

    def test_observer_never_replaces_the_program_s_exception(self):
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("hello")
        program.do("torch.state.broken = True; lowtide_probe._watch._urgent = None")
        with self.assertRaisesRegex(AssertionError, "OutOfMemoryError: CUDA out of memory"):
            program.do("torch.fail()")

    def test_unhandled(self):
        collector = self.collector()
        program = self.program()
        program.do("import sys; sys.excepthook = lambda kind, value, trace: print('mine:', kind.__name__, file=sys.stderr)")
        program.torch()
        collector.wait("read")
        code, err = program.die("torch.fail()")
        self.assertEqual((code, err), (1, "mine: OutOfMemoryError\n"))
        self.assertEqual(collector.wait("oom")["source"], "observer")
        text = collector.wait("oom")
        self.assertEqual(text["source"], "exception")
        self.assertTrue(text["text"].startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."))
        self.assertEqual(collector.wait("bye")["exit_code"], 1)

    def test_unhandled_that_is_no_oom(self):
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("read")
        code, err = program.die("raise ValueError('nothing to do with it')")
        self.assertEqual(code, 1)
        self.assertIn("ValueError: nothing to do with it", err)
        number, line = collector.lines.get(timeout=stage.PATIENCE)
        while line["kind"] == "read":
            number, line = collector.lines.get(timeout=stage.PATIENCE)
        self.assertEqual((line["kind"], line["exit_code"]), ("bye", 1))

    def test_unhandled_in_a_thread(self):
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("read")
        program.do("import threading; t = threading.Thread(target=torch.fail); t.start(); t.join()")
        self.assertEqual(collector.wait("oom")["source"], "observer")
        self.assertEqual(collector.wait("oom")["source"], "exception")
        self.assertIn("OutOfMemoryError", program.end())  # the program's own report of it
        self.assertIsNone(collector.wait("bye")["exit_code"])

    def test_caught_and_told_once(self):
        collector = self.collector()
        program = self.program()
        program.do("import torch; torch.state.backend = 'cudaMallocAsync'")
        program.do("torch.cuda.init()")
        collector.wait("read")
        program.do("e = torch.OutOfMemoryError('Allocation on device 0 would exceed allowed memory. (out of memory)')")
        program.do("lowtide_probe.oom(e); lowtide_probe.oom(e)")
        self.assertIn("would exceed allowed memory", collector.wait("oom")["text"])
        code, _ = program.die("raise e")
        number, line = collector.lines.get(timeout=stage.PATIENCE)
        while line["kind"] == "read":
            number, line = collector.lines.get(timeout=stage.PATIENCE)
        self.assertEqual(line["kind"], "bye")

    def test_built_in_exceptions_are_told_too(self):
        # RuntimeError is what older builds raise for the driver's and cuBLAS's failures; it takes no weak reference.
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("read")
        program.do("e = RuntimeError('CUDA error: out of memory')")
        program.do("lowtide_probe.oom(e); lowtide_probe.oom(e)")
        self.assertEqual(collector.wait("oom")["text"], "RuntimeError: CUDA error: out of memory")
        code, _ = program.die("raise e")
        number, line = collector.lines.get(timeout=stage.PATIENCE)
        while line["kind"] == "read":
            number, line = collector.lines.get(timeout=stage.PATIENCE)
        self.assertEqual(line["kind"], "bye")  # once, although it was told twice and raised

    def test_signals_stay_with_the_program(self):
        # A program that waits for its signals blocks them after it has imported torch. The probe's thread, begun before, must
        # not be the one that takes them: the default end would come instead of the program's own.
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("read")
        program.do("import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])")
        program.do("os.kill(os.getpid(), signal.SIGTERM)")
        self.assertEqual(program.do("signal.sigtimedwait([signal.SIGTERM], 20).si_signo == signal.SIGTERM"), "True")

    def test_a_signal_handler_may_call(self):
        # A handler that says `idle` can interrupt the main thread inside the very call that it makes.
        self.collector()
        program = self.program()
        program.torch()
        program.do("import signal; n = [0]")
        program.do("signal.signal(signal.SIGALRM, lambda *a: (n.__setitem__(0, n[0] + 1), lowtide_probe._watch._wake.set()))")
        program.do("signal.setitimer(signal.ITIMER_REAL, .001, .001)")
        program.do("import time; t = time.monotonic(); exec('while time.monotonic() < t + 2: lowtide_probe._watch._wake.set()')")
        program.do("signal.setitimer(signal.ITIMER_REAL, 0)")
        self.assertGreater(int(program.do("n[0]")), 100)

    def test_terminated(self):
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("read")
        program.process.send_signal(signal.SIGTERM)  # no handler is the probe's to set: no bye, and the default end
        self.assertEqual(program.process.wait(stage.PATIENCE), -signal.SIGTERM)
        collector.wait("closed")


class Forks(stage.Case):
    def test_forked_worker(self):
        collector = self.collector()
        program = self.program()
        program.do("import os, torch, time, multiprocessing")
        program.do("context = multiprocessing.get_context('fork'); go = context.Event()")
        program.do("worker = context.Process(target=lambda: (torch.cuda.init(), go.wait(20)))")
        program.do("worker.start()")
        pid = int(program.do("worker.pid"))
        hello = collector.wait("hello")
        self.assertEqual(hello["pid"], pid)  # the child's, since only it has initialised CUDA
        collector.wait("read")
        program.do("go.set(); worker.join(20)")
        self.assertIsNone(collector.wait("bye")["exit_code"])
        program.do("torch.cuda.init()")
        self.assertEqual(collector.wait("hello")["pid"], program.process.pid)
        self.untouched()
        self.assertEqual(program.end(), "")

    def test_child_of_a_parent_with_cuda_is_left_alone(self):
        collector = self.collector()
        program = self.program()
        program.torch()
        collector.wait("read")
        program.do("import multiprocessing, threading")
        program.do("context = multiprocessing.get_context('fork'); answers = context.Queue()")
        program.do("worker = context.Process(target=lambda: answers.put(threading.active_count()))")
        program.do("worker.start()")
        self.assertEqual(program.do("answers.get(timeout=20), worker.join(20)")[1], "1")  # no probe
        self.assertEqual(collector.accepted.qsize(), 1)
        collector.wait("read")  # the parent's connection is still its own
        self.assertEqual(program.end(), "")

    def test_spawned_worker(self):
        collector = self.collector()
        program = self.program(PYTHONPATH=os.pathsep.join([os.path.join(stage.PROBE, "inject"), stage.FAKE, stage.PROBE]))
        program.do("import subprocess, sys")
        program.do("r = subprocess.run([sys.executable, '-c', %r], stdin=subprocess.DEVNULL)" % (stage.QUICK + "\nimport torch, time\ntorch.cuda.init()\ntime.sleep(1)"))
        self.assertEqual(collector.wait("hello")["kind"], "hello")
        collector.wait("bye")
        self.assertEqual(program.end(), "")


if __name__ == "__main__":
    unittest.main()
