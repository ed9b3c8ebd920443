"""Arguments of a call: their range, and that every owner gave the same."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import msgspec

from .canonical import EXACT
from .errors import Refused
from .model.accept import Accept
from .model.capture import Moment
from .model.identity import Learner
from .mpi.agreement import bcast
from .opening import Run, everybody
from .saving import Newest


def check_number(name: str, value: Any, least: int) -> Any:
    """Return a whole number of at least `least`, or refuse it (``argument``); None where it may be."""
    if value is None and name == "keep":
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number < EXACT:
        raise Refused(
            f"{name} is a whole number of at least {least}",
            code="argument",
            expected=f"at least {least}",
            found=repr(value)[:80],
        )
    return number


def check_score(value: Any) -> float | None:
    """Return a score as a finite float, or refuse it (``argument``)."""
    if value is None:
        return None
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise Refused(
            "a score is a finite number", code="argument", expected="a finite number", found=repr(value)[:80]
        )
    return score


def check_moment(
    learner: Learner, newest: Newest | None, epoch: int, update: int, cursor: int | None
) -> Moment:
    """Return the moment of a save, refused where it does not continue the lineage."""
    update = check_number("update", update, 0)
    if cursor is None:
        if learner.has_inputs:
            raise Refused(
                "the learner declares an input: give the cursor, the items consumed so far",
                code="argument",
                expected="cursor=",
                found="None",
            )
        cursor = update
    cursor = check_number("cursor", cursor, 0)
    # The update first: without an input the cursor follows it, and nobody gave one to be wrong.
    if newest is not None:
        old = newest.moment
        same = update == old.update and cursor > old.cursor
        if update < old.update or same:
            raise Refused(
                "the update did not grow along the lineage",
                code="stale-update",
                expected=f"above {old.update} of {newest.name}",
                found=f"{update} (cursor {cursor})" if same else update,
            )
    reset = learner.has_inputs and update > 0 and cursor == 0
    if reset or (newest is not None and cursor < newest.moment.cursor):
        raise Refused(
            "the cursor fell: it counts all items since the learner began, and never wraps",
            code="reset-cursor",
            expected=f"at least {newest.moment.cursor if newest else 1}",
            found=cursor,
        )
    return Moment(update, cursor, epoch)


def same_on_all(
    run: Run, generation: str | int | None, fallback: bool, accept: Accept | None, takeover: bool = False
) -> None:
    """Refuse an owner whose arguments of `resume` are not owner 0's. Called by every owner.

    Raises `Refused`: ``argument-differs`` naming the owner, ``argument`` for what is no `Accept`.
    """

    def mine() -> dict[str, Any]:
        if not isinstance(accept, Accept | None):
            raise Refused(
                "accept= takes an Accept",
                code="argument",
                expected='Accept(learner="why", ...)',
                found=repr(accept)[:200],
            )
        return {
            "generation": None if generation is None else str(generation),
            "fallback": bool(fallback),
            "accept": None if accept is None else accept.as_data(),
            "takeover": bool(takeover),
        }

    given = everybody(run.world, mine, run.deadline)
    if run.world.alone:
        return
    data = msgspec.msgpack.encode(given) if run.world.rank == 0 else None
    theirs = msgspec.msgpack.decode(bcast(run.world, data, 0, run.deadline))

    everybody(run.world, lambda: refuse_other(given, theirs, run.world.rank), run.deadline)


def refuse_other(mine: Mapping[str, Any], theirs: Mapping[str, Any], role: int) -> None:
    """Refuse (``argument-differs``) arguments of one owner that are not those of owner 0."""
    for name, value in mine.items():
        if value != theirs[name]:
            raise Refused(
                f"its {name}= is not owner 0's",
                code="argument-differs",
                role=role,
                expected=theirs[name],
                found=value,
            )
