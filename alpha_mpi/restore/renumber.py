"""Renumber: a declared state in the ordinals of a generation whose schema is another.

Regions are the same by name. Those that only the state declares are left out, and keep their words;
those that only the generation holds have no rule, and nothing of them is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..model.layout import Rule
from ..model.pieces import Piece
from ..model.schema import Schema
from .needs import Declared, Destination


class Renumbered:
    """`declared` as the state of a generation of `schema` (see the module's docstring).

    Stands wherever the declared state does during a restore. Regions of one name have been found
    to have the same kind, format and shape.
    """

    def __init__(self, declared: Declared, schema: Schema) -> None:
        self.schema = schema
        self._declared = declared
        mine = {region.name: region.ordinal for region in declared.schema.regions}
        self._mine = [mine.get(region.name) for region in schema.regions]
        self._theirs = {own: at for at, own in enumerate(self._mine) if own is not None}

    @property
    def rules(self) -> Sequence[Rule | None]:
        """The rule of each region; None where the state does not declare it."""
        return tuple(None if own is None else self._declared.rules[own] for own in self._mine)

    @property
    def finite(self) -> Sequence[bool]:
        """Whether words must be finite, for each region."""
        return tuple(own is not None and self._declared.finite[own] for own in self._mine)

    @property
    def repartition(self) -> Mapping[int, Any]:
        """The rules of per-owner regions for another number of owners."""
        theirs = self._theirs
        return {theirs[own]: rule for own, rule in self._declared.repartition.items() if own in theirs}

    def repartitioned(self, ordinal: int, values: list[Any], old_count: int) -> Any:
        """Ask the rule of a region; as the declared state does."""
        own = self._mine[ordinal]
        assert own is not None
        return self._declared.repartitioned(own, values, old_count)

    def destinations(self) -> Sequence[Destination]:
        """Return where the words of the regions that both have go."""
        theirs = self._theirs
        return tuple(_At(d, theirs[d.ordinal]) for d in self._declared.destinations() if d.ordinal in theirs)


class _At:
    """A destination under another ordinal."""

    def __init__(self, destination: Destination, ordinal: int) -> None:
        self.ordinal = ordinal
        self.piece: Piece | None = destination.piece
        self.shape = destination.shape
        self._destination = destination

    def view(self) -> Any:
        return self._destination.view()

    def check(self, value: Any) -> None:
        self._destination.check(value)

    def set(self, value: Any) -> None:
        self._destination.set(value)
