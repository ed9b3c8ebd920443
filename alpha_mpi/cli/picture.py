"""Picture: a tree of manifests and a map of who holds which words, as lines of text. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..model.pieces import Box, Interval, Piece, boxes
from . import text

#: Cells of a map, at most: rows and columns.
ROWS, COLUMNS = 24, 64
_GLYPHS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def tree(rows: Sequence[tuple[int, str]]) -> list[str]:
    """Return lines with branches for (depth, label) in preorder."""
    lines, last = [], _last(rows)
    open_at: list[bool] = []
    for i, (depth, label) in enumerate(rows):
        del open_at[depth:]
        if depth:
            stem = "".join("│  " if more else "   " for more in open_at[1:])
            lines.append(f"{stem}{'└─ ' if last[i] else '├─ '}{label}")
        else:
            lines.append(label)
        open_at.append(not last[i])
    return lines


def _last(rows: Sequence[tuple[int, str]]) -> list[bool]:
    """Whether each row is the last one below its parent."""
    last, later = [False] * len(rows), set[int]()
    for i in range(len(rows) - 1, -1, -1):
        depth = rows[i][0]
        last[i] = depth not in later
        later = {d for d in later if d < depth} | {depth}
    return last


def region_map(shape: Sequence[int], held: Iterable[tuple[int, Piece]]) -> list[str]:
    """Return a drawing of (owner, piece)s: one character for each cell, `.` where nobody holds it.

    Rows are the first axis and columns the second one, at index 0 of all others; one axis is a line.
    """
    if 0 in shape:
        return []
    extents = tuple(shape[:2]) if len(shape) > 1 else (1, *(shape or (1,)))
    rows, columns = min(extents[0], ROWS), min(extents[1], COLUMNS)
    at_row = np.arange(rows) * extents[0] // rows
    at_column = np.arange(columns) * extents[1] // columns
    canvas = np.full((rows, columns), -1, np.int64)
    for owner, piece in held:
        for starts, stops in _flat(piece, tuple(shape)):
            row = (at_row >= starts[0]) & (at_row < stops[0])
            column = (at_column >= starts[1]) & (at_column < stops[1])
            canvas[np.ix_(row, column)] = owner
    return ["".join("." if k < 0 else _GLYPHS[k % len(_GLYPHS)] for k in line) for line in canvas.tolist()]


def _flat(piece: Piece, shape: tuple[int, ...]) -> Iterable[tuple[Sequence[int], Sequence[int]]]:
    """Return a piece as boxes of two axes, of those parts that hold index 0 of all other axes."""
    parts: Iterable[Box] = (piece,) if isinstance(piece, Box) else boxes(piece, shape) if shape else ()
    if not shape:
        yield (0, 0), (1, 1)
    for part in parts:
        if len(shape) == 1:
            yield (0, part.starts[0]), (1, part.stops[0])
        elif not any(part.starts[2:]):
            yield part.starts[:2], part.stops[:2]


def spell(piece: Piece | None) -> str:
    """Return a piece as people write slices."""
    if piece is None:
        return "the whole"
    if isinstance(piece, Interval):
        return f"words {piece.start}:{piece.stop}"
    return "[" + ", ".join(f"{a}:{b}" for a, b in zip(piece.starts, piece.stops, strict=True)) + "]"


def holders(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the table below a map."""
    table: list[tuple[object, ...]] = [("owner", "role", "piece", "words", "size")]
    for row in rows:
        table.append((row["owner"], row["role"], row["piece"], row["words"], text.size(row["bytes"])))
    return text.columns(table, right=(0, 1, 3, 4))
