"""Plan: which words of which shards go where. Pure data, made without MPI and without files.

A *need* is one piece that this job must hold (or the whole of a per-owner array or document). A
*held* piece is one shard record and the role whose manifest names it. A *read* is one shard with
the copies made from it; a *copy* says which of its words go to which need.

The planner is general: any pieces on either side, in either direction (joins, splits, changed
boundaries). Where a needed piece stands as such in the store, as on the same placement, it costs
one look-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import Refused
from ..format.manifest import Place, ShardRecord, piece_ints, piece_of, start_in
from ..model.cover import check_cover
from ..model.pieces import Box, Interval, Piece
from .blocks import Block, shared

#: Kinds of regions of which every owner has its own.
PER_OWNER = ("per-owner", "per-owner-document")
#: Kinds of regions that are documents.
DOCUMENTS = ("document", "per-owner-document")


class RegionLike(Protocol):
    """What the planner must know of a region: `model.schema.Region` and `RegionDecl` have it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Need(NamedTuple):
    """One piece that this job must hold. `owner` is set for per-owner regions, whose `piece` is
    None; a plain document has neither. `key` is the caller's: it comes back untouched."""

    ordinal: int
    owner: int | None
    piece: Piece | None
    key: Any = None


class Held(NamedTuple):
    """One shard record and the role whose manifest names it."""

    record: ShardRecord
    role: int


class Copy(NamedTuple):
    """Words that go to need `need`; `blocks` None means the shard's words are the need's words."""

    need: int
    blocks: tuple[Block, ...] | None


class Read(NamedTuple):
    """One shard and what is copied from it. `start` completes the shard's key in its pack."""

    record: ShardRecord
    role: int
    start: int
    copies: tuple[Copy, ...]

    @property
    def key(self) -> tuple[int, int, int]:
        """(ordinal, owner, start): the shard's key in the pack that holds it."""
        return self.record.ordinal, self.record.owner, self.start


class Plan(NamedTuple):
    """What to read for `needs`. `regions` is the schema of the generation, in order."""

    regions: tuple[RegionLike, ...]
    needs: tuple[Need, ...]
    reads: tuple[Read, ...]

    def places(self) -> list[Place]:
        """Return the places whose packs are opened first, each once, in order."""
        return sorted({r.record.places[0] for r in self.reads}, key=lambda p: (p.epoch, p.save, p.role))

    @property
    def nbytes(self) -> int:
        """Bytes of all shards that the plan names, wholly or in part."""
        return sum(r.record.nbytes for r in self.reads)


def plan(needs: Iterable[Need], helds: Iterable[Held], regions: Sequence[RegionLike]) -> Plan:
    """Return the reads that give every needed word exactly once.

    The records have been checked against the schema (`format.records.check_records`). Raises
    `Refused`: ``incomplete-cover`` (naming the region and the missing words) or ``overlap``.
    """
    needs = tuple(needs)
    index = _Index(helds, regions)
    copies: dict[int, list[Copy]] = {}
    for number, need in enumerate(needs):
        at = index.exact.get(_exact(need.ordinal, need.owner, need.piece))
        if at is not None:
            copies.setdefault(at, []).append(Copy(number, None))
        elif need.piece is None:
            raise _missing(regions[need.ordinal], need)
        else:
            for at, blocks in index.parts(need.ordinal, need.piece):
                copies.setdefault(at, []).append(Copy(number, blocks))
    reads = []
    for at in sorted(copies):
        record, role = index.helds[at]
        start = start_in(record.piece, regions[record.ordinal].shape)
        reads.append(Read(record, role, start, tuple(copies[at])))
    return Plan(tuple(regions), needs, tuple(reads))


def is_replicated(region: RegionLike, rule: Any) -> bool:
    """Return whether every owner holds all words of a region; `rule` is its layout as data."""
    return region.kind == "document" or (region.kind == "array" and rule == {"rule": "replicated"})


def _exact(ordinal: int, owner: int | None, piece: Piece | None) -> tuple[int, int | None, tuple[int, ...]]:
    return ordinal, owner, () if piece is None else piece_ints(piece)


class _Index:
    """The held shards: by exact piece, and by flattened range for everything else."""

    def __init__(self, helds: Iterable[Held], regions: Sequence[RegionLike]) -> None:
        self.helds = tuple(helds)
        self.regions = regions
        self.exact: dict[tuple[int, int | None, tuple[int, ...]], int] = {}
        self._ranges: dict[int, Ranges] | None = None
        own = [r.kind in PER_OWNER for r in regions]
        for at, (record, _) in enumerate(self.helds):
            key = (record.ordinal, record.owner if own[record.ordinal] else None, record.piece)
            if self.exact.setdefault(key, at) != at:
                raise Refused(
                    "two shards hold the same words",
                    code="overlap",
                    role=record.owner,
                    region=regions[record.ordinal].name,
                    found=record.piece or "the whole",
                )

    def parts(self, ordinal: int, piece: Piece) -> Iterable[tuple[int, tuple[Block, ...]]]:
        """Return (held shard, blocks) for every shard that shares words with `piece`."""
        if self._ranges is None:
            groups: dict[int, list[int]] = {}
            for at, held in enumerate(self.helds):
                if held.record.piece:
                    groups.setdefault(held.record.ordinal, []).append(at)
            self._ranges = {}
            for group, members in groups.items():
                pieces = [piece_of(self.helds[at].record.piece) for at in members]
                self._ranges[group] = Ranges(members, pieces, self.regions[group].shape)
        region = self.regions[ordinal]
        found: list[tuple[int, tuple[Block, ...]]] = []
        covered: list[Piece] = []
        ranges = self._ranges.get(ordinal)
        for at, other in [] if ranges is None else ranges.near(piece):
            parts = shared(other, piece, region.shape)
            if parts:
                found.append((at, tuple(block for _, block in parts)))
                covered += [part for part, _ in parts]
        _check_need(covered, piece, region)
        return found


class Ranges:
    """The pieces of one region, sorted by their first word."""

    def __init__(self, members: list[int], pieces: Sequence[Piece | None], shape: tuple[int, ...]) -> None:
        whole = [p for p in pieces if p is not None]
        spans = np.array([_span(p, shape) for p in whole], dtype=np.int64).reshape(-1, 2)
        order = np.argsort(spans[:, 0], kind="stable")
        self._shape = shape
        self._members = [members[i] for i in order]
        self._pieces = [whole[i] for i in order]
        self._starts: npt.NDArray[np.int64] = spans[order, 0]
        self._stops: npt.NDArray[np.int64] = spans[order, 1]
        self._reach: npt.NDArray[np.int64] = np.maximum.accumulate(self._stops)
        self._corners: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        if self._pieces and all(isinstance(p, Box) for p in self._pieces):
            both = [(p.starts, p.stops) for p in self._pieces if isinstance(p, Box)]
            corners = np.array(both, dtype=np.int64)
            self._corners = corners[:, 0], corners[:, 1]

    def near(self, piece: Piece) -> list[tuple[int, Piece]]:
        """Return the (held shard, piece)s that may share words with `piece`."""
        first, last = _span(piece, self._shape)
        low = int(np.searchsorted(self._reach, first, side="right"))
        high = int(np.searchsorted(self._starts, last, side="left"))
        keep = self._stops[low:high] > first
        if self._corners is not None and isinstance(piece, Box):
            starts, stops = self._corners[0][low:high], self._corners[1][low:high]
            keep &= ((starts < piece.stops) & (stops > piece.starts)).all(axis=1)
        return [(self._members[low + i], self._pieces[low + i]) for i in np.flatnonzero(keep)]


def _span(piece: Piece, shape: tuple[int, ...]) -> tuple[int, int]:
    """The first word and one past the last word of a piece, in flattened order."""
    if isinstance(piece, Interval):
        return piece.start, piece.stop
    first = last = 0
    for a, b, n in zip(piece.starts, piece.stops, shape, strict=True):
        first, last = first * n + a, last * n + b - 1
    return first, last + 1


def _check_need(covered: list[Piece], need: Piece, region: RegionLike) -> None:
    """Raise unless the parts found are exactly the needed words: none missing, none twice."""
    size = math.prod(region.shape)
    shape = region.shape
    pieces: list[Piece]
    if isinstance(need, Interval):
        # What lies outside the need counts as covered, so that the whole region can be judged.
        outside = [Interval(0, need.start), Interval(need.stop, size)]
        pieces = covered + [p for p in outside if p.start < p.stop]
        origin: tuple[int, ...] = (0,) * len(shape)
    else:
        origin = need.starts
        shape = tuple(b - a for a, b in zip(need.starts, need.stops, strict=True))
        pieces = [
            Box(
                tuple(a - o for a, o in zip(p.starts, origin, strict=True)),
                tuple(b - o for b, o in zip(p.stops, origin, strict=True)),
            )
            for p in covered
            if isinstance(p, Box)
        ]
    try:
        check_cover(pieces, shape)
    except Refused as error:
        place = "" if not any(origin) else f" (counted from {origin})"
        raise Refused(
            f"the generation does not hold the words needed here exactly once: {error.message}{place}",
            code=error.code,
            region=region.name,
            expected=f"{need}" if error.expected is None else error.expected,
            found=error.found,
        ) from error


def _missing(region: RegionLike, need: Need) -> Refused:
    if region.kind in PER_OWNER:
        return Refused(
            f"the generation holds no {region.kind} state of owner {need.owner}",
            code="incomplete-cover",
            role=need.owner,
            region=region.name,
            expected=f"the whole of owner {need.owner}",
            found="nothing",
        )
    return Refused(
        "the generation does not hold this document",
        code="incomplete-cover",
        region=region.name,
        expected="the whole document",
        found="nothing",
    )
