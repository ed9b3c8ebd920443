"""Waiting: how long this process sleeps between two looks, and when it has waited long enough."""

from __future__ import annotations

import time

#: Shortest and longest sleep between two looks at a pending operation, in seconds.
SHORTEST, LONGEST = 50e-6, 5e-3
#: Shortest gap between two looks, in seconds, that is a pause of this process.
PAUSE = 1.0


class Nap:
    """Sleep an eighth of the time waited so far, from 50 us to 5 ms; `reset` after something happened.

    A collective is several hops, each noticed by the rank that polls next: sleeps that grow with the
    wait add an eighth to it, where sleeps that double would add as much again at every hop.
    """

    def __init__(self) -> None:
        #: Seconds slept since the last reset: without pauses of this process.
        self.slept = 0.0

    def reset(self) -> None:
        """Start again with the shortest sleep."""
        self.slept = 0.0

    def length(self) -> float:
        """Return how long to sleep now, and make the next one longer."""
        now = min(max(self.slept / 8, SHORTEST), LONGEST)
        self.slept += now
        return now

    def __call__(self) -> None:
        """Sleep."""
        time.sleep(self.length())


class Patience:
    """The clock of one wait for others, looked at again and again.

    A pause of this process itself (stopped and continued, or kept from looking) is nobody else's
    silence: of a gap between two looks that is longer than half the limit, and than `PAUSE`, only so
    much counts, and half of the limit is left after it.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.begin = self._looked = time.monotonic()

    def waited(self) -> float:
        """Return how long this has lasted, in seconds, without pauses. To be called at each look."""
        now = time.monotonic()
        pause = now - self._looked - max(self.limit / 2, PAUSE)
        if pause > 0:
            self.begin = max(self.begin + pause, now - self.limit / 2)
        self._looked = now
        return now - self.begin

    def ended(self) -> bool:
        """Say whether the limit is reached. To be called at each look."""
        return self.waited() >= self.limit

    def again(self) -> None:
        """Begin anew: something was heard."""
        self.begin = self._looked = time.monotonic()
