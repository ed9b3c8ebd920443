"""Exporting: a copy of a generation, written by all owners together.

Owner 0 makes the file, every owner writes its share of the words into it, and owner 0 gives it its
name. No collective call of HDF5 is made, so any h5py will do, and nobody waits for an owner that has
nothing to write.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from .checkpointer import DEADLINE, VISIBILITY
from .errors import Refused
from .interop import hdf5
from .mpi.agreement import bcast
from .mpi.world import open_world
from .opening import everybody
from .restore.generation import Generation
from .store.observe import Position, candidate
from .store.signing import read_key
from .store.store import Store


def export_copy(
    store: str | os.PathLike[str],
    position: tuple[int, int],
    path: str | os.PathLike[str],
    comm: Any = None,
    *,
    compress: bool = False,
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
    deadline: float = DEADLINE,
    visibility: float = VISIBILITY,
    key: str | os.PathLike[str] | None = None,
) -> hdf5.Export:
    """Write the generation at a position (epoch, entry) of a store into a file of its own.

    Called by every owner, of any number; the position of owner 0 counts. `path` is on a file system
    that all see. With `compress` owner 0 writes alone. With `key`, a file that owner 0
    reads, the root must be signed. Raises as `hdf5.write_copy`, the same on
    every owner; then no file is left.
    """
    world = open_world(comm, deadline)
    opened: Store | None = None
    made: hdf5.Prepared | None = None
    try:
        opened = everybody(
            world, lambda: _open(store, visibility, key if world.rank == 0 else None), deadline
        )
        meant = bcast(world, msgspec.msgpack.encode(tuple(position)), 0, deadline)
        where = Position(*msgspec.msgpack.decode(meant))  # a job may publish while ranks look
        generation = everybody(world, lambda: _generation(opened, where), deadline)

        def begin() -> bytes:
            nonlocal made
            if world.rank != 0:
                return b""
            made = hdf5.prepare(generation, path, compress=compress, replace=replace, progress=progress)
            return msgspec.msgpack.encode((generation.candidate.root, tuple(made)))

        data = bcast(world, everybody(world, begin, deadline), 0, deadline)
        root, told = msgspec.msgpack.decode(data)
        mine = hdf5.Prepared(told[0], told[1], told[2], [(a, b) for a, b in told[3]])

        def write() -> None:
            candidate(generation.store, where, root)  # every owner means one generation
            hdf5.fill(generation, mine, world.rank, world.size, progress)

        everybody(world, write, deadline)

        def end() -> None:
            nonlocal made
            if made is not None:
                hdf5.commit(generation, made, replace=replace)
                made = None

        everybody(world, end, deadline)
        return hdf5.Export(mine.target, generation.candidate.name, mine.datasets)
    finally:
        if made is not None:
            hdf5.abandon(made)
        if opened is not None:
            opened.close()
        world.free()


def _open(store: str | os.PathLike[str], visibility: float, key: str | os.PathLike[str] | None) -> Store:
    secret = None if key is None else read_key(key)
    return Store.open(store, visibility=visibility, key=secret)


def _generation(store: Store | None, position: Position) -> Generation:
    if store is None:
        raise Refused("the store is not open", code="closed")
    return Generation.open(store, *position)
