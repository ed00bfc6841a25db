"""Continuous batching over a paged KV pool: which requests compute in the next step.

It owns the queue, the running set and every request's block table. It knows neither clocks nor
tensors: times are stamped by engine.py, keys and values are written by model.py.
"""

from collections import deque

STOP, LENGTH, ABORT, ERROR = "stop", "length", "abort", "error"


class Request:
    """One request's whole life. Times are seconds of the engine's clock; None is "has not happened"."""

    def __init__(self, number, prompt, output_tokens, max_tokens, arrival=0.0, hang_up_after=None):
        self.number = number
        self.tokens = list(prompt)  # prompt, then what was generated
        self.prompt_tokens = len(self.tokens)
        self.output_tokens = output_tokens  # where its end-of-sequence token falls
        self.max_tokens = max_tokens
        self.hang_up_after = hang_up_after  # its client is gone after so many tokens
        self.table = []  # numbers of its KV blocks, in order of position
        self.preemptions = 0
        self.finished = None  # the finish reason, once it has one
        self.arrival = arrival
        self.first_scheduled = None
        self.first_token = None
        self.last_token = None
        self.end = None

    @property
    def generated(self):
        """How many tokens came out so far."""
        return len(self.tokens) - self.prompt_tokens


class Step:
    """What one step computes: whole prompts, one token each for the rest; and whom it had to preempt."""

    def __init__(self):
        self.prefills = []
        self.decodes = []
        self.preempted = []

    def __bool__(self):
        return bool(self.prefills or self.decodes)

    def requests(self):
        """Everybody in the step, prefills first."""
        return self.prefills + self.decodes


class Scheduler:
    """First come, first served; admission when blocks are free; preemption with recompute when they run out."""

    def __init__(self, pool, max_seqs=32, max_batched_tokens=2048, max_model_len=2048, watermark=0.01):
        self.pool = pool
        self.max_seqs = max_seqs
        self.max_batched_tokens = max_batched_tokens
        self.max_model_len = max_model_len
        self.reserve = int(watermark * pool.blocks)
        self.waiting = deque()
        self.running = []

    def add(self, request):
        """Queues a request. Raises ValueError for one that could never finish."""
        most = request.prompt_tokens + request.max_tokens
        if request.prompt_tokens < 1 or request.max_tokens < 1:
            raise ValueError("add request %d: prompt and max_tokens must be at least 1" % request.number)
        if most > self.max_model_len or self.pool.blocks_for(most) > self.pool.blocks:
            raise ValueError("add request %d: %d tokens do not fit max_model_len %d or a pool of %d blocks" %
                             (request.number, most, self.max_model_len, self.pool.blocks))
        self.waiting.append(request)

    def schedule(self):
        """Chooses the next step and takes its blocks. Running requests come first, so that work under way ends before new work starts."""
        step = Step()
        index = 0
        while index < len(self.running):
            request = self.running[index]
            if self.pool.grow(request.table, len(request.tokens)):
                step.decodes.append(request)
                index += 1
                continue
            # The youngest gives way: it has the least to recompute. It may be the one that asked.
            victim = self.running.pop()
            self._preempt(victim)
            step.preempted.append(victim)
        if not step.preempted:
            self._admit(step)
        return step

    def _admit(self, step):
        budget = self.max_batched_tokens - len(step.decodes)
        while self.waiting and len(self.running) < self.max_seqs:
            request = self.waiting[0]
            tokens = len(request.tokens)
            if tokens > budget and step:
                return  # a prompt larger than any budget still gets a step of its own
            need = self.pool.blocks_for(tokens)
            # The reserve keeps room for those who run to grow; nobody runs: nothing to keep it for.
            if self.pool.free - need < (self.reserve if self.running else 0):
                return
            self.pool.grow(request.table, tokens)
            self.waiting.popleft()
            self.running.append(request)
            step.prefills.append(request)
            budget -= tokens

    def _preempt(self, request):
        self.pool.give_back(request.table)
        request.table = []
        request.preemptions += 1
        self.waiting.appendleft(request)

    def token(self, request, token):
        """Appends a generated token and returns the finish reason, or None while the request goes on."""
        request.tokens.append(token)
        if request.generated >= request.output_tokens:
            return STOP if request.output_tokens < request.max_tokens else LENGTH
        if request.generated >= request.max_tokens:
            return LENGTH
        return None

    def finish(self, request, reason, hold=False):
        """Removes a request from wherever it is. hold leaves its blocks taken for ever."""
        if request.finished is not None:
            raise ValueError("finish request %d: it has finished with %s" % (request.number, request.finished))
        request.finished = reason
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        if hold:
            self.pool.forget(request.table)
        else:
            self.pool.give_back(request.table)
        request.table = []
