"""The paged KV pool's accounting: which blocks of 16 tokens are free and who holds the others.

It owns numbers of blocks only; the bytes behind them belong to model.py. It refuses to guess:
freeing a block that is free already is an error, since a pool that forgives it hides leaks.
"""

from collections import deque


class BlockPool:
    """A fixed number of blocks, handed out and taken back by number."""

    def __init__(self, blocks, block_size=16):
        if blocks < 1 or block_size < 1:
            raise ValueError("make pool: %d blocks of %d tokens: both must be at least 1" % (blocks, block_size))
        self.blocks = blocks
        self.block_size = block_size
        self.held = 0  # blocks whose owner is gone and that nobody will free
        self._free = deque(range(blocks))
        self._taken = bytearray(blocks)

    @property
    def free(self):
        """How many blocks can still be handed out."""
        return len(self._free)

    @property
    def usage(self):
        """The share of the pool that is taken, 0..1."""
        return 1.0 - len(self._free) / self.blocks

    def blocks_for(self, tokens):
        """How many blocks hold that many tokens."""
        return -(-tokens // self.block_size)

    def take(self, count):
        """Hands out count blocks as a list of numbers, or None (and takes nothing) where fewer are free."""
        if count > len(self._free):
            return None
        out = [self._free.popleft() for _ in range(count)]
        for number in out:
            self._taken[number] = 1
        return out

    def give_back(self, numbers):
        """Takes blocks back. Raises ValueError for one that is not handed out."""
        for number in numbers:
            if not 0 <= number < self.blocks or not self._taken[number]:
                raise ValueError("free block %d: it is not handed out" % number)
            self._taken[number] = 0
            self._free.append(number)

    def forget(self, numbers):
        """Leaves blocks taken for ever: the planted KV leak."""
        self.held += len(numbers)

    def grow(self, table, tokens):
        """Extends a request's block table so that it holds that many tokens. False, and no change, where the pool is exhausted."""
        missing = self.blocks_for(tokens) - len(table)
        if missing <= 0:
            return True
        more = self.take(missing)
        if more is None:
            return False
        table.extend(more)
        return True
