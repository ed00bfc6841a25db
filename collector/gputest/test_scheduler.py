import random
import unittest

from blocks import BlockPool
from scheduler import ABORT, LENGTH, STOP, Request, Scheduler


def scheduler(blocks, **options):
    return Scheduler(BlockPool(blocks, 16), watermark=0, **dict({"max_model_len": 256}, **options))


def advance(sched, step):
    """Gives every request of a step its token and ends those that are done."""
    for request in step.requests():
        reason = sched.token(request, 7)
        if reason:
            sched.finish(request, reason)


class SchedulerTest(unittest.TestCase):
    def test_prefill_then_one_token_a_step_until_the_end(self):
        sched = scheduler(8)
        request = Request(1, [1] * 20, output_tokens=3, max_tokens=10)
        sched.add(request)
        kinds = []
        while sched.waiting or sched.running:
            step = sched.schedule()
            kinds.append((len(step.prefills), len(step.decodes)))
            advance(sched, step)
        self.assertEqual(kinds, [(1, 0), (0, 1), (0, 1)])
        self.assertEqual((request.finished, request.generated, sched.pool.free), (STOP, 3, 8))

    def test_the_length_limit_is_told_from_the_models_own_end(self):
        sched = scheduler(8)
        request = Request(1, [1], output_tokens=2, max_tokens=2)
        sched.add(request)
        advance(sched, sched.schedule())
        advance(sched, sched.schedule())
        self.assertEqual(request.finished, LENGTH)

    def test_nobody_is_admitted_without_blocks_or_past_the_head_of_the_queue(self):
        sched = scheduler(4)
        large, small = Request(2, [1] * 48, 2, 2), Request(3, [1], 2, 2)
        sched.add(Request(1, [1] * 20, 5, 5))
        sched.add(large)
        sched.add(small)
        step = sched.schedule()
        self.assertEqual([r.number for r in step.prefills], [1])
        self.assertEqual(list(sched.waiting), [large, small])

    def test_the_token_budget_spreads_prompts_over_steps_and_lets_a_large_one_run_alone(self):
        sched = scheduler(64, max_batched_tokens=32)
        for number, length in ((1, 20), (2, 20), (3, 100)):
            sched.add(Request(number, [1] * length, 1, 5))
        taken = []
        while sched.waiting:
            step = sched.schedule()
            taken.append([r.number for r in step.prefills])
            advance(sched, step)
        self.assertEqual(taken, [[1], [2], [3]])

    def test_the_reserve_is_kept_only_while_somebody_runs(self):
        sched = Scheduler(BlockPool(10, 16), watermark=0.2, max_model_len=256)  # a reserve of two blocks
        sched.add(Request(1, [1] * 112, 4, 4))  # seven blocks
        sched.add(Request(2, [1] * 32, 4, 4))  # two, and one would be left
        self.assertEqual([r.number for r in sched.schedule().prefills], [1])
        alone = Scheduler(BlockPool(10, 16), watermark=0.2, max_model_len=256)
        alone.add(Request(3, [1] * 150, 4, 4))  # all ten blocks
        self.assertEqual([r.number for r in alone.schedule().prefills], [3])

    def test_the_youngest_is_preempted_and_recomputed_with_what_it_had_said(self):
        sched = scheduler(4)
        old, young = Request(1, [1] * 31, 20, 20), Request(2, [2] * 30, 20, 20)
        sched.add(old)
        sched.add(young)
        advance(sched, sched.schedule())  # both prefilled: 32 and 31 tokens, two blocks each, the pool is full
        advance(sched, sched.schedule())  # 33 and 32
        step = sched.schedule()
        self.assertEqual([r.number for r in step.preempted], [2])
        self.assertEqual([r.number for r in step.decodes], [1])
        self.assertEqual((young.table, young.generated, young.preemptions), ([], 2, 1))
        self.assertEqual(list(sched.waiting), [young])
        advance(sched, step)
        sched.finish(old, ABORT)
        again = sched.schedule()
        self.assertEqual(again.prefills, [young])
        self.assertEqual(len(young.tokens), 32)

    def test_a_request_that_lost_the_pool_to_a_leak_gives_way_to_nobody(self):
        sched = scheduler(3)
        gone, alone = Request(1, [1] * 16, 9, 9), Request(2, [1] * 16, 32, 32)
        sched.add(gone)
        sched.schedule()
        sched.finish(gone, ABORT, hold=True)
        self.assertEqual(sched.pool.held, 1)
        sched.add(alone)
        for _ in range(40):
            advance(sched, sched.schedule())
        self.assertEqual((alone.generated, sched.running, list(sched.waiting)), (17, [], [alone]))

    def test_what_can_never_finish_is_refused(self):
        for request, blocks in ((Request(1, [1] * 200, 100, 100), 64), (Request(2, [1] * 100, 50, 50), 4),
                                (Request(3, [], 5, 5), 64), (Request(4, [1], 5, 0), 64)):
            with self.assertRaises(ValueError):
                scheduler(blocks).add(request)

    def test_finishing_twice_is_refused(self):
        sched = scheduler(4)
        request = Request(1, [1], 5, 5)
        sched.add(request)
        sched.finish(request, ABORT)  # while it waits
        with self.assertRaisesRegex(ValueError, "has finished"):
            sched.finish(request, ABORT)

    def test_no_block_is_lost_or_shared_whatever_comes(self):
        source = random.Random(3)
        sched = scheduler(24, max_seqs=6, max_batched_tokens=128)
        number, preempted = 0, 0
        for turn in range(4000):
            if turn < 3000 and source.random() < 0.2:
                number += 1
                sched.add(Request(number, [1] * source.randrange(1, 100), source.randrange(1, 60), 60))
            everybody = list(sched.running) + list(sched.waiting)
            if everybody and source.random() < 0.03:
                sched.finish(source.choice(everybody), ABORT)
            step = sched.schedule()
            preempted += len(step.preempted)
            tables = [block for request in sched.running for block in request.table]
            self.assertEqual(len(tables), len(set(tables)))
            self.assertEqual(len(tables) + sched.pool.free, 24)
            for request in step.requests():
                self.assertGreaterEqual(len(request.table) * 16, len(request.tokens))
            advance(sched, step)
        self.assertGreater(preempted, 0)
        self.assertEqual((sched.running, len(sched.waiting), sched.pool.free), ([], 0, 24))


if __name__ == "__main__":
    unittest.main()
