"""Examine: what this MPI is and gives, found by trying it. Called by `alpha-mpi doctor`."""

from __future__ import annotations

import dataclasses
import time

from ..errors import PeerFailed, error_of
from .agreement import agree
from .topology import nodes
from .windows import close_window, open_window
from .world import World, load, open_world

#: Bytes each owner reads from owner 0's memory.
NBYTES = 1 << 16
#: Longest wait for the other ranks, in seconds.
LIMIT = 60.0


@dataclasses.dataclass(frozen=True)
class Found:
    """What an examination found.

    Attributes
    ----------
    library, standard, threads : str
        Of the MPI library: its first line about itself, the version of MPI, the thread level.
    size : int
        Owners of the world.
    seconds : float
        How long it took all of them to read 64 KiB of owner 0's memory, one-sided.
    nodes : int
        How many nodes they are on: groups of ranks that share memory.
    """

    library: str
    standard: str
    threads: str
    size: int
    seconds: float
    nodes: int = 1


def examine() -> Found | None:
    """Open a world, and read one-sided from owner 0's memory. Called by every rank.

    Returns None where there is no MPI library. Raises `CheckpointError`: ``launcher`` where the
    launcher and MPI are not of one kind, ``one-sided`` where other words were read than written.
    """
    module = load()
    if module is None:
        open_world().free()  # refuses where a launcher started several
        return None
    world = open_world(None, LIMIT)
    try:
        levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
        threads = {getattr(module, f"THREAD_{level}"): level for level in levels}
        text = " ".join(module.Get_library_version().replace("\0", " ").splitlines()[0].split())
        return Found(
            library=text[:120],
            standard=".".join(map(str, module.Get_version())),
            threads=threads.get(module.Query_thread(), "?"),
            size=world.size,
            seconds=_read(world),
            nodes=nodes(world.raw),
        )
    finally:
        world.free(LIMIT)


def _read(world: World) -> float:
    words = bytes(range(256)) * (NBYTES // 256)
    start = time.monotonic()
    window = open_window(world, NBYTES if world.rank == 0 else 0)
    got = bytearray(NBYTES)
    try:
        if world.rank == 0:
            window.tomemory()[:] = words
            window.Sync()
        world.wait(world.raw.Ibarrier(), LIMIT, "every rank")
        window.Get(got, 0)
        window.Flush(0)
        world.wait(world.raw.Ibarrier(), LIMIT, "every rank to read")
    finally:
        close_window(window, world)
    taken = time.monotonic() - start
    cause = None
    if got != words:
        cause = PeerFailed("one-sided reads give other words than were written", code="one-sided").cause()
    failed = agree(world, cause, LIMIT)
    if failed is not None:
        raise error_of(failed)
    return taken
