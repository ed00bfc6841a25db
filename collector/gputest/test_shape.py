import unittest

from shape import Shape


class ShapeTest(unittest.TestCase):
    def test_a_published_model_has_its_published_size(self):
        # TinyLlama 1.1B: 22 layers, width 2048, 32 and 4 heads, feed-forward 5632, vocabulary 32000: 1,100,048,384 parameters.
        self.assertEqual(Shape(22, 2048, 32, 4, 5632, 32000, 2048).parameters, 1100048384)

    def test_kv_bytes_are_layers_times_keys_and_values(self):
        # TinyLlama in bfloat16: 22 × 2 × 4 heads × 64 × 2 bytes = 22,528 bytes a token.
        self.assertEqual(Shape(22, 2048, 32, 4, 5632, 32000, 2048).kv_block_bytes(16, 2), 16 * 22528)

    def test_layers_are_split_in_order_and_as_evenly_as_they_go(self):
        shape = Shape(layers=5)
        self.assertEqual([list(part) for part in shape.split(2)], [[0, 1, 2], [3, 4]])
        self.assertEqual([list(part) for part in shape.split(1)], [[0, 1, 2, 3, 4]])
        for parts in (0, 6):
            with self.assertRaises(ValueError):
                shape.split(parts)

    def test_sizes_that_do_not_divide_are_refused(self):
        for wrong in ({"heads": 3}, {"kv_heads": 5}, {"layers": 0}, {"hidden": 48, "heads": 16}):
            with self.assertRaises(ValueError, msg=str(wrong)):
                Shape(**wrong)


if __name__ == "__main__":
    unittest.main()
