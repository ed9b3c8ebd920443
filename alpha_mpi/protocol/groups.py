"""Replica groups: owners that hold the same piece compare it before any of them commits.

The *lowest* owner of a group writes the piece and sends its digest down a tree of the group; every
other one passes it on and compares its own copy. Who differs aborts as a diverged replica.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

from ..format.messages import Group
from ..model.capture import Attempt

#: At most this many digests in one message.
DIGESTS_LIMIT = 4096

#: (ordinal, owners that hold the same piece of that region, ascending)
Groups = Iterable[tuple[int, Sequence[int]]]


@dataclasses.dataclass
class _Rank:
    """This owner's place in one group: who tells it, whom it tells, for which regions."""

    ordinals: frozenset[int]
    above: int | None
    below: tuple[int, ...]
    depth: int
    told: set[int] = dataclasses.field(default_factory=set)

    @property
    def done(self) -> bool:
        return self.told == self.ordinals


class Copies:
    """The groups of one owner in one attempt."""

    def __init__(self, me: int, attempt: Attempt, groups: Groups, fan_out: int) -> None:
        self._attempt = attempt
        self._ranks = [_rank(me, members, ordinals, fan_out) for members, ordinals in _same(groups)]
        self._of = {ordinal: rank for rank in self._ranks for ordinal in rank.ordinals}
        self._own: dict[int, str] | None = None
        self._theirs: dict[int, str] = {}

    def own(self, copies: Iterable[tuple[int, str]]) -> list[tuple[int, Group]]:
        """Take the digests of the own copies; return the messages for those this owner leads.

        Called with one digest for every region in `groups`: who leaves one out is a diverged
        replica, or is blamed by those who wait for it.
        """
        self._own = dict(copies)
        out: list[tuple[int, Group]] = []
        for rank in self._ranks:
            if rank.above is None:
                known = [(o, self._own[o]) for o in sorted(rank.ordinals) if o in self._own]
                out += self._tell(rank, known)
        return out

    def receive(self, sender: int, digests: Sequence[tuple[int, str]]) -> list[tuple[int, Group]] | None:
        """Take the lowest owner's digests and return what to pass on; None if they are not for us."""
        parts: dict[int, list[tuple[int, str]]] = {}
        for ordinal, digest in digests:
            rank = self._of.get(ordinal)
            if rank is None or rank.above != sender or ordinal in rank.told:
                return None
            parts.setdefault(min(rank.ordinals), []).append((ordinal, digest))
            self._theirs[ordinal] = digest
        return [sent for first, part in parts.items() for sent in self._tell(self._of[first], part)]

    def difference(self) -> tuple[int, str, str] | None:
        """Return (ordinal, expected, found) of the first own copy that differs, as far as known."""
        if self._own is None:
            return None
        for ordinal in sorted(self._theirs):
            found = self._own.get(ordinal, "-")
            if found != self._theirs[ordinal]:
                return ordinal, self._theirs[ordinal], found
        return None

    @property
    def agreed(self) -> bool:
        """Whether every own copy was compared and none differs."""
        return self._own is not None and all(r.done for r in self._ranks) and self.difference() is None

    def awaited(self) -> dict[int, int]:
        """Return the owners whose digests are still to come, with their depth in the group's tree."""
        return {r.above: r.depth - 1 for r in self._ranks if r.above is not None and not r.done}

    def listeners(self, heard: set[int]) -> set[int]:
        """Return who still waits for digests through us, where we lead or our own source was heard."""
        live = [r for r in self._ranks if not r.done and (r.above is None or r.above in heard)]
        return {peer for rank in live for peer in rank.below}

    def _tell(self, rank: _Rank, known: list[tuple[int, str]]) -> list[tuple[int, Group]]:
        rank.told |= {ordinal for ordinal, _ in known}
        return [
            (peer, Group(self._attempt, tuple(known[i : i + DIGESTS_LIMIT])))
            for peer in rank.below
            for i in range(0, len(known), DIGESTS_LIMIT)
        ]


def _same(groups: Groups) -> list[tuple[tuple[int, ...], frozenset[int]]]:
    together: dict[tuple[int, ...], set[int]] = {}
    for ordinal, members in groups:
        together.setdefault(tuple(members), set()).add(ordinal)
    return [(members, frozenset(ordinals)) for members, ordinals in together.items() if len(members) > 1]


def _rank(me: int, members: tuple[int, ...], ordinals: frozenset[int], fan_out: int) -> _Rank:
    i = bisect.bisect_left(members, me)
    if i == len(members) or members[i] != me:
        raise ValueError(f"owner {me} is not in its own group {members[:8]}")
    above = None if i == 0 else members[(i - 1) // fan_out]
    below = members[fan_out * i + 1 : fan_out * i + 1 + fan_out]
    depth, j = 0, i
    while j:
        j, depth = (j - 1) // fan_out, depth + 1
    return _Rank(ordinals, above, tuple(below), depth)
