"""Pieces: which words of a region one owner holds.

An *Interval* is a half-open range of the flattened C order; a *Box* a half-open box of the global
shape. Empty pieces hold no word and have no shard.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, order=True)
class Interval:
    """Words [start, stop) of the flattened region."""

    start: int
    stop: int


@dataclasses.dataclass(frozen=True, order=True)
class Box:
    """Words of the box [starts, stops) of the global shape; one entry per axis, at least one axis."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]


#: The whole of a per-owner array or of a document, whatever its size.
Piece = Interval | Box
