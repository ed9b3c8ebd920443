"""Lending: files that any owner may want, each opened by one owner and read by others from its memory.

The one-sided counterpart of `windows` for readers that are no family: one owner opens a file, keeps
its bytes in a window, and whoever asked for it gets them from there. Two steps, so that opening may
take its time: `ask` tells each lender what is wanted of it, `serve` gives it out.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..errors import Cause, PeerFailed, cause_of, error_of
from .agreement import agree
from .exchange import exchange
from .onesided import PATH_LIMIT, share_out
from .world import World

_ASKED = msgspec.msgpack.Decoder(list[tuple[int, bytes]])
_PLACES = msgspec.msgpack.Decoder(list[tuple[int, int]])


class Lending:
    """One round: what is wanted, by number, of which lender. Every owner makes and uses it alike."""

    def __init__(self, world: World, deadline: float) -> None:
        self._world = world
        self._deadline = deadline
        self._mine: list[dict[int, bytes]] = []  # by lender: number -> what describes it
        self._theirs: list[list[int]] = []  # by borrower: the numbers it wants of this owner

    def ask(self, wanted: Mapping[int, tuple[int, bytes]]) -> dict[int, bytes]:
        """Tell every lender what is wanted of it; return what everybody wants of this owner.

        `wanted` gives each number's lender and a description for it, the same from all who want it.
        """
        self._mine = [{} for _ in range(self._world.size)]
        for number, (lender, described) in wanted.items():
            self._mine[lender][number] = described
        encode = msgspec.msgpack.encode
        asked = exchange(self._world, [encode(list(d.items())) for d in self._mine], self._deadline)
        decoded = [_ASKED.decode(data) for data in asked]
        self._theirs = [[number for number, _ in one] for one in decoded]
        return {number: described for one in decoded for number, described in one}

    def serve(self, files: Mapping[int, bytes]) -> dict[int, bytes]:
        """Give out the files that `ask` named; return those this owner asked for.

        Called by every owner. Raises the same error on all: `PeerFailed` ``path-too-large`` where
        one owner's do not fit a window, and what `exchange` raises.
        """
        world = self._world
        at, places = 0, {}
        for number, data in files.items():
            places[number] = (at, len(data))
            at += len(data)
        cause: Cause | None = None
        if at > PATH_LIMIT:
            cause = cause_of(
                PeerFailed(
                    "the manifests to lend do not fit a window",
                    code="path-too-large",
                    expected=PATH_LIMIT,
                    found=at,
                ),
                world.rank,
            )
        agreed = agree(world, cause, self._deadline)
        if agreed is not None:
            raise error_of(agreed)
        encode = msgspec.msgpack.encode
        told = exchange(
            world, [encode([places[number] for number in one]) for one in self._theirs], self._deadline
        )
        found = {number: files[number] for number in self._mine[world.rank]}
        abroad = any(bool(d) for lender, d in enumerate(self._mine) if lender != world.rank)
        note = Cause(kind="error", code="borrows", message="") if abroad else None
        if agree(world, note, self._deadline) is None:
            return found  # nobody needs a window
        taken = {
            lender: _PLACES.decode(data)
            for lender, data in enumerate(told)
            if lender != world.rank and self._mine[lender]
        }
        given = {
            borrower: [places[number] for number in one]
            for borrower, one in enumerate(self._theirs)
            if borrower != world.rank and one
        }
        own = b"".join(files.values())
        for lender, lent in share_out(world, own, given, taken, self._deadline).items():
            found.update(zip(self._mine[lender], lent, strict=True))
        return found
