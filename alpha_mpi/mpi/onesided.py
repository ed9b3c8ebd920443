"""One-sided reads: bytes in one rank's memory that others fetch, and the same by messages without them.

Memory comes from `Win.Allocate`, under one long `Lock_all`: a window over other memory stalls while its
owner computes. Where an MPI has no windows, or they give other words than were written, `trial` says so
once, when a world's families are made, and everything here goes by messages from then on.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import Cause
from .agreement import agree
from .world import World, mpi

#: Most bytes one `Get`, or one message in its place, asks for.
GET_LIMIT = 64 << 20
#: Longest path in bytes that a window holds.
PATH_LIMIT = 1 << 30
#: Set to ``no``, ``off`` or ``0`` on any rank: no window is ever made, not even to try.
SWITCH = "ALPHA_MPI_ONE_SIDED"
#: Bytes that `trial` reads of owner 0's memory.
TRIAL = 64

_TAG = 9


@dataclasses.dataclass
class Counters:
    """What this process did with windows, for tests; `reset` it before a measurement.

    `windows` counts those it served; `gets` has one number for each it read from. `bytes` counts what
    was fetched, also by messages.
    """

    windows: int = 0
    gets: list[int] = dataclasses.field(default_factory=list)
    bytes: int = 0

    def reset(self) -> None:
        """Start counting anew."""
        self.windows, self.gets, self.bytes = 0, [], 0


counters = Counters()


def trial(world: World, deadline: float) -> str | None:
    """Return why one-sided reads are not used on this world, or None; the same on every owner.

    Called by every owner. Each reads some words of owner 0's memory.
    """
    if world.alone:
        return None
    asked = os.environ.get(SWITCH, "").strip().lower()
    off = f"{SWITCH}={asked}" if asked in ("no", "off", "0") else None
    # Making a window cannot be polled: all say first that they are here, and whether they may.
    said = agree(world, _why(world, off), deadline)
    if said is not None:
        return said.message
    found: str | None = None
    words = bytes((7 * i + 1) % 256 for i in range(TRIAL))
    try:
        window = open_window(world, TRIAL if world.rank == 0 else 0)
    except mpi().Exception as error:
        found = f"no window can be made: {error}"
    # One that could not make it must not leave the others waiting in the window.
    said = agree(world, _why(world, found), deadline)
    if said is not None:
        return said.message
    try:
        if world.rank == 0:
            fill(window, words)
        world.wait(world.raw.Ibarrier(), deadline, "every rank to open its memory")
        got = bytearray(TRIAL)
        get(window, 0, got, 0)
        if got != words:
            found = "other words are read than were written"
    except mpi().Exception as error:
        found = f"a read fails: {error}"
    said = agree(world, _why(world, found), deadline)
    if said is not None:
        return said.message  # the window is left alone: freeing it may fail as well
    close_window(window, world)
    return None


def _why(world: World, reason: str | None) -> Cause | None:
    return None if reason is None else Cause(kind="error", code="one-sided", message=reason)


def open_window(world: World, size: int) -> Any:
    """Return a window with `size` bytes of this rank, locked for everybody. Called by every rank."""
    module = mpi()
    window = module.Win.Allocate(size, 1, module.INFO_NULL, world.raw)
    window.Lock_all(module.MODE_NOCHECK)
    return window


def close_window(window: Any, world: World) -> None:
    """Unlock and free a window; after a lost peer it is left alone, since freeing it is collective."""
    if world.lost is None:
        window.Unlock_all()
        window.Free()


def fill(window: Any, data: bytes) -> None:
    """Write this rank's memory, so that the others may read it after the next barrier."""
    if data:
        window.tomemory()[:] = data
    window.Sync()


def get(window: Any, rank: int, buffer: bytearray, at: int) -> int:
    """Fill a buffer from a rank's memory, from byte `at` of it; return how many `Get`s that took."""
    module, view = mpi(), memoryview(buffer)
    window.Sync()
    places = range(0, len(buffer), GET_LIMIT)
    for done in places:
        part = view[done : done + GET_LIMIT]
        window.Get([part, module.BYTE], rank, (at + done, len(part), module.BYTE))
    window.Flush(rank)
    return len(places)


def serve(family: World, data: bytes, deadline: float) -> None:
    """Let every other rank of a family `fetch` rank 0's bytes. Called by rank 0."""
    if not family.one_sided:
        _in_slices(family, memoryview(data), deadline)
        return
    window = open_window(family, len(data))
    try:
        fill(window, data)
        family.wait(family.raw.Ibarrier(), deadline, "the children")
        family.wait(family.raw.Ibarrier(), deadline, "the children to read")
    finally:
        close_window(window, family)
    counters.windows += 1


def fetch(family: World, size: int, deadline: float) -> bytes:
    """Return the `size` bytes that rank 0 serves. Called by every other rank of the family."""
    buffer = bytearray(size)
    if family.one_sided:
        window = open_window(family, 0)
        try:
            family.wait(family.raw.Ibarrier(), deadline, "the parent to fill its window")
            gets = get(window, 0, buffer, 0)
            family.wait(family.raw.Ibarrier(), deadline, "the family to read")
        finally:
            close_window(window, family)
        counters.gets.append(gets)
    else:
        _in_slices(family, memoryview(buffer), deadline)
    counters.bytes += size
    return bytes(buffer)


def _in_slices(family: World, view: memoryview, deadline: float) -> None:
    for at in range(0, len(view), GET_LIMIT):
        request = family.raw.Ibcast([view[at : at + GET_LIMIT], mpi().BYTE], 0)
        family.wait(request, deadline, "the manifests from the parent")


def share_out(
    world: World,
    own: bytes,
    given: Mapping[int, Sequence[tuple[int, int]]],
    taken: Mapping[int, Sequence[tuple[int, int]]],
    deadline: float,
) -> dict[int, list[bytes]]:
    """Return ranges of other owners' bytes, by owner. Called by every owner.

    `taken` gives the (offset, size) ranges wanted of each other owner's `own`, and `given` those that
    each other owner wants of this one's.
    """
    buffers = {owner: [bytearray(size) for _, size in places] for owner, places in taken.items()}
    if world.one_sided:
        window, gets = open_window(world, len(own)), 0
        try:
            fill(window, own)
            world.wait(world.raw.Ibarrier(), deadline, "every owner to fill its window")
            for owner, places in taken.items():
                for buffer, (at, _) in zip(buffers[owner], places, strict=True):
                    gets += get(window, owner, buffer, at)
            world.wait(world.raw.Ibarrier(), deadline, "every owner to read")
        finally:
            close_window(window, world)
        counters.gets.append(gets)
        counters.windows += int(bool(own))
    else:
        _by_messages(world, memoryview(own), given, buffers, deadline)
    counters.bytes += sum(size for places in taken.values() for _, size in places)
    return {owner: [bytes(buffer) for buffer in found] for owner, found in buffers.items()}


def _by_messages(
    world: World,
    own: memoryview,
    given: Mapping[int, Sequence[tuple[int, int]]],
    buffers: Mapping[int, Sequence[bytearray]],
    deadline: float,
) -> None:
    byte, requests = mpi().BYTE, []
    for owner, parts in buffers.items():
        for part in parts:
            view = memoryview(part)
            requests += [
                (owner, world.raw.Irecv([view[at : at + GET_LIMIT], byte], owner, _TAG))
                for at in range(0, len(view), GET_LIMIT)
            ]
    for owner, places in given.items():
        for first, size in places:
            view = own[first : first + size]
            requests += [
                (owner, world.raw.Isend([view[at : at + GET_LIMIT], byte], owner, _TAG))
                for at in range(0, size, GET_LIMIT)
            ]
    for owner, request in requests:
        world.wait(request, deadline, "the manifests of another owner", role=owner)
