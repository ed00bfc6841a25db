import unittest

from memory import HOLE, MIB, SURVIVOR, Memory

SMALL = MIB  # blocks up to this come from another pool


class OutOfMemory(RuntimeError):
    pass


class Device:
    """PyTorch's native allocator for large blocks as its source has it: the smallest free block that fits, split where more than
    1 MiB is left, merged with free neighbours; a segment of its own for 10 MiB or more; whole free segments are given back before it fails."""

    def __init__(self, limit):
        self.limit, self.next, self.segments = limit, 1 << 40, []  # a segment is a list of [address, size, free]

    @property
    def reserved(self):
        return sum(size for segment in self.segments for _, size, _ in segment)

    @property
    def free(self):
        return sum(size for segment in self.segments for _, size, free in segment if free)

    @property
    def largest(self):
        return max([size for segment in self.segments for _, size, free in segment if free], default=0)

    def allocate(self, size):
        size = -(-size // 512) * 512
        found = min(((block[1], block[0], segment, block) for segment in self.segments for block in segment if block[2] and block[1] >= size),
                    default=None, key=lambda f: f[:2])
        if found is None:
            grown = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved + grown > self.limit:
                self.segments = [segment for segment in self.segments if not (len(segment) == 1 and segment[0][2])]
            if self.reserved + grown > self.limit:
                raise OutOfMemory("Tried to allocate %d" % size)
            segment = [[self.next, grown, True]]
            self.next += grown + (1 << 30)
            self.segments.append(segment)
            block = segment[0]
        else:
            segment, block = found[2:]
        if block[1] - size > SMALL:
            segment.insert(segment.index(block) + 1, [block[0] + size, block[1] - size, True])
            block[1] = size
        block[2] = False
        return block[0]

    def release(self, address):
        for segment in self.segments:
            for block in segment:
                if block[0] == address:
                    block[2] = True
                    merged = []
                    for b in segment:
                        if merged and merged[-1][2] and b[2]:
                            merged[-1][1] += b[1]
                        else:
                            merged.append(b)
                    segment[:] = merged
                    return


class Tensor:
    def __init__(self, device, size):
        self._device, self._size, self._at = device, size, device.allocate(size)

    def data_ptr(self):
        return self._at

    def fill_(self, value):
        return self

    def numel(self):
        return self._size

    def __del__(self):
        if hasattr(self, "_at"):
            self._device.release(self._at)


class Torch:
    """The few names of torch that are used, over the allocator above."""

    uint8 = int32 = float32 = None

    def __init__(self, limit):
        self.device, self.pinned = Device(limit), []
        torch = self

        class Cuda:
            memory_reserved = staticmethod(lambda device: torch.device.reserved)

        self.cuda = Cuda()

    def empty(self, size, device=None, dtype=None, pin_memory=False):
        if pin_memory:
            self.pinned.append(size)
            return object()
        return Tensor(self.device, size)


class FragmentTest(unittest.TestCase):
    def test_an_eighth_fits_in_total_and_nowhere_in_one_piece(self):
        limit = 7 * 1024 * MIB
        torch = Torch(limit)
        memory = Memory(torch, "cuda:0")
        # What serving leaves behind: weights and blocks of many sizes, half of them free again.
        weights = torch.empty(600 * MIB)
        left = [torch.empty(size * MIB) for size in (3, 12, 40, 61, 63, 64, 90, 200, 5, 130)]
        kept = left[1::2]
        del left
        count = memory.fragment(limit)
        self.assertGreater(count, 80)
        device = torch.device
        asked = limit // 8
        self.assertGreater(device.free, 4 * asked)
        with self.assertRaises(OutOfMemory):
            torch.empty(asked)
        # The allocator gave back what it could before it failed, and still has far more than was asked for, in small pieces.
        self.assertGreater(device.free, 4 * asked)
        self.assertLess(device.largest, asked // 4)
        self.assertGreater(device.reserved + asked, limit)
        self.assertEqual(weights.numel() + sum(tensor.numel() for tensor in kept), 600 * MIB + (12 + 61 + 64 + 200 + 130) * MIB)
        # What a server needs for a step still fits.
        torch.empty(48 * MIB)

    def test_the_second_time_fills_what_was_given_back_since(self):
        limit = 2048 * MIB
        torch = Torch(limit)
        memory = Memory(torch, "cuda:0")
        first = memory.fragment(limit)
        self.assertEqual(first, limit // (HOLE + SURVIVOR))
        self.assertEqual(memory.fragment(limit), 0)
        self.assertEqual(len(memory.survivors), first)


class CacheTest(unittest.TestCase):
    def test_the_oldest_goes(self):
        torch = Torch(1 << 30)
        memory = Memory(torch, "cuda:0")
        for number in range(10):
            memory.remember(number, 16 * MIB, 4)
        self.assertEqual(list(memory.cache), [6, 7, 8, 9])
        self.assertEqual(torch.device.reserved - torch.device.free, 64 * MIB)

    def test_page_locked_memory_is_asked_for_as_such(self):
        torch = Torch(1 << 30)
        Memory(torch, "cuda:0").pin(16 * MIB)
        self.assertEqual(torch.pinned, [16 * MIB])


if __name__ == "__main__":
    unittest.main()
