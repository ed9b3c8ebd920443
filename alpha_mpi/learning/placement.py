"""Placements of state: what is replicated, what is partitioned, and how gradients are combined for it.

Two manners of adding. *By owner*: each owner adds the gradients of its items in turn, and the
owners' sums go through the combine tree in rank order; the bits depend on how many owners there
are, and the contract says so. *By item*: the gradients of the items themselves go through the
combine tree, in the order of the sequence; the bits are the same on any number of owners.
"""

from __future__ import annotations

import dataclasses

from ..model.identity import Contract
from .combine import ORDER


@dataclasses.dataclass(frozen=True)
class Placement:
    """Which parts of the state are partitioned, and the manner in which gradients are added."""

    name: str
    parameters: bool
    moments: bool
    by_item: bool

    def contract(self, owners: int) -> Contract:
        """Return on what the bits depend when this many owners train."""
        if self.by_item:
            return Contract(accumulation=f"float64, items in sequence order: {ORDER}")
        return Contract(
            accumulation="float64, each owner its items in turn from zero",
            combine=f"{owners} owners in rank order: {ORDER}",
        )


#: The placements by name.
PLACEMENTS = {
    place.name: place
    for place in (
        Placement("replicated", parameters=False, moments=False, by_item=False),
        Placement("optimizer-partitioned", parameters=False, moments=True, by_item=False),
        Placement("parameter-partitioned", parameters=True, moments=True, by_item=True),
    )
}
