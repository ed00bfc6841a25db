"""The worker's own clients: who asks what, when, and who hangs up.

Arrivals are a Poisson process inside bursts and none at all in the drains between them. It owns
the draws only: the same seed gives the same requests at the same seconds, however fast the engine is.
"""

import math
import random

from scheduler import Request


SWING = (1.0, -1.0, 0.4, 1.0, -0.8, -1.0, 0.4)


class Profile:
    """What the clients are like. Times in seconds, lengths in tokens, fractions 0..1."""

    def __init__(self, rate=4.0, burst_seconds=20.0, drain_seconds=40.0, prompt_mean=256, prompt_max=1024,
                 output_mean=96, output_max=256, abort_fraction=0.0, patience_seconds=0.0, vocab=32000, swing=0.0):
        if rate <= 0 or burst_seconds <= 0 or drain_seconds < 0 or patience_seconds < 0:
            raise ValueError("make profile: rate and burst seconds must be above 0, drain and patience seconds not below it")
        if not 0 <= swing < 1:
            raise ValueError("make profile: swing %g is not within 0..1, 1 left out" % swing)
        if not 0 <= abort_fraction <= 1:
            raise ValueError("make profile: abort fraction %g is not within 0..1" % abort_fraction)
        if not (1 <= prompt_mean <= prompt_max and 2 <= output_mean <= output_max):
            raise ValueError("make profile: need 1 <= prompt mean <= prompt max and 2 <= output mean <= output max")
        self.rate = rate
        self.burst_seconds = burst_seconds
        self.drain_seconds = drain_seconds
        self.prompt_mean = prompt_mean
        self.prompt_max = prompt_max
        self.output_mean = output_mean
        self.output_max = output_max
        self.abort_fraction = abort_fraction
        self.patience_seconds = patience_seconds
        self.vocab = vocab
        self.swing = swing

    def rate_in(self, burst):
        """Requests a second in that burst, counted from 0: with a swing some are busy and some are slack, so that work is told from time."""
        return self.rate * (1 + self.swing * SWING[burst % len(SWING)])


def draw_length(source, mean, most, least=1):
    """A log-normal length of that mean before clipping, sigma 0.6: most are short, a few are long."""
    sigma = 0.6
    value = source.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
    return max(least, min(most, int(round(value))))


class Client:
    """Draws requests and watches those in flight for the ones whose caller is gone."""

    def __init__(self, profile, seed=1):
        self.profile = profile
        self.sent = 0
        self.in_flight = {}
        self._leaving = {}  # those in flight that will hang up half way: looked at after every step, the others are not
        self._source = random.Random(seed)
        self._busy = 0.0  # seconds of burst so far; the drains are put in between by _wall
        self._stopped = False
        self._next = self._draw_next()

    def _wall(self, busy):
        return busy + math.floor(busy / self.profile.burst_seconds) * self.profile.drain_seconds

    def _draw_next(self):
        burst = math.floor(self._busy / self.profile.burst_seconds)
        self._busy += self._source.expovariate(self.profile.rate_in(burst))
        return self._wall(self._busy)

    @property
    def next_arrival(self):
        """Second of the next request since the start, or None after stop()."""
        return None if self._stopped else self._next

    def stop(self):
        """No more requests; those in flight go on."""
        self._stopped = True

    def arrivals(self, now):
        """The requests that were sent up to now, in order, stamped with the second they were sent at."""
        out = []
        while not self._stopped and self._next <= now:
            request = self._draw_request(self._next)
            self.in_flight[request.number] = request
            if request.hang_up_after is not None:
                self._leaving[request.number] = request
            out.append(request)
            self._next = self._draw_next()
        return out

    def _draw_request(self, arrival):
        profile, source = self.profile, self._source
        self.sent += 1
        prompt = [source.randrange(profile.vocab) for _ in range(draw_length(source, profile.prompt_mean, profile.prompt_max))]
        output = draw_length(source, profile.output_mean, profile.output_max, least=2)
        # One client in five names the very length it wants, the others let the model end.
        most = output if source.random() < 0.2 else profile.output_max
        gone = source.randrange(1, output) if source.random() < profile.abort_fraction else None
        return Request(self.sent, prompt, output, most, arrival, gone)

    def hang_ups(self, now):
        """The requests in flight whose client has left: it had read enough, or waited too long for a first token."""
        out = [request for request in self._leaving.values() if request.generated >= request.hang_up_after]
        patience = self.profile.patience_seconds
        if patience > 0:
            out += [request for request in self.in_flight.values()
                    if request.generated == 0 and now - request.arrival > patience]
        return out

    def done(self, request):
        """The request has ended, one way or the other."""
        self.in_flight.pop(request.number, None)
        self._leaving.pop(request.number, None)
