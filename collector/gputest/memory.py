"""Memory of one GPU, held in the ways in which servers come to hold it wrongly: in pieces, in graphs' pools, pinned; backlog.py has it
behind a stream.

Each method asks PyTorch's allocator for what a server would ask it for and keeps what that server would keep, so that the
allocator itself makes the trouble. The torch module is handed in: nothing here is imported where torch is not.
"""

MIB = 1 << 20
HOLE, SURVIVOR = 62 * MIB, 2 * MIB  # of one segment; both above 1 MiB, or the allocator would not split one off the other


class Memory:
    """What is kept on one device."""

    def __init__(self, torch, device):
        self.survivors = []  # small tensors that keep their segments from being given back
        self.graphs = []
        self.pinned = []
        self.cache = {}
        self._torch = torch
        self._device = device
        self._input = None

    def bytes(self, size):
        """A tensor of so many bytes, written once, as what a server keeps is."""
        return self._torch.empty(size, device=self._device, dtype=self._torch.uint8).fill_(1)

    # Fragmentation.

    def fragment(self, limit):
        """Fills the reserve up to limit bytes with segments of which a small tensor survives. Returns how many: a hole each.

        The allocator takes the smallest free block that fits, so each segment is opened by a tensor of its whole size, which goes at
        once, and a tensor counts only when it landed inside. What landed elsewhere filled a hole that was there, and stays as well.
        """
        torch, whole, holes, count = self._torch, HOLE + SURVIVOR, [], 0
        while torch.cuda.memory_reserved(self._device) + whole <= limit:
            opened = torch.empty(whole, device=self._device, dtype=torch.uint8)
            begin = opened.data_ptr()
            del opened
            self._inside(HOLE, begin, begin + whole, holes)
            self._inside(SURVIVOR, begin, begin + whole, self.survivors)
            count += 1
        return count

    def _inside(self, size, begin, end, kept):
        for _ in range(4096):
            kept.append(self._torch.empty(size, device=self._device, dtype=self._torch.uint8))
            if begin <= kept[-1].data_ptr() < end:
                return
        raise RuntimeError("fragment memory: no block of %d bytes came from the segment that was just opened" % size)

    # Graphs.

    def capture(self, size):
        """Captures a CUDA graph for a shape of its own, with a pool of its own, and keeps it for a next time that never comes."""
        torch = self._torch
        if self._input is None or self._input.numel() < size // 4:
            self._input = torch.ones(size // 2, device=self._device, dtype=torch.float32)
            (self._input * 2).sum()  # kernels are loaded before the first capture, within which nothing may be
        graph = torch.cuda.CUDAGraph()
        # Other threads may call CUDA meanwhile: the probe is one.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._input[:size // 4] * 2  # dies with the line; its memory stays the pool's
        self.graphs.append(graph)

    # The host, and caches.

    def pin(self, size):
        """Keeps a page-locked buffer, as a staging area for transfers that nobody takes down."""
        self.pinned.append(self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True))

    def remember(self, key, size, entries):
        """Puts a tensor into a cache of so many entries, from which the oldest goes."""
        self.cache[key] = self.bytes(size)
        if len(self.cache) > entries:
            del self.cache[next(iter(self.cache))]
