"""Look: a few whole numbers of every owner, and the largest of each on all of them.

One polled reduction of some bytes: what a training may afford after each update.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

from .world import as_world, lost_peer, mpi

#: Looks without a sleep: where all come at about the same time the first sleep would cost the most.
EAGER = 50


def largest(comm: Any, words: Sequence[int], deadline: float, what: str) -> tuple[int, ...]:
    """Return the largest of each word over all owners, on every owner.

    Called by every owner with as many words (signed, 64 bits). Raises `PeerFailed` when some owner
    does not come within `deadline` seconds, or has left.
    """
    world = as_world(comm)
    world.check()
    if world.alone:
        return tuple(words)
    form = struct.Struct(f"={len(words)}q")
    own, most = bytearray(form.pack(*words)), bytearray(form.size)
    module = mpi()
    request = world.raw.Iallreduce([own, module.INT64_T], [most, module.INT64_T], module.MAX)
    try:
        for _ in range(EAGER):
            if request.Test():
                break
            os.sched_yield()
    except module.Exception as error:
        world.fail(lost_peer(error, world.raw))
    world.wait(request, deadline, what)
    return form.unpack(most)
