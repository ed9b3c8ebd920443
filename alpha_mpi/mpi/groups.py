"""Groups: sub-communicators of owners that hold the same words, for as long as they pass them on."""

from __future__ import annotations

from typing import Any

from .agreement import agree
from .world import World, mpi

__all__ = ["split"]


def split(world: World, color: int | None, deadline: float) -> World | None:
    """Return the world of all owners that give the same color, in the order of their ranks.

    Called by every owner; None for one that gives no color. The caller frees it. Making
    communicators cannot be polled, so all agree first that they are here; raises as `agree`.
    """
    agree(world, None, deadline)
    if world.alone:
        return None if color is None else World(world.raw)
    module: Any = mpi()
    made = world.raw.Split(module.UNDEFINED if color is None else color, world.rank)
    if made == module.COMM_NULL:
        return None
    made.Set_errhandler(module.ERRORS_RETURN)
    return World(made, own=True)
