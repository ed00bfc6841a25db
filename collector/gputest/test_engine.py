import unittest

from blocks import BlockPool
from client import Client, Profile
from engine import Engine, Faults
from metrics import EngineMetrics, cache_config
from scheduler import Scheduler
from test_metrics import read, value


class OutOfMemory(RuntimeError):
    """Stands for torch's exception."""


class World:
    """A clock that moves only when somebody sleeps or the model computes: 10 ms a step."""

    def __init__(self):
        self.now = 0.0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


class LineModel:
    """Answers with the length so far, 10 ms a step; raises at the steps it is told."""

    def __init__(self, world, fails=()):
        self.world = world
        self.fails = set(fails)
        self.steps = 0

    def execute(self, step):
        self.steps += 1
        self.world.now += 0.01
        if self.steps in self.fails:
            raise OutOfMemory("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return [len(request.tokens) for request in step.requests()]

    def is_oom(self, error):
        return isinstance(error, OutOfMemory)


def engine(world, fails=(), faults=None, blocks=512, die=False, **profile):
    profile = Profile(**dict({"rate": 5, "burst_seconds": 5, "drain_seconds": 10, "prompt_mean": 50, "prompt_max": 200,
                              "output_mean": 30, "output_max": 100, "vocab": 100}, **profile))
    metrics = EngineMetrics("m", 512, cache_config(16, blocks, 1 << 20, 0.9), 0)
    lines = []
    made = Engine(LineModel(world, fails), Scheduler(BlockPool(blocks), max_model_len=512), Client(profile, 4), metrics,
                  world.clock, world.sleep, lines.append, faults, die)
    return made, lines


class EngineTest(unittest.TestCase):
    def test_a_run_ends_with_every_request_answered_and_every_block_free(self):
        world = World()
        made, _ = engine(world, abort_fraction=0.3)
        made.run(lambda: False, seconds=120)
        got = made.summary()
        self.assertEqual(sum(got["finished"].values()), got["sent"])
        self.assertGreater(got["finished"]["abort"], 30)
        self.assertEqual((got["free_blocks"], got["held_blocks"], got["ooms"]), (512, 0, 0))
        self.assertLess(world.now, 125)
        _, values = read(made.metrics.text())
        for reason, count in got["finished"].items():
            self.assertEqual(value(values, "request_success_total", finished_reason=reason), count)
        self.assertEqual((value(values, "num_requests_running"), value(values, "kv_cache_usage_perc")), (0, 0))
        self.assertEqual(value(values, "time_to_first_token_seconds_count") + value(values, "inter_token_latency_seconds_count"),
                         value(values, "generation_tokens_total"))
        # A step takes 10 ms here, and nothing ever waits for blocks.
        self.assertLess(value(values, "inter_token_latency_seconds_sum") / value(values, "inter_token_latency_seconds_count"), 0.0101)

    def test_the_engine_is_idle_in_every_drain(self):
        world = World()
        made, _ = engine(world)
        for _ in range(20000):
            made.turn()
            if world.now % 15 > 9:  # burst of 5 s, and 4 s for the last answers
                self.assertEqual((len(made.scheduler.running), made.scheduler.pool.usage), (0, 0.0))
        self.assertGreater(world.now, 60)

    def test_a_small_pool_preempts_and_still_answers_everybody(self):
        world = World()
        made, _ = engine(world, blocks=36, rate=20)
        made.run(lambda: False, seconds=60)
        got = made.summary()
        self.assertGreater(got["preemptions"], 0)
        self.assertEqual((sum(got["finished"].values()), got["free_blocks"]), (got["sent"], 36))
        self.assertNotIn("abort", got["finished"])
        _, values = read(made.metrics.text())
        self.assertEqual(value(values, "num_preemptions_total"), got["preemptions"])
        # Recomputing counts no prompt twice.
        self.assertEqual(value(values, "prompt_tokens_total"), value(values, "request_prompt_tokens_sum"))

    def test_an_oom_is_told_in_full_and_fails_the_step_it_happened_in(self):
        world = World()
        made, lines = engine(world, fails=(30,))
        made.run(lambda: False, seconds=30)
        got = made.summary()
        told = [line for line in lines if line.startswith("ERROR")]
        self.assertEqual(told, ["ERROR test_engine.OutOfMemory: CUDA out of memory. Tried to allocate 2.00 GiB."])
        self.assertGreaterEqual(got["finished"]["error"], 1)
        self.assertEqual((got["ooms"], got["free_blocks"]), (1, 512))
        self.assertEqual(sum(got["finished"].values()), got["sent"])

    def test_an_oom_ends_the_process_where_that_was_asked_for(self):
        made, lines = engine(World(), fails=(30,), die=True)
        with self.assertRaises(OutOfMemory):
            made.run(lambda: False, seconds=30)
        self.assertEqual(len([line for line in lines if "out of memory" in line]), 1)

    def test_any_other_error_goes_up(self):
        made, _ = engine(World())
        made.model.execute = lambda step: 1 / 0
        with self.assertRaises(ZeroDivisionError):
            made.run(lambda: False, seconds=30)

    def test_faults_hear_of_every_abort_and_of_the_time_and_may_run_out_of_memory(self):
        heard, ticks = [], []

        class Planted(Faults):
            def aborted(self, request):
                heard.append((request.finished, request.table))
                raise OutOfMemory("CUDA out of memory. Tried to allocate 16.00 MiB.")

            def holds_blocks(self):
                return True

            def tick(self, now):
                ticks.append(now)

        made, lines = engine(World(), faults=Planted(), abort_fraction=1.0)
        made.run(lambda: False, seconds=14)
        got = made.summary()
        self.assertEqual(len(heard), got["finished"]["abort"])
        self.assertEqual(set(reason for reason, _ in heard), {"abort"})
        self.assertEqual(got["ooms"], len(heard))
        self.assertGreater(got["held_blocks"], len(heard))  # prompts of 50 tokens: more than a block each
        self.assertEqual(got["free_blocks"] + got["held_blocks"], 512)
        self.assertNotIn("error", got["finished"])
        self.assertEqual(ticks, sorted(ticks))

    def test_an_engine_that_hangs_takes_requests_in_and_answers_none_until_the_drain_is_over(self):
        class Hangs(Faults):
            def tick(self, now):
                self.now = now

            def hangs(self):
                return self.now >= 17

        world = World()
        made, lines = engine(world, faults=Hangs())
        made.run(lambda: False, seconds=60, drain_seconds=5)
        self.assertRegex(lines[-1], r"^draining: [1-9]\d* running, [1-9]\d* waiting$")
        self.assertLess(abs(world.now - 65), 0.1)
        got = made.summary()
        self.assertEqual(made.model.steps, got["steps"])
        self.assertGreater(got["finished"]["abort"], 40)  # bursts at 30 and 45, whom nobody answers: 5 a second for 5 s
        self.assertEqual(sum(got["finished"].values()), got["sent"])

    def test_a_held_pool_admits_nobody_and_the_drain_ends_all_the_same(self):
        class Holds(Faults):
            def holds_blocks(self):
                return True

        world = World()
        made, lines = engine(world, faults=Holds(), abort_fraction=0.5, blocks=40)
        made.run(lambda: False, seconds=200, drain_seconds=30)
        got = made.summary()
        self.assertEqual(got["held_blocks"] + got["free_blocks"], 40)
        self.assertLess(got["free_blocks"], 8)
        self.assertEqual(sum(got["finished"].values()), got["sent"])
        self.assertLess(abs(world.now - 230), 1)
        self.assertRegex(lines[-1], r"^draining: 0 running, [1-9]\d* waiting$")

    def test_told_to_stop_it_answers_those_in_flight_and_takes_nobody_new(self):
        world = World()
        made, _ = engine(world, drain_seconds=0)
        made.run(lambda: world.now >= 7)
        got = made.summary()
        self.assertNotIn("abort", got["finished"])
        self.assertEqual(sum(got["finished"].values()), got["sent"])
        self.assertTrue(7 < world.now < 9)


if __name__ == "__main__":
    unittest.main()
