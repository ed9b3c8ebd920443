"""Silence: who was heard when, whether the own work grows, and when the next sign is due.

A *sign* says that its sender lives. A role never measures anything but its own monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Signs per deadline, and the share of a deadline by which each level waits longer than the one below.
SIGNS = 10


def child_limit(deadline: float, height: int) -> float:
    """Return how long a parent at `height` bears a child's silence: the lowest speaks first."""
    return deadline * (1 + height / SIGNS)


def parent_limit(deadline: float) -> float:
    """Return how long a child bears its parent's silence."""
    return 2 * deadline


def group_limit(deadline: float, height: int, depth: int) -> float:
    """Return how long an owner bears silence about digests, at `depth` in a replica group.

    A role that is lost is found along the tree, of that `height`, and before: this bound only ends
    what the tree cannot see.
    """
    return parent_limit(deadline) + deadline * (height + depth) / SIGNS


class Silence:
    """The clocks of one role in one attempt.

    A pause of the role itself (stopped and continued, or kept from polling) is nobody else's
    silence: what exceeds half a deadline between two ticks is taken out of every clock, and half a
    deadline is left after it.
    """

    def __init__(self, deadline: float, now: float, peers: Iterable[int]) -> None:
        self.deadline = deadline
        self._heard = dict.fromkeys(peers, now)
        self._groups: dict[int, float] = {}
        self._ticked = now
        self._signed = now
        self._working: float | None = now
        self._written = 0

    def hear(self, peer: int, now: float) -> None:
        """Note that something came from a parent or child."""
        if peer in self._heard:
            self._heard[peer] = now

    def silent(self, peer: int, now: float) -> float:
        """Return for how long nothing has come from a parent or child."""
        return now - self._heard[peer]

    def await_group(self, peer: int, now: float) -> None:
        """Begin to wait for the digests of a replica group from `peer` (again: no effect)."""
        self._groups.setdefault(peer, now)

    def hear_group(self, peer: int, now: float) -> None:
        """Note that `peer` has said that its digests will come."""
        if peer in self._groups:
            self._groups[peer] = now

    def group_silent(self, peer: int, now: float) -> float:
        """Return for how long `peer`, whose digests are awaited, has said nothing."""
        return now - self._groups[peer]

    def work(self, now: float) -> None:
        """The own work begins a step: from here on it must grow."""
        self._working = now

    def rest(self) -> None:
        """The own step is done."""
        self._working = None

    def idle(self, now: float) -> float:
        """Return for how long the own step has not grown; 0 when there is none."""
        return 0.0 if self._working is None else now - self._working

    def tick(self, written: int, now: float) -> bool:
        """Note that time passed; return whether the own byte count grew."""
        pause = now - self._ticked - self.deadline / 2
        self._ticked = now
        if pause > 0:
            least = now - self.deadline / 2
            self._heard = {peer: max(at + pause, least) for peer, at in self._heard.items()}
            self._groups = {peer: max(at + pause, least) for peer, at in self._groups.items()}
            self._signed += pause
            if self._working is not None:
                self._working = max(self._working + pause, least)
        grew = written > self._written
        if grew:
            self._written = written
            if self._working is not None:
                self._working = now
        return grew

    def sign_due(self, now: float) -> bool:
        """Return whether a tenth of a deadline has passed since the last time this was true."""
        if now - self._signed < self.deadline / SIGNS:
            return False
        self._signed = now
        return True
