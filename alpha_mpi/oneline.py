"""One line: `save` and `load` a whole tree of arrays, with the promises of a `Checkpointer`.

A *tree* is nested dicts, lists and tuples whose leaves are arrays or JSON-able values. Arrays are
replicated, or dealt to owners where a rule is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from .checkpointer import DEADLINE, VISIBILITY, Checkpointer, Generation
from .errors import Refused
from .following import follow
from .model import formats
from .model.identity import Learner
from .model.layout import Irregular, PerOwner, Rows, Rule, from_data
from .model.pieces import Box, Interval, local_shape, size
from .model.schema import Region
from .mpi.agreement import bcast
from .mpi.world import World, open_world
from .opening import everybody
from .reading import Reader, StoredGeneration, open
from .restore.generation import Generation as Opened
from .restore.slices import Lattice
from .state import State
from .store.observe import candidate
from .store.store import Store
from .trees import STRUCTURE, put_together, take_apart

Array = npt.NDArray[Any]

#: Whose generations these are: a store of a training job is never continued by `save`.
LEARNER = Learner("alpha_mpi.save")

#: What `layouts` gives for one array: a rule, with the shape of the whole where it is dealt.
Layout = Rule | tuple[Rule, tuple[int, ...]] | tuple[Rule, tuple[int, ...], Any]


def save(
    path: str | os.PathLike[str],
    tree: Any,
    comm: Any = None,
    *,
    layouts: Mapping[str, Layout] | None = None,
    keep: int | None = 1,
    finite: bool = True,
    deadline: float = DEADLINE,
    visibility: float = VISIBILITY,
    key: str | os.PathLike[str] | None = None,
) -> Generation:
    """Publish a tree as the newest generation of the store at `path`; return when it is durable.

    Called by every owner with the same tree: arrays and leaves are compared, and written once. With
    `layouts`, an array is this owner's piece of a larger one.

    Parameters
    ----------
    path : path
        The store; made if it is missing. A later call may bring another tree.
    tree : dict, list, tuple, array, or JSON-able value
    comm : mpi4py.MPI.Intracomm, optional
        As in `Checkpointer`.
    layouts : dict, optional
        By name, such as ``"model/w"``: ``(rule, shape of the whole)``, a dtype as third where an
        owner holds nothing and gives None; or ``per_owner()`` for an array of each owner's own.
    keep : int, optional
        Generations kept; older ones go once the new one is durable. None: all.
    finite : bool
        Refuse infinite and not-a-number words.
    key : path, optional
        The key of the store, as in `Checkpointer`.

    Raises
    ------
    CheckpointError
        As `Checkpointer.save`, the same on every owner; ``other-learner`` for the store of a job.
    """
    world = open_world(comm, deadline)
    try:
        # What is wrong with one owner's tree must be every owner's error.
        state = everybody(world, lambda: _state(tree, dict(layouts or {}), finite), deadline)
    finally:
        world.free()
    with Checkpointer(
        path, state, comm, learner=LEARNER, keep=keep, deadline=deadline, visibility=visibility, key=key
    ) as ckpt:
        update = follow(ckpt).update + 1
        return ckpt.save(update, unchanged_ok=True)


def load(
    path: str | os.PathLike[str],
    comm: Any = None,
    *,
    generation: str = "latest",
    finite: bool = True,
    deadline: float = DEADLINE,
    visibility: float = VISIBILITY,
    key: str | os.PathLike[str] | None = None,
) -> Any:
    """Return the tree of the newest generation at `path`, every byte that is used verified.

    Called by every owner, of any number. Of an array that was dealt by a rule each owner gets the
    piece that the rule deals to it now; a single owner gets the whole. Of another store than
    `save` makes, the tree is a dict of regions by name. Changes nothing in the store. With `key`, a
    file that owner 0 reads, the generation must be signed.

    Raises
    ------
    CheckpointError
        `Refused` for damage, for words that are not finite (unless ``finite=False``), and
        ``per-owner-state`` where each owner had an array of its own and there are other owners
        now. The same on every owner.
    """
    world = open_world(comm, deadline)
    try:
        return _load(world, path, generation, finite, deadline, visibility, key)
    finally:
        world.free()


def _state(tree: Any, layouts: dict[str, Layout], finite: bool) -> State:
    """Return a tree as a state: a region for each array, and the structure as a document."""
    structure, arrays = take_apart(tree, layouts)
    state = State()
    for name, value in arrays.items():
        _declare(state, name, value, layouts.pop(name, None), finite)
    if layouts:
        name = next(iter(layouts))
        raise Refused("a layout for an array that is not in the tree", code="layout", region=str(name))
    state.document(STRUCTURE, lambda: structure, _ignore)
    return state


def _declare(state: State, name: str, value: Any, layout: Layout | None, finite: bool) -> None:
    rule, *more = layout if isinstance(layout, tuple) else (layout,)
    # Nothing is ever put back into these: they are read once.
    getter: Callable[[], Any] = lambda: value  # noqa: E731
    if rule is None:
        state.replicate(name, getter, write=_ignore, finite=finite)
    elif isinstance(rule, PerOwner):
        state.per_owner(name, getter, write=_ignore, finite=finite)
    elif not more or not isinstance(rule, Rule):
        raise Refused(
            "a layout is (rule, shape of the whole array)",
            code="layout",
            region=name,
            found=repr(layout)[:80],
        )
    else:
        dtype = more[1] if len(more) > 1 else None
        write = None if isinstance(rule, Irregular) else _ignore
        state.partition(name, getter, shape=more[0], layout=rule, dtype=dtype, write=write, finite=finite)


def _ignore(value: Any) -> None:
    """Take a value back, and drop it."""


def _load(
    world: World,
    path: str | os.PathLike[str],
    word: str,
    finite: bool,
    deadline: float,
    visibility: float,
    key: str | os.PathLike[str] | None,
) -> Any:
    def choose() -> bytes:
        if world.rank != 0:
            return b""
        with open(path, key=key) as reader:
            found = reader[word]._generation.candidate
            return msgspec.msgpack.encode((reader.id, found.epoch, found.number, found.root))

    data = bcast(world, everybody(world, choose, deadline), 0, deadline)
    id_, epoch, number, root = msgspec.msgpack.decode(data)

    def read() -> Any:
        with Reader(Store.open(path, visibility=visibility)) as reader:
            if reader.id != id_:
                raise Refused(
                    "it means another store than owner 0: give every rank the same path",
                    code="other-store",
                    file=reader.path,
                    expected=id_,
                    found=reader.id,
                )
            opened = Opened.open(reader._store, epoch, number)
            if opened.candidate.root != root:
                candidate(reader._store, opened.candidate.position, root)  # says what differs
            return _tree(opened, world.rank, world.size, finite)

    return everybody(world, read, deadline)


def _tree(opened: Opened, owner: int, owners: int, finite: bool) -> Any:
    generation = StoredGeneration(opened)

    def give(name: str) -> Any:
        region = opened.schema.named(name)
        if region is None:
            raise Refused("the structure names no region", code="corrupt-document", region=name)
        array = _piece(opened, generation, region, owner, owners)
        word = formats.first_non_finite(array) if finite else None
        if word is not None:
            raise Refused(
                f"word {word} of what this owner reads is not finite",
                code="non-finite",
                role=owner,
                region=name,
                expected="finite words (finite=False allows others)",
                found=str(array.reshape(-1)[word]),
            )
        return array

    if opened.schema.named(STRUCTURE) is not None:
        return put_together(opened.document(STRUCTURE), give)
    tree: dict[str, Any] = {}
    for region in opened.regions:
        if region.kind == "document":
            tree[region.name] = opened.document(region.name)
        elif region.is_document:
            _check_owners(opened, region, owners)
            tree[region.name] = opened.document(region.name, owner)
        else:
            tree[region.name] = give(region.name)
    return tree


def _piece(opened: Opened, generation: StoredGeneration, region: Region, owner: int, owners: int) -> Array:
    """Read what owner `owner` of `owners` holds of an array region."""
    name, shape = region.name, region.shape
    rule = from_data(opened.root.layouts[region.ordinal])
    if region.kind == "per-owner":
        _check_owners(opened, region, owners)
        return np.asarray(generation[name][owner])
    if owners == 1:
        return np.asarray(generation[name])
    if isinstance(rule, Irregular):
        raise Refused(
            "no rule deals the words of an irregular region: open the store and slice it",
            code="layout",
            region=name,
        )
    try:
        rule.check(shape, owners)
    except Refused as error:
        error.region = name
        raise
    pieces = rule.pieces(shape, owners, owner)
    if not pieces:
        extents = (
            tuple(0 if i == rule.axis else n for i, n in enumerate(shape)) if isinstance(rule, Rows) else (0,)
        )
        return np.empty(shape if 0 in shape else extents, formats.by_name(region.format).dtype)
    [piece] = pieces
    if piece is not None and size(piece) == region.size:
        return np.asarray(generation[name])
    if isinstance(piece, Box):
        return opened.words(name, Lattice(piece.starts, local_shape(piece), (1,) * len(shape)))
    assert isinstance(piece, Interval)
    return opened.piece(name, piece)


def _check_owners(opened: Opened, region: Region, owners: int) -> None:
    if opened.root.owners != owners:
        raise Refused(
            "what each owner has of its own fits no other number of owners: open() reads the values of all",
            code="per-owner-state",
            region=region.name,
            expected=f"{opened.root.owners} owners",
            found=f"{owners} owners",
        )
