"""Own pieces: which words each role writes, known from the layout rules before any byte is.

An *own piece* is written by exactly one owner. Words that several owners hold are written once:
replicated words by the root (a large region's chunks also by its children), a piece of a replica
group by the lowest owner of the group. The others' copies are only compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .. import digest
from ..format.manifest import piece_ints
from ..model.formats import by_name
from ..model.layout import Irregular, Replicated, Rule
from ..model.pieces import Interval, Piece, is_empty, start
from ..model.schema import Region, Schema
from ..protocol.hierarchy import Hierarchy, Star, place

#: Replicated regions of at least this many bytes are dealt to the root and its children.
DEALT = 64 << 20


@dataclasses.dataclass(frozen=True)
class Own:
    """One own piece. `piece` is None for the whole of a per-owner region or a document."""

    ordinal: int
    owner: int
    start: int
    piece: Piece | None

    @property
    def key(self) -> tuple[int, int, int]:
        """The shard's key within its role."""
        return self.ordinal, self.owner, self.start

    @property
    def ints(self) -> tuple[int, ...]:
        """The piece, as a record writes it."""
        return piece_ints(self.piece)


def is_replicated(region: Region, rule: Rule | None) -> bool:
    """Return whether every owner holds all words of the region."""
    return region.kind == "document" or isinstance(rule, Replicated)


def writers(region: Region, hierarchy: Hierarchy, owners: int) -> tuple[int, ...]:
    """Return the owners that write a replicated region, in the order of their parts."""
    if isinstance(hierarchy, Star) or region.is_document or nbytes(region) < DEALT:
        return (0,)
    return (0, *(role for role, _ in place(hierarchy, owners, 0).children))


def nbytes(region: Region) -> int:
    """Return the bytes of an array region (of one owner's array where it is per owner)."""
    return region.size * by_name(region.format).itemsize


def part(region: Region, who: Sequence[int], owner: int) -> Interval:
    """Return the words of a replicated array region that `owner`, one of its writers, writes.

    Its chunks are dealt as shares whose sizes differ by at most one, larger first.
    """
    words = digest.CHUNK // by_name(region.format).itemsize
    count = digest.chunk_count(nbytes(region))
    share, extra = divmod(count, len(who))
    i = who.index(owner)
    first = i * share + min(i, extra)
    last = first + share + (i < extra)
    return Interval(min(first * words, region.size), min(last * words, region.size))


def of_owner(
    schema: Schema,
    rules: Sequence[Rule | None],
    hierarchy: Hierarchy,
    owners: int,
    owner: int,
    irregular: dict[int, tuple[Piece, ...]] | None = None,
) -> list[Own]:
    """Return the own pieces of one owner, ordered by (ordinal, start). Empty pieces are left out.

    `irregular` gives this owner's pieces of the regions with an irregular layout, by ordinal.
    """
    own: list[Own] = []
    for region, rule in zip(schema.regions, rules, strict=True):
        if is_replicated(region, rule):
            who = writers(region, hierarchy, owners)
            if owner not in who:
                continue
            if region.is_document:
                own.append(Own(region.ordinal, owner, 0, None))
                continue
            pieces: tuple[Piece, ...] = (part(region, who, owner),)
        elif region.kind in ("per-owner", "per-owner-document"):
            if region.is_document or region.size:
                own.append(Own(region.ordinal, owner, 0, None))
            continue
        elif isinstance(rule, Irregular):
            pieces = (irregular or {}).get(region.ordinal, ())
        else:
            assert rule is not None
            shape = region.shape
            flags = zip(rule.pieces(shape, owners, owner), rule.writes(shape, owners, owner), strict=True)
            pieces = tuple(p for p, writes in flags if writes and p is not None)
        own += sorted(
            (
                Own(region.ordinal, owner, start(p, region.shape), p)
                for p in pieces
                if region.size and not is_empty(p)
            ),
            key=lambda o: o.start,
        )
    return own
