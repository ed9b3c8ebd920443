"""Merged: what all owners of a star write, in the order of the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..format.columns import Pieces
from ..format.inventory import Inventory
from .shards import Wants

T = TypeVar("T")


class Merged:
    """The own shards of a star's owner 0 and those of the others: which there are, in which order.

    Attributes
    ----------
    keys : list of Key
        In order.
    pieces : Pieces
    keys_of : dict of list of Key
        Those of each other owner.
    """

    def __init__(self, wants: Wants, inventories: Mapping[int, Inventory]) -> None:
        self._of = _said(inventories)
        self.keys_of = {owner: inventories[owner].keys(owner) for owner in sorted(inventories)}
        keys, ints = list(wants.keys), list(wants.pieces.ints)
        for owner, theirs in self.keys_of.items():
            keys += theirs
            ints += inventories[owner].pieces
        self._order = sorted(range(len(keys)), key=keys.__getitem__)
        self.keys = self.ordered(keys)
        ordinals, owners = [key[0] for key in self.keys], [key[1] for key in self.keys]
        self.pieces = Pieces(ordinals, owners, self.ordered(ints))

    def ordered(self, values: Sequence[T]) -> list[T]:
        """Return in order what is given as the own shards have it, and then each other owner's."""
        return [values[i] for i in self._order]

    def fits(self, inventories: Mapping[int, Inventory]) -> bool:
        """Whether these are what the others contribute: nearly always that of the last save."""
        return self._of == _said(inventories)


def _said(inventories: Mapping[int, Inventory]) -> list[object]:
    return [(k, i.ordinals, i.starts, i.pieces) for k, i in sorted(inventories.items())]


def merged(wants: Wants, inventories: Mapping[int, Inventory]) -> Merged:
    """Return what all owners of a star write. Called by owner 0 for each save."""
    last = wants.merged
    if not isinstance(last, Merged) or not last.fits(inventories):
        last = wants.merged = Merged(wants, inventories)
    return last
