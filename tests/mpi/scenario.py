"""What the scenarios share: a team of so many owners, one outcome for all of them, a store's bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fill import fill, same_bits

import alpha_mpi as am
from alpha_mpi.model.layout import Irregular

#: One hierarchy of each kind.
HIERARCHIES = [am.Star(), am.Tree(2)]


def name_of(hierarchy: Any) -> str:
    """Return a hierarchy's name in the names of tests."""
    return "star" if isinstance(hierarchy, am.Star) else f"tree{hierarchy.fan_out}"


@contextlib.contextmanager
def team(comm: Any, owners: int) -> Iterator[Any]:
    """Give a communicator of the first so many ranks; None to the others. Called by every rank."""
    mine = comm.rank < owners
    part = comm.Split(0 if mine else 1, comm.rank)
    try:
        yield part if mine else None
    finally:
        part.Free()


def open_(path: Any, state: am.State, comm: Any, **more: Any) -> am.Checkpointer:
    """Open a checkpointer with limits fit for a test."""
    return am.Checkpointer(path, state, comm, **{"deadline": 20, "visibility": 1.0, **more})


def refusal(comm: Any, call: Callable[[], Any]) -> am.CheckpointError:
    """Do what every owner must see refused; return the error, which is the same on all of them."""
    told: am.CheckpointError | None = None
    try:
        call()
    except am.CheckpointError as error:
        told = error
    mine = None if told is None else (type(told).__name__, told.code, told.role, told.region, str(told))
    everyone = comm.allgather(mine)
    assert told is not None and all(one == mine for one in everyone), everyone
    assert "\n" not in str(told)
    return told


def refused_resume(comm: Any, path: Any, state: am.State, **more: Any) -> am.CheckpointError:
    """Open and resume what must be refused, and nothing in the store may change for it."""
    before = snapshot(comm, path)

    with open_(path, state, comm, **more) as ckpt:
        told = refusal(comm, ckpt.resume)
    assert snapshot(comm, path) == before
    return told


def snapshot(comm: Any, path: Any) -> dict[str, str]:
    """Return the digest of every file below `path` on every owner; owner 0 reads them."""
    found: dict[str, str] = {}
    if comm.rank == 0:
        files = sorted(pathlib.Path(path).rglob("*")) if os.path.exists(path) else []
        for name in files:
            data = name.read_bytes() if name.is_file() else b""
            found[os.path.relpath(name, path)] = hashlib.sha256(data).hexdigest()
    return comm.bcast(found, 0)  # type: ignore[no-any-return]


class Words:
    """Regions of `fill`, one array per region and owner.

    A region is (name, shape, dtype, rule); the rule is None where every owner holds all words, and
    ``"own"`` where each has an array of its own.
    """

    def __init__(self, comm: Any, *regions: tuple[str, tuple[int, ...], Any, Any]) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.regions = regions
        self.arrays = {name: self.words(i, 0) for i, (name, *_) in enumerate(regions)}
        for array in self.arrays.values():
            array.reshape(-1).view(np.uint8)[...] = 0xA5

    def words(self, i: int, update: int) -> np.ndarray:
        """Return this owner's words of one region at an update."""
        name, shape, dtype, rule = self.regions[i]
        if rule == "own":
            return fill(f"{name}{self.rank}", update, shape, dtype)
        whole = fill(name, update, shape, dtype)
        if rule is None:
            return whole
        pieces = (
            rule.current(shape) if isinstance(rule, Irregular) else rule.pieces(shape, self.size, self.rank)
        )
        if not pieces:
            return whole.reshape(-1)[:0].copy()
        (piece,) = pieces
        if isinstance(piece, am.Interval):
            flat = whole.reshape(-1)[piece.start : piece.stop].copy()
            return flat.reshape(shape) if flat.size == whole.size else flat
        return whole[tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))].copy()

    def at(self, update: int) -> None:
        """Fill every array with the words of an update."""
        for i, (name, *_) in enumerate(self.regions):
            self.arrays[name][...] = self.words(i, update)

    def check(self, update: int) -> None:
        """Every array holds the words of an update, bit for bit."""
        for i, (name, *_) in enumerate(self.regions):
            assert same_bits(self.arrays[name], self.words(i, update)), name

    def state(self, **others: np.ndarray) -> am.State:
        """Declare the regions; `others` are arrays to use instead."""
        state = am.State()
        for name, shape, dtype, rule in self.regions:
            array = others.get(name, self.arrays[name])
            if rule is None:
                state.replicate(name, array)
            elif rule == "own":
                state.per_owner(name, array)
            else:
                source = [array] if isinstance(rule, Irregular) else array
                state.partition(name, source, shape=shape, layout=rule, dtype=dtype)
        return state


def publish(path: Any, words: Words, comm: Any, *updates: int, **more: Any) -> list[am.Generation]:
    """Resume, then save each update."""
    with open_(path, words.state(), comm, **more) as ckpt:
        ckpt.resume()
        generations = []
        for update in updates:
            words.at(update)
            generations.append(ckpt.save(update))
        return generations


def restored(path: Any, words: Words, comm: Any, **more: Any) -> am.Moment:
    """Resume into fresh arrays, check them against the moment's update, and return the moment."""
    fresh = Words(comm, *words.regions)
    with open_(path, fresh.state(), comm, **more) as ckpt:
        moment = ckpt.resume()
    fresh.check(moment.update)
    return moment
