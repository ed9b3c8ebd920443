"""Together: work that every owner does, and that fails on all of them when it fails on one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import Cause, PeerFailed, cause_of, error_of
from ..mpi.agreement import agree
from ..mpi.waiting import Patience
from ..mpi.world import World

T = TypeVar("T")

#: First and longest pause between two rounds of `long_work`, in seconds.
SHORTEST, LONGEST = 0.01, 2.0


@dataclasses.dataclass
class Outcome:
    """What work on this owner came to: a value, or a failure."""

    value: Any = None
    failure: BaseException | None = None

    def cause(self, owner: int) -> Cause | None:
        """Return the failure as data, blamed on this owner unless it names another."""
        return None if self.failure is None else cause_of(self.failure, owner)


def _outcome(work: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(work())
    except BaseException as error:  # also the user's SystemExit: nobody may be left waiting
        return Outcome(failure=error)


def everybody(world: World, work: Callable[[], T], deadline: float) -> T:
    """Do something short on every owner; when it fails on one, raise its error on all of them."""
    outcome = _outcome(work)
    agreed = agree(world, outcome.cause(world.rank), deadline)
    if agreed is not None:
        raise error_of(agreed) from outcome.failure
    result: T = outcome.value
    return result


def long_work(world: World, work: Callable[[], T], done: Callable[[], int], deadline: float) -> T:
    """As `everybody`, for work that may take longer than the deadline.

    The work runs on a thread of its own and calls no MPI, while the owners assure each other, in
    rounds, that they live. An owner whose count `done` (bytes, say) does not grow for `deadline`
    seconds counts as failed. The failure of one ends it for all, once nobody works any more.
    """
    if world.alone:
        return everybody(world, work, deadline)
    outcome = Outcome()
    ended = threading.Event()

    def run() -> None:
        nonlocal outcome
        outcome = _outcome(work)
        ended.set()

    threading.Thread(target=run, name="alpha_mpi-restore", daemon=True).start()
    pause, last, patience = SHORTEST, -1, Patience(deadline)
    stuck: Cause | None = None
    while True:
        ended.wait(pause)
        pause = min(2 * pause, LONGEST, max(SHORTEST, deadline / 10))
        if (count := done()) != last:
            last = count
            patience.again()
        if not ended.is_set() and patience.ended():
            stuck = PeerFailed(
                f"nothing read from the store for {deadline:g} s", code="silent", role=world.rank
            ).cause()
        busy = not ended.is_set() and stuck is None
        note = Cause(kind="error", code="busy", message="") if busy else None
        if agree(world, note, deadline) is not None:
            continue
        agreed = agree(world, stuck or outcome.cause(world.rank), deadline)
        if agreed is not None:
            raise error_of(agreed) from outcome.failure
        result: T = outcome.value
        return result
