"""Columns: the shard records of one role judged, and written, all at once.

A role may hold a hundred thousand, and nearly always they are alike. What is not surely sound in
columns is judged one by one (`valid`), which then says what is wrong.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from .body import encode_body
from .envelope import are_digests
from .question import LARGEST, LARGEST_U4

#: Most axes of a region.
RANK = 32


class Pieces:
    """Which pieces the records of one role name, in the order of the records.

    Attributes
    ----------
    ordinals, owners : sequence of int
    ints : sequence of tuple of int
        The pieces, as records write them.
    """

    def __init__(
        self, ordinals: Sequence[int], owners: Sequence[int], ints: Sequence[tuple[int, ...]]
    ) -> None:
        self.ordinals, self.owners, self.ints = ordinals, owners, ints

    def __len__(self) -> int:
        return len(self.ordinals)

    @functools.cached_property
    def body(self) -> msgspec.Raw:
        """[ordinal, owner, piece] of each, as canonical JSON."""
        return msgspec.Raw(encode_body(list(zip(self.ordinals, self.owners, self.ints, strict=True))))

    @functools.cached_property
    def are_sound(self) -> bool:
        """Whether all are surely valid, and in order."""
        if not self.ordinals:
            return True
        try:
            ordinals = np.array(self.ordinals, np.int64)
            owners = np.array(self.owners, np.int64)
            inside = all(_are_inside(self.ints, width) for width in set(map(len, self.ints)))
        except OverflowError:
            return False
        if not inside:
            return False
        if min(ordinals.min(), owners.min()) < 0 or max(ordinals.max(), owners.max()) > LARGEST_U4:
            return False
        rising = ordinals[1:] > ordinals[:-1]
        rising |= (ordinals[1:] == ordinals[:-1]) & (owners[1:] > owners[:-1])
        for at in np.flatnonzero(~rising).tolist():  # pieces of one region and owner: by their starts
            if ordinals[at] != ordinals[at + 1] or owners[at] != owners[at + 1]:
                return False
            a, b = self.ints[at], self.ints[at + 1]
            if len(a) != len(b) or starts(b) <= starts(a):
                return False
        return True


def starts(piece: tuple[int, ...]) -> tuple[int, ...]:
    """Return where the piece that a record writes begins, on each axis."""
    return piece[:1] if len(piece) == 2 else piece[1 : (len(piece) + 1) // 2]


def are_sound(pieces: Pieces, nbytes: Sequence[int], digests: Sequence[str]) -> bool:
    """Whether records of these columns are surely valid but for their places."""
    if not pieces.ordinals:
        return True
    return min(nbytes) >= 1 and max(nbytes) <= LARGEST and are_digests(digests) and pieces.are_sound


def _are_inside(pieces: Sequence[tuple[int, ...]], width: int) -> bool:
    """Whether those of the pieces that are written as `width` integers say a piece each."""
    if width == 0:
        return True
    axes = 1 if width == 2 else width // 2
    if axes > RANK or width not in (2, 2 * axes + 1) or width == 1:
        return False
    flat = itertools.chain.from_iterable(piece for piece in pieces if len(piece) == width)
    ints = np.fromiter(flat, np.int64).reshape(-1, width)
    begin, end = ints[:, -2 * axes : -axes], ints[:, -axes:]
    ranks = ints[:, : width - 2 * axes]
    sound = (begin >= 0) & (begin < end) & (end <= LARGEST)
    return bool(sound.all() and (ranks == axes).all())
