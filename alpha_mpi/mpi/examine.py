"""Examine: what this MPI is and gives, found by trying it. Called by `alpha-mpi doctor`."""

from __future__ import annotations

import dataclasses
import time

from .onesided import close_window, fill, get, open_window, trial
from .topology import nodes
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
    seconds : float or None
        How long it took all of them to read 64 KiB of owner 0's memory, one-sided; None where one-sided
        reads are not used.
    nodes : int
        How many nodes they are on: groups of ranks that share memory.
    without : str or None
        Why one-sided reads are not used.
    device : str
        What MPICH says of the networks that it was built for; empty for another MPI.
    """

    library: str
    standard: str
    threads: str
    size: int
    seconds: float | None
    nodes: int = 1
    without: str | None = None
    device: str = ""


def examine() -> Found | None:
    """Open a world, and read one-sided from owner 0's memory. Called by every rank.

    Returns None where there is no MPI library. Raises `CheckpointError` ``launcher`` where the
    launcher and MPI are not of one kind.
    """
    module = load()
    if module is None:
        open_world().free()  # refuses where a launcher started several
        return None
    world = open_world(None, LIMIT)
    try:
        levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
        threads = {getattr(module, f"THREAD_{level}"): level for level in levels}
        lines = module.Get_library_version().replace("\0", " ").splitlines()
        text = " ".join(lines[0].split())
        devices = [line.partition(":")[2].strip() for line in lines if line.startswith("MPICH Device:")]
        without = trial(world, LIMIT)
        return Found(
            library=text[:120],
            standard=".".join(map(str, module.Get_version())),
            threads=threads.get(module.Query_thread(), "?"),
            size=world.size,
            seconds=_read(world) if without is None else None,
            nodes=nodes(world.raw),
            without=without,
            device=devices[0][:80] if devices else "",
        )
    finally:
        world.free(LIMIT)


def _read(world: World) -> float:
    start = time.monotonic()
    window = open_window(world, NBYTES if world.rank == 0 else 0)
    try:
        fill(window, bytes(NBYTES) if world.rank == 0 else b"")
        world.wait(world.raw.Ibarrier(), LIMIT, "every rank")
        get(window, 0, bytearray(NBYTES), 0)
        world.wait(world.raw.Ibarrier(), LIMIT, "every rank to read")
    finally:
        close_window(window, world)
    return time.monotonic() - start
