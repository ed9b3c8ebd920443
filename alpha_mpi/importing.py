"""Importing: a generation published from the datasets of an HDF5 file, on one owner or many."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .checkpointer import DEADLINE, VISIBILITY, Checkpointer, Generation
from .errors import Refused
from .following import follow
from .interop.hdf5 import Dataset, Source, open_source
from .model.identity import Learner
from .model.layout import PerOwner, Replicated, Rule, rows
from .model.pieces import Box, Interval, local_shape
from .mpi.world import open_world
from .opening import everybody
from .state import State


def import_hdf5(
    file: str | os.PathLike[str],
    path: str | os.PathLike[str],
    comm: Any = None,
    *,
    update: int | None = None,
    cursor: int | None = None,
    learner: Learner | None = None,
    deadline: float = DEADLINE,
    visibility: float = VISIBILITY,
    progress: Callable[[int, int], None] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> Generation:
    """Publish the datasets of an HDF5 file as the next generation of the store at `path`.

    Called by every owner. Each reads its own part: by the rule that the file tells where it fits
    this number of owners, else by rows. Words may be infinite or not a number.

    Parameters
    ----------
    file : path
        A view or copy of a generation, or any HDF5 file of numbers.
    path : path
        The store; made if it is missing.
    update, cursor : int, optional
        By default those the file tells; of another file, one update more than the store has.
    learner : Learner, optional
        By default the one the file tells.
    progress : callable, optional
        Told (bytes read by this owner, bytes of the whole file) after each dataset.
    key : path, optional
        The key of the store, as in `Checkpointer`.

    Raises
    ------
    CheckpointError
        The same on every owner: ``format`` for datasets that are no numbers, ``per-owner-state``
        where each owner had an array of its own and there are other owners now, ``stale-update``
        where the store is further already, and as `Checkpointer.save`.
    """
    world = open_world(comm, deadline)
    owners, owner = world.size, world.rank
    source: Source | None = None
    try:
        source = everybody(world, lambda: open_source(file), deadline)
        if progress is not None:
            source.watch = _Reading(progress, os.path.getsize(source.path))
        state = everybody(world, lambda: state_of(source, owners, owner), deadline)
        told = source.learner or Learner(os.path.basename(source.path))
        with Checkpointer(
            path,
            state,
            comm,
            learner=learner or told,
            contract=source.contract,
            deadline=deadline,
            visibility=visibility,
            key=key,
        ) as ckpt:
            newest = follow(ckpt)
            if update is None:
                update = source.moment.update if source.moment is not None else newest.update + 1
            if cursor is None and source.moment is not None:
                cursor = source.moment.cursor
            try:
                return ckpt.save(update, cursor, unchanged_ok=True)
            except Refused as error:
                if error.code != "other-words":
                    raise
                # Its words were not compared: whether they are the same is not known.
                raise Refused(
                    "the store holds this update already: give a later one",
                    code="stale-update",
                    file=os.fspath(path),
                    expected=f"above update {newest.update}",
                    found=f"update {update}",
                ) from error
    finally:
        if source is not None:
            source.close()
        world.free()


def state_of(source: Source, owners: int, owner: int) -> State:
    """Return a file's datasets as the state of one owner of so many; reads nothing yet.

    Raises `Refused` (``per-owner-state``, ``name``, ``shape``) with the region named.
    """
    state = State()
    for dataset in source.datasets:
        if dataset.kind in ("per-owner", "per-owner-document") and dataset.shape[0] != owners:
            raise Refused(
                "what each owner has of its own fits no other number of owners: start the import on as many",
                code="per-owner-state",
                region=dataset.name,
                expected=f"{dataset.shape[0]} owners",
                found=f"{owners} owners",
            )
        if dataset.kind == "document":
            state.document(dataset.name, _document(source, dataset, 0), _ignore)
        elif dataset.kind == "per-owner-document":
            state.per_owner(dataset.name, _Document(_document(source, dataset, owner)))
        else:
            _array(state, source, dataset, owners, owner)
    return state


def _array(state: State, source: Source, dataset: Dataset, owners: int, owner: int) -> None:
    name, shape, n = dataset.name, dataset.shape, len(dataset.shape)
    if dataset.kind == "per-owner":
        one = _reader(source, dataset, (owner, *(0,) * (n - 1)), (1, *shape[1:]), shape[1:])
        state.per_owner(name, one, write=_ignore, finite=False)
        return
    rule = _rule(dataset, owners)
    if isinstance(rule, Replicated):
        state.replicate(name, _reader(source, dataset, (0,) * n, shape, shape), write=_ignore, finite=False)
        return
    [piece] = rule.pieces(shape, owners, owner) or [None]
    read: Callable[[], Any] = lambda: None  # noqa: E731
    if isinstance(piece, Box):
        read = _reader(source, dataset, piece.starts, local_shape(piece), local_shape(piece))
    elif isinstance(piece, Interval):
        read = _reader(source, dataset, (0,) * n, shape, shape, piece)
    state.partition(name, read, shape=shape, layout=rule, dtype=dataset.format, write=_ignore, finite=False)


def _rule(dataset: Dataset, owners: int) -> Rule:
    """Return the rule the file tells where it can deal to so many owners, else rows."""
    rule = dataset.rule
    if rule is not None and not isinstance(rule, PerOwner):
        try:
            rule.check(dataset.shape, owners)
            return rule
        except Refused:
            pass  # it was made for another number of owners
    return rows() if dataset.shape else Replicated()


def _reader(
    source: Source,
    dataset: Dataset,
    starts: tuple[int, ...],
    counts: tuple[int, ...],
    shape: tuple[int, ...],
    part: Interval | None = None,
) -> Callable[[], Any]:
    """Return a function that reads a block when it is first called, and keeps it."""
    kept: list[Any] = []

    def read() -> Any:
        if not kept:
            array = source.array(dataset, starts, counts).reshape(shape)
            kept.append(array if part is None else array.reshape(-1)[part.start : part.stop].copy())
        return kept[0]

    return read


def _document(source: Source, dataset: Dataset, owner: int) -> Callable[[], Any]:
    return lambda: source.document(dataset, owner)


class _Reading:
    """Sums the bytes read, for `progress`."""

    def __init__(self, progress: Callable[[int, int], None], total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def __call__(self, nbytes: int) -> None:
        """Note that so many bytes more were read."""
        self._done += nbytes
        self._progress(min(self._done, self._total), self._total)


class _Document:
    """A document of one owner's own, as a source of a state."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read

    def write(self, value: Any) -> None:
        """Take a value back, and drop it."""


def _ignore(value: Any) -> None:
    """Take a value back, and drop it."""
