"""The engine's loop: clients in, steps through the model, tokens and metrics out, and the planted faults.

It owns when things happen. The clock, the model and the faults are handed in, so the loop runs the
same over torch in real time and over a few lines of Python in a test's own time.
"""

import array

from metrics import Outcome
from scheduler import ABORT, ERROR

IDLE_SECONDS = 0.02  # how long an idle engine sleeps at most: SIGTERM and arrivals are seen that soon
KEPT_STEPS = 200000  # step times kept for the summary: 1.6 MB, so that the engine's own memory stays level


class Faults:
    """Nothing goes wrong. The worker's own subclass plants what its flags say."""

    def aborted(self, request):
        """A request was aborted and its blocks are dealt with."""

    def finished(self, request):
        """A request ended by itself."""

    def holds_blocks(self):
        """Whether the request being aborted keeps its KV blocks for ever."""
        return False

    def hangs(self):
        """Whether the step that is due never returns, while the front end still takes requests in."""
        return False

    def tick(self, now):
        """Called once a turn of the loop, before the step. May raise what an allocation raises."""

    def close(self):
        """The engine has drained: whatever would keep the process from ending is let go."""


class Engine:
    """One engine core. model.execute(step) returns a token for each of step.requests(), prefills first."""

    def __init__(self, model, scheduler, client, metrics, clock, sleep, log, faults=None, die_on_oom=False):
        self.model = model
        self.scheduler = scheduler
        self.client = client
        self.metrics = metrics
        self.clock = clock  # seconds since the start, never backwards
        self.sleep = sleep
        self.log = log
        self.faults = faults or Faults()
        self.die_on_oom = die_on_oom
        self.steps = 0
        self.ooms = 0
        self.counts = {}
        self.step_seconds = array.array("d")

    def run(self, stopping, seconds=None, drain_seconds=30.0):
        """Serves until stopping() or until so many seconds have passed, then drains: no new requests, those in flight
        end or, after drain_seconds, are aborted."""
        while not stopping() and (seconds is None or self.clock() < seconds):
            self.turn()
        self.client.stop()
        until = self.clock() + drain_seconds
        self.log("draining: %d running, %d waiting" % (len(self.scheduler.running), len(self.scheduler.waiting)))
        while self.client.in_flight and self.clock() < until:
            self.turn()
        outcome = Outcome()
        for request in list(self.client.in_flight.values()):
            self._end(request, ABORT, outcome)
        self.metrics.record(outcome)
        self._show()

    def turn(self):
        """One turn of the loop: arrivals, hang-ups, one step or a short sleep."""
        now = self.clock()
        outcome = Outcome()
        for request in self.client.arrivals(now):
            self.scheduler.add(request)
        for request in self.client.hang_ups(now):
            self._abort(request, outcome)
        self._guard(lambda: self.faults.tick(now), (), outcome)
        if self.faults.hangs():
            self.metrics.record(outcome)
            self._show()
            self._idle()
            return
        step = self.scheduler.schedule()
        outcome.preemptions = len(step.preempted)
        if step:
            self._guard(lambda: self._step(step, outcome), step.requests(), outcome)
        self.metrics.record(outcome)
        self._show()
        if not step:
            self._idle()

    def _idle(self):
        arrival = self.client.next_arrival
        wait = IDLE_SECONDS if arrival is None else min(IDLE_SECONDS, arrival - self.clock())
        if wait > 0:
            self.sleep(wait)

    def _show(self):
        self.metrics.gauges(len(self.scheduler.running), len(self.scheduler.waiting), self.scheduler.pool.usage)

    def _step(self, step, outcome):
        begun = self.clock()
        for request in step.prefills:
            if request.first_scheduled is None:
                request.first_scheduled = begun
        tokens = self.model.execute(step)
        now = self.clock()
        outcome.computed = sum(len(request.tokens) for request in step.prefills) + len(step.decodes)
        self.steps += 1
        if len(self.step_seconds) < KEPT_STEPS:
            self.step_seconds.append(now - begun)
        for request, token in zip(step.requests(), tokens):
            outcome.tokens += 1
            if request.first_token is None:
                request.first_token = now
                outcome.prompts.append(request.prompt_tokens)
                outcome.first_waits.append(now - request.arrival)
            else:
                outcome.token_waits.append(now - request.last_token)
            request.last_token = now
            reason = self.scheduler.token(request, token)
            if reason is not None:
                self._end(request, reason, outcome)
                self._guard(lambda: self.faults.finished(request), (), outcome)

    def _abort(self, request, outcome):
        self._end(request, ABORT, outcome, hold=self.faults.holds_blocks())
        self._guard(lambda: self.faults.aborted(request), (), outcome)

    def _end(self, request, reason, outcome, hold=False):
        request.end = self.clock()
        self.scheduler.finish(request, reason, hold)
        self.client.done(request)
        self.counts[reason] = self.counts.get(reason, 0) + 1
        outcome.finished.append(request)

    def _guard(self, act, requests, outcome):
        """Runs act. Where memory runs out it says so in full and fails the requests that were in it, or lets the process die."""
        try:
            act()
        except Exception as error:  # anything that is no OOM goes on up
            if not self.model.is_oom(error):
                raise
            self.ooms += 1
            kind = type(error)
            self.log("ERROR %s.%s: %s" % (kind.__module__, kind.__qualname__, error))
            if self.die_on_oom:
                raise
            for request in requests:
                if request.finished is None:
                    self._end(request, ERROR, outcome)

    def summary(self):
        """Figures of the whole run, for comparing one run with another. Times in seconds."""
        ordered = sorted(self.step_seconds)

        def quantile(share):
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

        return {
            "steps": self.steps, "ooms": self.ooms, "sent": self.client.sent, "finished": dict(self.counts),
            "prompt_tokens": int(self.metrics.prompt_tokens.value),
            "generation_tokens": int(self.metrics.generation_tokens.value),
            "preemptions": int(self.metrics.preemptions.value), "held_blocks": self.scheduler.pool.held,
            "free_blocks": self.scheduler.pool.free, "seconds": self.clock(),
            "step_seconds_total": sum(ordered), "step_p50_seconds": quantile(0.5), "step_p99_seconds": quantile(0.99),
            "step_max_seconds": ordered[-1] if ordered else None,
        }
