"""Owners: who holds given words, by a layout rule, without asking every owner.

The inverse of `Rule.pieces`, for readers: a piece of any kind against a layout of any kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from .pieces import Box, Interval, Piece, Shape, Words, boxes, is_empty, run_starts, start, words
from .rules import Grid, Irregular, Mesh, On, PerOwner, Replicated, Rows, Rule, Shares, share_of

#: Runs of a box that are looked up one by one in a layout of shares; above it their span is.
RUNS_LIMIT = 1 << 20


def writers(rule: Rule, shape: Shape, n: int, piece: Piece) -> frozenset[int] | None:
    """Return the owners, of n, that write the shards in which the words of `piece` lie.

    Every one of them holds a word of the piece, but for a box of very many runs in a layout of
    shares. None where no rule says it: irregular and per-owner regions.
    """
    if is_empty(piece):
        return frozenset()
    if isinstance(rule, (Irregular, PerOwner)):
        return None
    if isinstance(rule, Replicated):
        return frozenset((0,))
    if isinstance(rule, On):
        inner = writers(rule.rule, shape, len(rule.owners), piece)
        return frozenset(rule.group(shape, n, rule.owners[i])[0] for i in inner or ())
    if isinstance(rule, Shares):
        return _shares(shape, n, piece)
    if not shape:
        return frozenset((0,))  # one word, and its lowest owner writes it
    cuts = _cuts(rule, n)
    parts = boxes(piece, shape) if isinstance(piece, Interval) else [piece]
    return frozenset(k for part in parts for k in _cells(cuts, shape, part))


def _shares(shape: Shape, n: int, piece: Piece) -> frozenset[int]:
    total = words(shape)
    if isinstance(piece, Interval):
        first, last = piece.start, piece.stop - 1
    else:
        first = start(piece, shape)
        last = start(Box(tuple(b - 1 for b in piece.stops), piece.stops), shape)
    low, high = share_of(total, n, first), share_of(total, n, last)
    if high - low < 2 or isinstance(piece, Interval):
        return frozenset(range(low, high + 1))
    if is_long(piece):
        return frozenset(range(low, high + 1))
    at, length = run_starts(piece, shape)
    begins, ends = (_share_of(total, n, w) for w in (at, at + length - 1))
    found = set(begins.tolist()) | set(ends.tolist())
    for a, b in zip(begins.tolist(), ends.tolist(), strict=True):
        if b - a > 1:
            found.update(range(a, b))
    return frozenset(found)


def is_long(piece: Box) -> bool:
    """Return whether a box may have more runs than are looked up one by one."""
    return words(tuple(b - a for a, b in zip(piece.starts, piece.stops, strict=True))[:-1]) > RUNS_LIMIT


def _share_of(extent: int, n: int, at: Words) -> Words:
    """`share_of` of many words at once."""
    each, extra = divmod(extent, n)
    longer = extra * (each + 1)
    return np.where(at < longer, at // (each + 1), extra + (at - longer) // max(each, 1))


def _cuts(rule: Rule, n: int) -> Mapping[int, tuple[int, int]]:
    """Return per array axis that is dealt (over how many, by what the owner's number grows)."""
    if isinstance(rule, Rows):
        return {rule.axis: (n, 1)}
    if isinstance(rule, Grid):
        strides = _strides(rule.dims)
        return {i: (d, s) for i, (d, s) in enumerate(zip(rule.dims, strides, strict=True))}
    assert isinstance(rule, Mesh)
    # An axis of the mesh that nothing is split over stays at 0: the lowest of a group writes.
    strides = _strides(tuple(count for _, count in rule.axes))
    axes = {name: (count, step) for (name, count), step in zip(rule.axes, strides, strict=True)}
    return {i: axes[name] for i, name in enumerate(rule.split) if name is not None}


def _strides(dims: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for d in reversed(dims):
        strides.append(step)
        step *= d
    return strides[::-1]


def _cells(cuts: Mapping[int, tuple[int, int]], shape: Shape, box: Box) -> Iterable[int]:
    """Yield the owners whose cell shares words with a box."""
    steps = []
    for axis, (count, stride) in cuts.items():
        low = share_of(shape[axis], count, box.starts[axis])
        high = share_of(shape[axis], count, box.stops[axis] - 1)
        steps.append(range(low * stride, (high + 1) * stride, stride))
    return map(sum, itertools.product(*steps))
