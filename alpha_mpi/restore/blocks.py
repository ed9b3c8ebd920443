"""Blocks: the words two pieces share, as strides on both sides.

A *block* is a rectangular set of words that lies at regular strides in a source (the flattened
words of one shard) and at regular strides in a destination (the flattened words of one needed
piece). Any two pieces share at most a few blocks per pair of axes, however many runs of
consecutive words those are, so a plan stays small and numpy copies a block in one call.

Everything here is plain arithmetic on words; nothing reads or allocates array data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..model.pieces import Box, Interval, Piece, boxes, local_shape


class Block(NamedTuple):
    """`shape` words: in the source from word `source` on, in the destination from `destination` on.

    Strides are in words, one per axis, not increasing from axis to axis on the source's side, so
    that a smaller index on an earlier axis always means a smaller word.
    """

    shape: tuple[int, ...]
    source: int
    source_strides: tuple[int, ...]
    destination: int
    destination_strides: tuple[int, ...]

    @property
    def words(self) -> int:
        """How many words the block has."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """One past the last source word."""
        return self.source + _extent(self.shape, self.source_strides)


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in words, of a C-ordered array of `shape`."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def shared(held: Piece, needed: Piece, shape: tuple[int, ...]) -> list[tuple[Piece, Block]]:
    """Return the words that both pieces of a region of `shape` hold: each part with its block.

    The source is the flattened `held`, the destination the flattened `needed`; empty if they have
    no word in common.
    """
    if isinstance(held, Interval) and isinstance(needed, Interval):
        start, stop = max(held.start, needed.start), min(held.stop, needed.stop)
        if start >= stop:
            return []
        block = Block((stop - start,), start - held.start, (1,), start - needed.start, (1,))
        return [(Interval(start, stop), block)]
    source, destination = _Space(held, shape), _Space(needed, shape)
    found: list[tuple[Piece, Block]] = []
    for a in source.boxes:
        for b in destination.boxes:
            starts = tuple(map(max, a.starts, b.starts))
            stops = tuple(map(min, a.stops, b.stops))
            if all(i < j for i, j in zip(starts, stops, strict=True)):
                block = Block(
                    tuple(j - i for i, j in zip(starts, stops, strict=True)),
                    source.word(starts),
                    source.strides,
                    destination.word(starts),
                    destination.strides,
                )
                found.append((Box(starts, stops), joined(block)))
    return found


def joined(block: Block) -> Block:
    """Return the same words in the same order with as few axes as possible."""
    shape: list[int] = []
    source: list[int] = []
    destination: list[int] = []
    for n, s, d in zip(block.shape, block.source_strides, block.destination_strides, strict=True):
        if n == 1:
            continue
        if shape and source[-1] == s * n and destination[-1] == d * n:
            shape[-1] *= n
            source[-1], destination[-1] = s, d
        else:
            shape.append(n)
            source.append(s)
            destination.append(d)
    if not shape:
        shape, source, destination = [1], [1], [1]
    return Block(tuple(shape), block.source, tuple(source), block.destination, tuple(destination))


def clip(block: Block, start: int, stop: int) -> Iterator[Block]:
    """Yield the parts of `block` whose source words lie in [start, stop)."""
    if start <= block.source and block.stop <= stop:
        yield block
        return
    if block.source >= stop or block.stop <= start:
        return
    n, step, step_to = block.shape[0], block.source_strides[0], block.destination_strides[0]
    rest, rest_source, rest_to = block.shape[1:], block.source_strides[1:], block.destination_strides[1:]
    extent = _extent(rest, rest_source)
    # Indices [low, high) of the first axis lie wholly inside; one on either side may in part.
    low = min(max(-(-(start - block.source) // step), 0), n)
    high = min(max((stop - extent - block.source) // step + 1, low), n)

    def row(i: int) -> Iterator[Block]:
        if rest and 0 <= i < n:
            at, to = block.source + i * step, block.destination + i * step_to
            yield from clip(Block(rest, at, rest_source, to, rest_to), start, stop)

    yield from row(low - 1)
    if low < high:
        at, to = block.source + low * step, block.destination + low * step_to
        yield block._replace(shape=(high - low, *rest), source=at, destination=to)
    yield from row(high)


def touched(blocks: Iterable[Block], step: int) -> list[int]:
    """Return which of the source's parts of `step` words each hold words of a block, in order."""
    found: set[int] = set()
    for block in blocks:
        _touch(block, step, found)
    return sorted(found)


def _touch(block: Block, step: int, found: set[int]) -> None:
    # Rows that start at most `step` words apart leave no part between them untouched.
    if len(block.shape) == 1 or block.source_strides[0] <= step:
        if len(block.shape) == 1 and block.source_strides[0] > step:
            found.update((block.source + i * block.source_strides[0]) // step for i in range(block.shape[0]))
        else:
            found.update(range(block.source // step, (block.stop - 1) // step + 1))
        return
    for i in range(block.shape[0]):
        _touch(
            Block(
                block.shape[1:],
                block.source + i * block.source_strides[0],
                block.source_strides[1:],
                block.destination,
                block.destination_strides[1:],
            ),
            step,
            found,
        )


def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1


class _Space:
    """Where the words of one piece lie in its own flattened order."""

    def __init__(self, piece: Piece, shape: tuple[int, ...]) -> None:
        if isinstance(piece, Interval):
            self.boxes = boxes(piece, shape)
            self.origin: tuple[int, ...] = (0,) * len(shape)
            self.strides = strides_of(shape)
            self.offset = piece.start
        else:
            self.boxes = [piece]
            self.origin = piece.starts
            self.strides = strides_of(local_shape(piece))
            self.offset = 0

    def word(self, index: tuple[int, ...]) -> int:
        steps = zip(index, self.origin, self.strides, strict=True)
        return sum((i - o) * s for i, o, s in steps) - self.offset
