"""Inputs: a sequence of items without end, and which owner takes which of them.

The *cursor* counts the items consumed since the learner began. It never wraps, though the set of
items is passed over again and again: item c of the sequence is item ``c % items`` of the set.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Refused
from ..model.layout import share


def number(seed: int, row: int, column: int) -> float:
    """Return one of 256 numbers, k/100 for k in [-128, 128), by integer arithmetic modulo 2**32.

    The same on every machine. Few of them are exact in binary, so sums in another order differ.
    """
    mixed = (seed * 0x9E3779B1 + row * 0x85EBCA77 + column * 0xC2B2AE3D + 1) % 2**32
    mixed = (mixed ^ mixed >> 15) * 0x2C1B3C6D % 2**32
    mixed = (mixed ^ mixed >> 12) * 0x297A2D39 % 2**32
    return ((mixed >> 24) - 128) / 100


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A set of `items` items made from `seed`, of which each update takes the next `batch`.

    Raises `Refused` (``argument``) where there is nothing to take.
    """

    items: int = 24
    batch: int = 13
    seed: int = 7

    def __post_init__(self) -> None:
        if self.items < 1 or self.batch < 1:
            raise Refused(
                "an input sequence without items",
                code="argument",
                expected="at least one item and a batch of at least one",
                found=f"{self.items} items, batch {self.batch}",
            )

    def taken(self, cursor: int, owners: int, owner: int) -> range:
        """Return which items of the sequence an owner takes in the update that begins at `cursor`.

        Contiguous shares of [cursor, cursor + batch): their sizes differ by at most one, larger
        first. More owners than items leave the last ones without any.
        """
        begin, end = share(self.batch, owners, owner)
        return range(cursor + begin, cursor + end)

    def item(self, at: int, words: int) -> NDArray[np.float64]:
        """Return the `words` numbers of item `at` of the sequence."""
        return np.array([number(self.seed, at % self.items, i) for i in range(words)])

    def as_data(self) -> dict[str, Any]:
        """Return what names this sequence in a learner's identity: nothing of who takes what."""
        return {"batch": self.batch, "items": self.items, "order": "in turn", "seed": self.seed}
