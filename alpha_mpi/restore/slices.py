"""Slices: which words of which shards a slice of a region takes.

A *lattice* are the words of a region at regular steps on every axis, what a slice such as
``[10:20, ::3]`` names. A *selection* is such a slice of a given shape: its lattice, and how the
words read become the array that was asked for. Per-owner arrays are sliced along a leading axis
of owners, as if owner k held row k.

Everything here is plain arithmetic; no file is opened and no array data are touched.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import Refused
from ..format.manifest import piece_of, start_of
from ..model.cover import check_cover
from ..model.layout import Replicated, Rows, Rule, Shares, from_data, share_of
from ..model.pieces import Box, Interval, Piece, boxes, local_shape
from ..model.schema import Region
from .blocks import Block, joined, strides_of
from .plan import PER_OWNER, Copy, Held, Need, Plan, Ranges, Read


class Lattice(NamedTuple):
    """Words ``starts + i * steps`` for i below `counts`, on each axis; steps and counts at least 1."""

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def hull(self) -> Box:
        """The smallest box around it."""
        ends = zip(self.starts, self.counts, self.steps, strict=True)
        return Box(self.starts, tuple(a + (n - 1) * s + 1 for a, n, s in ends))


class Selection(NamedTuple):
    """A slice of an array. `lattice` is None where it holds no word; the words read have the shape
    of the lattice and become, reshaped to `shape`, the answer once the axes in `flipped` (of
    the lattice) are turned round."""

    lattice: Lattice | None
    shape: tuple[int, ...]
    flipped: tuple[int, ...]


def select(key: Any, shape: tuple[int, ...]) -> Selection:
    """Return what NumPy's basic indexing `key` takes of an array of `shape`.

    Integers, slices and one Ellipsis. Raises `IndexError` for anything else and for an integer
    out of range, as NumPy does.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if len(keys) - len(dots) > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} axes, {len(keys)} were indexed")
    at = dots[0] if dots else len(keys)
    fill = [slice(None)] * (len(shape) - len(keys) + len(dots))
    keys[at : at + len(dots)] = fill
    starts, counts, steps, kept, flipped = [], [], [], [], []
    for axis, (one, extent) in enumerate(zip(keys, shape, strict=True)):
        if isinstance(one, slice):
            start, stop, step = one.indices(extent)
            count = len(range(start, stop, step))
            kept.append(count)
            if step < 0:
                flipped.append(axis)
                start, step = start + (count - 1) * step, -step
        else:
            start, count, step = _index(one, axis, extent), 1, 1
        starts.append(start)
        counts.append(count)
        steps.append(step)
    if 0 in counts:
        return Selection(None, tuple(kept), ())
    return Selection(Lattice(tuple(starts), tuple(counts), tuple(steps)), tuple(kept), tuple(flipped))


def _index(one: Any, axis: int, extent: int) -> int:
    try:
        if isinstance(one, bool):
            raise TypeError
        at = operator.index(one)
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`) and an ellipsis (`...`) pick words out of a store; "
            "take a slice, and index the array it gives"
        ) from None
    if not -extent <= at < extent:
        raise IndexError(f"index {at} is out of bounds for axis {axis} with size {extent}")
    return at + extent if at < 0 else at


def shape_of(region: Region, owners: int) -> tuple[int, ...]:
    """Return the shape a region is sliced by: of a per-owner array with the axis of owners."""
    return (owners, *region.shape) if region.kind in PER_OWNER else region.shape


def plan_slice(
    region: Region, regions: Sequence[Region], lattice: Lattice, helds: Iterable[Held], owners: int
) -> Plan:
    """Return the reads that give the words of `lattice`, in its shape, as need 0.

    `helds` are shards of this region. Raises `Refused`: ``incomplete-cover`` or ``overlap`` unless
    they hold each of these words exactly once.
    """
    shape = shape_of(region, owners)
    if not shape:  # one word: as an array of one axis
        shape, lattice = (1,), Lattice((0,), (1,), (1,))
    helds = list(helds)
    pieces = [_space_of(held, region) for held in helds]
    ranges = Ranges(list(range(len(helds))), pieces, shape)
    reads, parts = [], []
    for at, piece in ranges.near(lattice.hull):
        found = _shared(piece, lattice, shape)
        if found:
            record, role = helds[at]
            start = start_of(piece_of(record.piece), region.shape)
            blocks = tuple(block for _, block in found)
            reads.append(Read(record, role, start, (Copy(0, blocks),)))
            parts += [part for part, _ in found]
    try:
        check_cover(parts, lattice.counts)
    except Refused as error:
        raise Refused(
            f"the generation does not hold the words of this slice exactly once: {error.message}",
            code=error.code,
            region=region.name,
            expected=error.expected,
            found=error.found,
        ) from error
    return Plan(tuple(regions), (Need(region.ordinal, None, lattice.hull),), tuple(reads))


def _space_of(held: Held, region: Region) -> Piece:
    """Return where a shard lies in the shape a region is sliced by."""
    record = held.record
    if region.kind in PER_OWNER:
        n = len(region.shape)
        return Box((record.owner, *(0,) * n), (record.owner + 1, *region.shape))
    piece = piece_of(record.piece)
    assert piece is not None
    return piece


def _shared(held: Piece, lattice: Lattice, shape: tuple[int, ...]) -> list[tuple[Box, Block]]:
    """Return the words of a lattice that `held` holds: each part, counted in steps, with its block."""
    if isinstance(held, Interval):
        origin, strides, offset = (0,) * len(shape), strides_of(shape), held.start
        parts = boxes(held, shape)
    else:
        origin, strides, offset = held.starts, strides_of(local_shape(held)), 0
        parts = [held]
    to = strides_of(lattice.counts)
    found = []
    for part in parts:
        low, high = [], []
        for a, b, start, n, step in zip(part.starts, part.stops, *lattice, strict=True):
            low.append(max(0, -((start - a) // step)))
            high.append(min(n, -((start - b) // step)))
        if any(i >= j for i, j in zip(low, high, strict=True)):
            continue
        first = [start + i * step for start, i, step in zip(lattice.starts, low, lattice.steps, strict=True)]
        block = Block(
            tuple(j - i for i, j in zip(low, high, strict=True)),
            sum((f - o) * s for f, o, s in zip(first, origin, strides, strict=True)) - offset,
            tuple(s * step for s, step in zip(strides, lattice.steps, strict=True)),
            sum(i * t for i, t in zip(low, to, strict=True)),
            to,
        )
        found.append((Box(tuple(low), tuple(high)), joined(block)))
    return found


def writers(region: Region, layout: Any, piece: Piece, owners: int) -> frozenset[int] | None:
    """Return the owners whose shards may hold words of `piece`, as the layout rule explains them.

    `piece` is counted in the shape a region is sliced by. None where no rule says it. The pieces in
    the records decide: who does not find all words among these owners looks at the others too.
    """
    shape = region.shape
    if isinstance(piece, Interval):
        first, last = piece.start, piece.stop - 1
        hull = _hull(boxes(piece, shape)) if shape else Box((), ())
    else:
        hull = piece
    if region.kind in PER_OWNER:
        return frozenset(range(hull.starts[0], hull.stops[0]))
    rule: Rule = from_data(layout)
    if isinstance(rule, Replicated) or not shape:
        return frozenset((0,))
    if isinstance(rule, Rows):
        extent, low, high = shape[rule.axis], hull.starts[rule.axis], hull.stops[rule.axis] - 1
        return frozenset(range(share_of(extent, owners, low), share_of(extent, owners, high) + 1))
    if isinstance(rule, Shares):
        if isinstance(piece, Box):
            first = start_of(piece, shape)
            last = start_of(Box(tuple(b - 1 for b in piece.stops), piece.stops), shape)
        count = math.prod(shape)
        return frozenset(range(share_of(count, owners, first), share_of(count, owners, last) + 1))
    try:
        held = ((k, rule.pieces(shape, owners, k)) for k in range(owners))
        near = [k for k, pieces in held if any(_meets(p, hull) for p in pieces)]
        return frozenset(rule.group(shape, owners, k)[0] for k in near)
    except Refused:
        return None  # irregular


def _hull(parts: Sequence[Box]) -> Box:
    starts, stops = zip(*((b.starts, b.stops) for b in parts), strict=True)
    return Box(tuple(map(min, zip(*starts, strict=True))), tuple(map(max, zip(*stops, strict=True))))


def _meets(piece: Piece | None, hull: Box) -> bool:
    if not isinstance(piece, Box):
        return True
    return all(
        a < d and c < b for a, b, c, d in zip(piece.starts, piece.stops, hull.starts, hull.stops, strict=True)
    )
