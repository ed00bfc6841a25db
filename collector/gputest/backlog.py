"""Memory that waits for a CUDA stream which stands still, as tensors handed to a stalled transfer do.

It owns that stream, the word it waits for, and a watch that lets it go. A program in which one stream waits for ever can wait for ever as a
whole: whatever waits for the device waits for that stream as well. A kernel that is loaded at its first use may (so all that serving needs is
run once before), cudaFree does, and so may cudaMalloc (so the memory is reserved before the stream stands). What is left is caught by the
watch: when no beat comes for LIMIT seconds the stream passes, all of it is freed, and the next tensor waits on another. The torch module is
handed in.
"""

import threading
import time

LIMIT = 5.0  # seconds without a beat; a busy step takes a tenth of one, a snapshot of the allocator up to one
TRIES = 8  # streams: two of them may share a queue of the hardware, and then what stands in one holds the other
RESERVED = 4 << 30  # bytes at most that are made sure of before
COUNT = 256  # tensors at most that are made sure of before


class Backlog:
    """Tensors of one size behind a stream that stands still. make(size) is a tensor on the device, log(text) hears of a stream let go."""

    def __init__(self, torch, device, driver, make, log, limit=LIMIT, clock=time.monotonic):
        self.bytes, self.releases = 0, 0
        self._torch, self._device, self._driver, self._make, self._log = torch, device, driver, make, log
        self._limit, self._clock = limit, clock
        self._held, self._ticket, self._beat = False, 0, clock()
        self._side = None  # what stands next, None for a new one
        self._stood = None  # what stood last: the watch may let it go at any time
        self._word = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._watch = threading.Thread(target=self._look, name="backlog", daemon=True)
        self._watch.start()

    def rehearse(self, size, step):
        """Reserves the memory, and finds a stream that can stand while step() runs. Raises RuntimeError where each of TRIES holds it up."""
        reserve = [self._make(size) for _ in range(max(1, min(COUNT, RESERVED // size)))]
        del reserve
        step()  # whatever is loaded at its first use is there now
        for _ in range(TRIES):
            self.send(size)
            step()
            if self._let_go():
                self.bytes = 0
                return
        raise RuntimeError("hold a stream: each of %d that stood still held the model up, too" % TRIES)

    def send(self, size):
        """Hands a tensor to the stream, and drops it: the allocator may not use its memory again before that stream has passed."""
        self.beat()
        if not self._held:
            self._hold(self._side or self._torch.cuda.Stream(self._device))
        side = self._stood
        tensor = self._make(size)
        tensor.record_stream(side)
        self.bytes += size

    def beat(self):
        """Says that the program gets on."""
        self._beat = self._clock()

    def close(self):
        """Lets the stream pass, so that the process can end, and waits for the watch."""
        self._ended.set()
        self._watch.join()
        self._let_go()

    def _hold(self, stream):
        with self._lock:
            self._ticket += 1
            self._driver.wait_value(stream.cuda_stream, self._word.data_ptr(), self._ticket)
            self._side = self._stood = stream
            self._held = True
        if stream.query():
            raise RuntimeError("hold a stream: it has passed what it should wait for")

    def _let_go(self):
        """Lets the stream pass. Returns whether it stood."""
        with self._lock:
            stood, self._held = self._held, False
            self._word[0] = self._ticket
        return stood

    def _look(self):
        while not self._ended.wait(self._limit / 20):
            if self._held and self._clock() - self._beat > self._limit and self._let_go():
                self._side = None  # the next one stands elsewhere
                self.releases += 1
                self._log("WARNING nothing went on for %.1f s beside a stream that stands still: it passes" % self._limit)
