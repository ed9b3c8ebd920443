"""Cover: whether pieces hold every word of a region exactly once.

Decided on the pieces themselves, never by adding up byte counts: the region is cut into slabs
until each slab is one piece, or shows a word that two pieces hold, or one that none holds. Cuts
that cross no piece are taken all at once, so layouts made of rows, columns and grids cost about
n log n; others are cut at the most even boundary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from ..errors import Refused
from .pieces import Box, Interval, Piece, Shape, Words, boxes, check, is_empty, whole, words

#: At most this many pieces of one slab are compared with each other in pairs.
_PAIRS = 8


def check_cover(
    pieces: Sequence[Piece], shape: Shape, owners: Sequence[int] | None = None, region: str | None = None
) -> None:
    """Refuse pieces that do not hold every word of `shape` exactly once.

    Called for irregular layouts, and by whoever judges a generation. Empty pieces are passed over.
    `owners` gives the owner of each piece, for the error. Raises `Refused` with code
    ``incomplete-cover``, ``overlap`` or ``bad-piece``.
    """
    _Cover(pieces, shape, owners, region).decide()


class _Cover:
    def __init__(
        self, pieces: Sequence[Piece], shape: Shape, owners: Sequence[int] | None, region: str | None
    ) -> None:
        self.pieces = pieces
        self.shape = shape
        self.owners = owners
        self.region = region

    def decide(self) -> None:
        held = []
        for i, piece in enumerate(self.pieces):
            try:
                check(piece, self.shape)
            except Refused as error:
                error.region, error.role = self.region, self._owner(i)
                raise
            if not is_empty(piece):
                held.append(i)
        if words(self.shape) == 0:
            return
        if not held:
            self._gap(whole(self.shape))
        if all(isinstance(self.pieces[i], Interval) for i in held):
            self._intervals(held)
        else:
            self._boxes(held)

    def _intervals(self, held: list[int]) -> None:
        bounds = np.array([(self.pieces[i].start, self.pieces[i].stop) for i in held], np.int64)  # type: ignore[union-attr]
        order = np.argsort(bounds[:, 0], kind="stable")
        starts, stops = bounds[order, 0], bounds[order, 1]
        ends = np.append(starts[1:], words(self.shape))
        if starts[0] != 0:
            self._gap(Interval(0, int(starts[0])))
        wrong = np.flatnonzero(stops != ends)
        if len(wrong):
            i = int(wrong[0])
            if stops[i] > ends[i]:  # the last one cannot end after the region: checked above
                self._overlap(held[int(order[i])], held[int(order[i + 1])])
            self._gap(Interval(int(stops[i]), int(ends[i])))

    def _boxes(self, held: list[int]) -> None:
        index: list[int] = []
        starts: list[Shape] = []
        stops: list[Shape] = []
        for i in held:
            piece = self.pieces[i]
            for box in boxes(piece, self.shape) if isinstance(piece, Interval) else (piece,):
                index.append(i)
                starts.append(box.starts)
                stops.append(box.stops)
        lo = np.zeros(len(self.shape), np.int64)
        hi = np.array(self.shape, np.int64)
        stack = [_Slab(lo, hi, np.array(index), np.array(starts, np.int64), np.array(stops, np.int64))]
        while stack:
            stack.extend(self._cut(stack.pop()))

    def _cut(self, slab: _Slab) -> list[_Slab]:
        """Judge one slab, or cut it into smaller ones that remain to be judged."""
        m = len(slab.index)
        if m == 0:
            self._gap(slab.box())
        if m == 1:
            self._single(slab.lo, slab.hi, slab.starts[0], slab.stops[0])
            return []
        if m <= _PAIRS:
            for i, j in itertools.combinations(range(m), 2):
                meet = np.maximum(slab.starts[i], slab.starts[j]) < np.minimum(slab.stops[i], slab.stops[j])
                if meet.all():
                    self._overlap(int(slab.index[i]), int(slab.index[j]))
            if slab.held() == slab.size():
                return []  # no two of them meet, and together they are as many words as the slab
        for axis in range(len(slab.lo)):
            parts = self._free_cuts(slab, axis)
            if parts is not None:
                return parts
        return self._even_cut(slab)

    def _free_cuts(self, slab: _Slab, axis: int) -> list[_Slab] | None:
        """Cut at every boundary of one axis that crosses no piece; None where there is none."""
        order = np.argsort(slab.starts[:, axis], kind="stable")
        starts = slab.starts[order, axis]
        reach = np.maximum.accumulate(slab.stops[order, axis])
        lo, hi = int(slab.lo[axis]), int(slab.hi[axis])
        if starts[0] > lo:
            self._gap(slab.part(axis, lo, int(starts[0])).box())
        if reach[-1] < hi:
            self._gap(slab.part(axis, int(reach[-1]), hi).box())
        cuts = np.flatnonzero(starts[1:] >= reach[:-1]) + 1
        if not len(cuts):
            return None
        holes = np.flatnonzero(starts[cuts] > reach[cuts - 1])
        if len(holes):
            c = int(cuts[holes[0]])
            self._gap(slab.part(axis, int(reach[c - 1]), int(starts[c])).box())
        first = np.concatenate([[0], cuts])
        last = np.append(cuts, len(order))
        alone = order[first[last - first == 1]]
        others = np.arange(len(slab.lo)) != axis
        bad = (slab.starts[alone][:, others] != slab.lo[others]) | (
            slab.stops[alone][:, others] != slab.hi[others]
        )
        for i in alone[bad.any(axis=1)][:1]:
            here = slab.part(axis, int(slab.starts[i, axis]), int(slab.stops[i, axis]))
            self._single(here.lo, here.hi, slab.starts[i], slab.stops[i])
        parts = []
        for a, b in zip(first.tolist(), last.tolist(), strict=True):
            if b - a > 1:
                rows = order[a:b]
                part = slab.part(axis, int(starts[a]), int(reach[b - 1]))
                parts.append(_Slab(part.lo, part.hi, slab.index[rows], slab.starts[rows], slab.stops[rows]))
        return parts

    def _even_cut(self, slab: _Slab) -> list[_Slab]:
        """Cut in two at the boundary that leaves the fewest pieces on the fuller side."""
        best: tuple[int, int, int] | None = None
        for axis in range(len(slab.lo)):
            starts, stops = np.sort(slab.starts[:, axis]), np.sort(slab.stops[:, axis])
            at = np.unique(np.concatenate([starts, stops]))
            at = at[(at > slab.lo[axis]) & (at < slab.hi[axis])]
            if len(at):
                left = np.searchsorted(starts, at, side="left")
                right = len(stops) - np.searchsorted(stops, at, side="right")
                fuller = np.maximum(left, right)
                i = int(np.argmin(fuller))
                if best is None or fuller[i] < best[0]:
                    best = (int(fuller[i]), axis, int(at[i]))
        if best is None:  # no boundary inside: every piece is the whole slab
            self._overlap(int(slab.index[0]), int(slab.index[1]))
        _, axis, at_ = best
        parts = [slab.clip(axis, int(slab.lo[axis]), at_), slab.clip(axis, at_, int(slab.hi[axis]))]
        # Words add up over the two parts: where there are too many or too few, one part shows it
        # and the other need not be judged. A damaged layout is refused in time.
        for sign in (1, -1):
            wrong = [p for p in parts if sign * (p.held() - p.size()) > 0]
            if wrong and sign * (slab.held() - slab.size()) > 0:
                return wrong[:1]
        return parts

    def _single(self, lo: Words, hi: Words, starts: Words, stops: Words) -> None:
        for axis in range(len(lo)):
            for a, b in ((lo[axis], starts[axis]), (stops[axis], hi[axis])):
                if a < b:
                    self._gap(_Slab(lo, hi, starts, starts, stops).part(axis, int(a), int(b)).box())

    def _owner(self, i: int) -> int | None:
        return None if self.owners is None else self.owners[i]

    def _overlap(self, i: int, j: int) -> NoReturn:
        i, j = sorted((i, j))
        who = "" if self.owners is None else f" of owners {self.owners[i]} and {self.owners[j]}"
        raise Refused(
            f"two pieces{who} hold the same words",
            code="overlap",
            role=self._owner(j),
            region=self.region,
            expected=f"no word of {self.pieces[i]}",
            found=self.pieces[j],
        )

    def _gap(self, missing: Piece) -> NoReturn:
        raise Refused(
            "no piece holds some words",
            code="incomplete-cover",
            region=self.region,
            expected=f"every word of shape {self.shape}",
            found=f"nobody holds {missing}",
        )


class _Slab:
    """A box of the region and the pieces that meet it, clipped to it."""

    def __init__(self, lo: Words, hi: Words, index: Words, starts: Words, stops: Words) -> None:
        self.lo = lo
        self.hi = hi
        self.index = index
        self.starts = starts
        self.stops = stops

    def box(self) -> Box:
        return Box(tuple(self.lo.tolist()), tuple(self.hi.tolist()))

    def size(self) -> int:
        return words((self.hi - self.lo).tolist())

    def held(self) -> int:
        each = np.prod(self.stops - self.starts, axis=1)
        return sum(each.tolist())  # exact: the sum may pass 2**63, one piece cannot

    def part(self, axis: int, a: int, b: int) -> _Slab:
        lo, hi = self.lo.copy(), self.hi.copy()
        lo[axis], hi[axis] = a, b
        return _Slab(lo, hi, self.index, self.starts, self.stops)

    def clip(self, axis: int, a: int, b: int) -> _Slab:
        rows = (self.starts[:, axis] < b) & (self.stops[:, axis] > a)
        starts, stops = self.starts[rows], self.stops[rows]
        starts[:, axis] = np.maximum(starts[:, axis], a)
        stops[:, axis] = np.minimum(stops[:, axis], b)
        part = self.part(axis, a, b)
        return _Slab(part.lo, part.hi, self.index[rows], starts, stops)
