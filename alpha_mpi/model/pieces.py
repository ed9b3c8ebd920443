"""Pieces: which words of a region one owner holds.

An *Interval* is a half-open range of the flattened C order; a *Box* a half-open box of the global
shape. Empty pieces hold no word and have no shard. ``None`` stands for the *whole* of a per-owner
array or of a document, whatever its size. A *run* is a range of words that follow each other in C
order. The exact cover of a region by pieces is decided in `cover`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from operator import index

import numpy as np
import numpy.typing as npt

from ..errors import Refused


@dataclasses.dataclass(frozen=True, order=True)
class Interval:
    """Words [start, stop) of the flattened region."""

    start: int
    stop: int

    def __str__(self) -> str:
        return f"words [{self.start}, {self.stop})"


@dataclasses.dataclass(frozen=True, order=True)
class Box:
    """Words of the box [starts, stops) of the global shape; one entry per axis, at least one axis."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def __str__(self) -> str:
        if len(self.starts) != len(self.stops):
            return repr(self)
        return "box [" + ", ".join(f"{a}:{b}" for a, b in zip(self.starts, self.stops, strict=True)) + "]"


#: The whole of a per-owner array or of a document is written None.
Piece = Interval | Box

Shape = tuple[int, ...]
Words = npt.NDArray[np.int64]


def words(shape: Sequence[int]) -> int:
    """Return the number of words of a shape; 1 for a 0-d one."""
    return math.prod(shape)


def whole(shape: Shape) -> Interval:
    """Return the interval of all words of a region."""
    return Interval(0, words(shape))


def size(piece: Piece) -> int:
    """Return the number of words of a piece."""
    if isinstance(piece, Interval):
        return max(0, piece.stop - piece.start)
    return math.prod([max(0, b - a) for a, b in zip(piece.starts, piece.stops, strict=True)])


def is_empty(piece: Piece) -> bool:
    """Return whether a piece holds no word."""
    return size(piece) == 0


def local_shape(piece: Piece) -> Shape:
    """Return the shape of the array that holds a piece: (length,) for an Interval."""
    if isinstance(piece, Interval):
        return (size(piece),)
    return tuple([max(0, b - a) for a, b in zip(piece.starts, piece.stops, strict=True)])


def start(piece: Piece | None, shape: Shape) -> int:
    """Return the index of a piece's first word in the flattened C order; 0 for a whole one."""
    if piece is None:
        return 0
    if isinstance(piece, Interval):
        return piece.start
    at = 0
    for n, a in zip(shape, piece.starts, strict=True):
        at = at * n + a
    return at


def plain(piece: Piece) -> Piece:
    """Return a piece with Python's own integers: users compute bounds with NumPy's."""
    if isinstance(piece, Interval):
        return Interval(index(piece.start), index(piece.stop))
    return Box(tuple(map(index, piece.starts)), tuple(map(index, piece.stops)))


def check(piece: Piece, shape: Shape) -> None:
    """Refuse (``bad-piece``) a piece that does not lie inside the shape."""
    if isinstance(piece, Interval):
        good = 0 <= piece.start <= piece.stop <= words(shape)
    else:
        good = len(piece.starts) == len(piece.stops) == len(shape) > 0 and all(
            0 <= a <= b <= n for a, b, n in zip(piece.starts, piece.stops, shape, strict=True)
        )
    if not good:
        raise Refused(
            "a piece lies outside its region", code="bad-piece", expected=f"inside {shape}", found=piece
        )


def boxes(interval: Interval, shape: Shape) -> list[Box]:
    """Return the boxes whose words, in this order, are the interval's; at most 2 rank - 1 of them."""
    return [Box(a, b) for a, b in _boxes(interval.start, interval.stop, shape)]


def _boxes(begin: int, end: int, shape: Shape) -> Iterator[tuple[Shape, Shape]]:
    if begin >= end:
        return
    if len(shape) == 1:
        yield (begin,), (end,)
        return
    rest = shape[1:]
    row = words(rest)
    a, head = divmod(begin, row)
    b, tail = divmod(end, row)
    if a == b:
        for s, e in _boxes(head, tail, rest):
            yield (a, *s), (a + 1, *e)
        return
    if head:
        for s, e in _boxes(head, row, rest):
            yield (a, *s), (a + 1, *e)
        a += 1
    if a < b:
        yield (a, *(0 for _ in rest)), (b, *rest)
    for s, e in _boxes(0, tail, rest):
        yield (b, *s), (b + 1, *e)


def intersect(a: Piece, b: Piece, shape: Shape) -> list[Piece]:
    """Return the pieces, in C order of their first words, that hold the words of both.

    Empty when there is none. Two intervals give one interval, two boxes one box; an interval and
    a box give at most 2 rank - 1 boxes.
    """
    if isinstance(a, Interval) and isinstance(b, Interval):
        lo, hi = max(a.start, b.start), min(a.stop, b.stop)
        return [Interval(lo, hi)] if lo < hi else []
    if isinstance(a, Interval):
        a, b = b, a
    assert isinstance(a, Box)
    parts = boxes(b, shape) if isinstance(b, Interval) else [b]
    found: list[Piece] = []
    for part in parts:
        starts = tuple(map(max, a.starts, part.starts))
        stops = tuple(map(min, a.stops, part.stops))
        if all(x < y for x, y in zip(starts, stops, strict=True)):
            found.append(Box(starts, stops))
    return found


def run_starts(piece: Piece, shape: Shape) -> tuple[Words, int]:
    """Return (first words of the runs of a piece, ascending; words in each run).

    Runs are as long as can be: trailing axes that a box holds in full join into one run.
    """
    n = size(piece)
    if n == 0:
        return np.empty(0, np.int64), 0
    if isinstance(piece, Interval):
        return np.array([piece.start], np.int64), n
    last = len(shape) - 1
    while last > 0 and piece.starts[last] == 0 and piece.stops[last] == shape[last]:
        last -= 1
    inner = words(shape[last + 1 :])
    at = np.zeros(1, np.int64)
    for axis in range(last):
        steps = np.arange(piece.starts[axis], piece.stops[axis], dtype=np.int64)
        at = (at[:, None] * shape[axis] + steps).reshape(-1)
    at = (at * shape[last] + piece.starts[last]) * inner
    return at, (piece.stops[last] - piece.starts[last]) * inner


def runs(piece: Piece, shape: Shape) -> Iterator[tuple[int, int]]:
    """Yield (first word, words) of the runs of a piece, ascending."""
    starts, length = run_starts(piece, shape)
    for at in starts.tolist():
        yield at, length


def runs_within(inner: Piece, outer: Piece | None, shape: Shape) -> tuple[Words, Words]:
    """Return (offsets, lengths) of the runs of `inner` in the C order of the array holding `outer`.

    `inner` must lie inside `outer`. Offsets ascend, so that joined they are `inner` in C order;
    two such lists for one `inner` and two outer pieces pair up word by word (see `zip_runs`).
    """
    if outer is None or isinstance(outer, Interval):
        at, length = run_starts(inner, shape)
        if outer is not None:
            at = at - outer.start
        return at, np.full(len(at), length, np.int64)
    local = local_shape(outer)
    parts = boxes(inner, shape) if isinstance(inner, Interval) else [inner]
    offsets, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part in parts:
        shifted = Box(
            tuple(x - o for x, o in zip(part.starts, outer.starts, strict=True)),
            tuple(x - o for x, o in zip(part.stops, outer.starts, strict=True)),
        )
        at, length = run_starts(shifted, local)
        offsets.append(at)
        lengths.append(np.full(len(at), length, np.int64))
    return np.concatenate(offsets), np.concatenate(lengths)


def zip_runs(a: tuple[Words, Words], b: tuple[Words, Words]) -> tuple[Words, Words, Words]:
    """Return (offsets in a, offsets in b, lengths) of the words two lists of runs share in order.

    Both lists must hold the same number of words. Each returned run is contiguous on both sides.
    """
    ends_a, ends_b = np.cumsum(a[1]), np.cumsum(b[1])
    if (ends_a[-1] if len(ends_a) else 0) != (ends_b[-1] if len(ends_b) else 0):
        raise ValueError("the two lists of runs do not hold the same number of words")
    ends = np.union1d(ends_a, ends_b)
    begins = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    i = np.searchsorted(ends_a, begins, side="right")
    j = np.searchsorted(ends_b, begins, side="right")
    at_a = a[0][i] + begins - (ends_a[i] - a[1][i])
    at_b = b[0][j] + begins - (ends_b[j] - b[1][j])
    return at_a, at_b, ends - begins


def slices(inner: Box, outer: Box) -> tuple[slice, ...]:
    """Return the index of `inner` in the array that holds `outer`."""
    return tuple(slice(a - o, b - o) for a, b, o in zip(inner.starts, inner.stops, outer.starts, strict=True))
