"""Keep: which generations of a lineage stay. Pure: decided on positions, updates and scores."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import Refused
from .observe import Position


class Scored(NamedTuple):
    """One generation of a lineage, with what a rule may ask of it."""

    position: Position
    update: int
    score: float | None


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which generations retention keeps: those that any of the rules asks for, and the pinned ones.

    Parameters
    ----------
    last : int
        The newest so many; at least 1.
    every : int, optional
        Also each whose update is a multiple of it.
    best : int
        Also the so many with the best score, as given with `save(..., score=)`; of equal ones the
        newer. Generations without a score are never among them.
    highest : bool
        Whether the highest score is best; otherwise the lowest.
    """

    last: int = 1
    every: int | None = None
    best: int = 0
    highest: bool = False

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("every", 1), ("best", 0)):
            value = getattr(self, name)
            if name == "every" and value is None:
                continue
            if not _is_number(value) or value < least:
                raise Refused(
                    f"keep: {name} is a whole number of at least {least}",
                    code="argument",
                    expected=f"at least {least}",
                    found=repr(value)[:80],
                )

    @property
    def by_position(self) -> bool:
        """Whether the rules need nothing but the order: then no root is read to decide."""
        return self.every is None and not self.best

    def stays(self, lineage: Sequence[Scored]) -> set[Position]:
        """Return the generations that stay, of a lineage given newest first."""
        stay = {g.position for g in lineage[: self.last]}
        if self.every is not None:
            stay.update(g.position for g in lineage if g.update % self.every == 0)
        scored = [g for g in lineage if g.score is not None and not math.isnan(g.score)]
        sign = -1.0 if self.highest else 1.0
        scored.sort(key=lambda g: sign * (g.score or 0.0))  # stable: of equal ones the newer is first
        stay.update(g.position for g in scored[: self.best])
        return stay


def _is_number(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)
