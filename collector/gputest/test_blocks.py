import unittest

from blocks import BlockPool


class BlockPoolTest(unittest.TestCase):
    def test_a_request_of_33_tokens_takes_three_blocks_of_16(self):
        pool = BlockPool(4)
        table = []
        self.assertTrue(pool.grow(table, 33))
        self.assertEqual(len(set(table)), 3)
        self.assertEqual((pool.free, pool.usage), (1, 0.75))
        self.assertTrue(pool.grow(table, 48))  # the third block still has room
        self.assertEqual(pool.free, 1)

    def test_an_exhausted_pool_changes_nothing(self):
        pool = BlockPool(2)
        table = []
        self.assertTrue(pool.grow(table, 16))
        self.assertFalse(pool.grow(table, 64))
        self.assertEqual((len(table), pool.free), (1, 1))
        self.assertIsNone(pool.take(2))
        self.assertEqual(pool.free, 1)

    def test_freeing_twice_or_what_was_never_taken_is_refused(self):
        pool = BlockPool(2)
        numbers = pool.take(1)
        pool.give_back(numbers)
        for wrong in (numbers, [-1], [2]):
            with self.assertRaisesRegex(ValueError, "not handed out"):
                pool.give_back(wrong)
        self.assertEqual(pool.free, 2)

    def test_forgotten_blocks_stay_taken(self):
        pool = BlockPool(4)
        pool.forget(pool.take(3))
        self.assertEqual((pool.held, pool.free, pool.usage), (3, 1, 0.75))

    def test_sizes_below_one_are_refused(self):
        for blocks, size in ((0, 16), (4, 0)):
            with self.assertRaises(ValueError):
                BlockPool(blocks, size)


if __name__ == "__main__":
    unittest.main()
