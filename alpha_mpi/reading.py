"""Reading: look into a store without MPI, as it stands or while a job writes it.

A *reader* is an open store. A *stored generation* is one of its generations: a mapping of names to
*stored arrays*, which read nothing until they are sliced, and then only the chunks behind the slice.
Every byte that is handed out has been compared with its digest.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from .errors import Absent, Refused, shortened
from .model import formats
from .model.capture import Moment
from .model.identity import Contract, Learner
from .model.schema import Region
from .restore import asked, choose
from .restore.generation import Generation
from .restore.plan import DOCUMENTS
from .restore.slices import select, shape_of
from .store import names, observe
from .store.observe import Position
from .store.signing import read_key
from .store.store import Store

if TYPE_CHECKING:
    from typing_extensions import Self

Array = npt.NDArray[Any]

#: Of a generation that is not there, or not any more.
_NOT_THERE = ("no-generation", "not-a-generation", "removed-generation", "missing-root")


def open(path: str | os.PathLike[str], *, key: str | os.PathLike[str] | None = None) -> Reader:
    """Open a store for reading. Changes nothing in it, and needs no MPI.

    Called by anybody, at any time: also on a login node, while a job writes to the store. Raises
    `Refused` (``no-store``, ``not-a-store``, ``format-version``, ...) for what is no store. With `key`,
    the file of the store's key, roots and claims must be signed by it; without it signatures are
    not checked.
    """
    return Reader(Store.open(path, key=None if key is None else read_key(key)))


class Reader:
    """An open store; each look at it sees what is published by then. Closed by `close`.

    ``reader.latest()`` is the generation a job would resume; ``reader["e000001-000003"]`` one by
    its name, ``reader["u120"]`` or ``reader[120]`` one by its update (of several, the newest of the
    lineage), ``reader[moment]`` one by all of its `Moment`. Iterating gives all generations, oldest first.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def path(self) -> str:
        """Where the store lies."""
        return self._store.path

    @property
    def id(self) -> str:
        """Who the store is, wherever it lies."""
        return self._store.id

    @property
    def generations(self) -> tuple[str, ...]:
        """Names of the generations that stand now, oldest first, abandoned ones included."""
        return tuple(map(_name, self._positions()))

    def latest(self) -> StoredGeneration:
        """Return the newest generation of the lineage: the one a job would resume.

        Raises `Refused`: ``no-generation``, or why it cannot be read; never an older one instead.
        """
        while True:
            seen = self._survey()
            if seen.damage is not None:
                raise seen.damage
            if seen.newest is None:
                raise asked.none_yet(self._store)
            try:
                return self._open(seen.newest.position)
            except Refused as error:
                # A job published a newer one and removed this one between two looks.
                if error.code not in ("removed-generation", "missing-root"):
                    raise
                if seen.newest.position == Position(*self._positions()[-1]):
                    raise

    def __getitem__(self, word: str | int | Moment) -> StoredGeneration:
        """Return a generation by name, update or moment, or ``"latest"``.

        Raises `Absent` (``no-generation``, ``argument``), which is a `KeyError` too, where there is
        none; `Refused` (``removed-generation``, or why it cannot be read).
        """
        if isinstance(word, Moment):
            return self._at(word)
        text = str(word) if _is_word(word) else ""
        if text == "latest":
            return self.latest()
        if not text:
            raise Absent(
                "neither an entry's name (e000001-000003), nor an update (u120), nor a moment, nor latest",
                code="argument",
                found=repr(word)[:80],
            )
        return self._open(asked.position_of(self._store, self._survey(), text))

    def __contains__(self, word: object) -> bool:
        """Whether there is such a generation now. Raises `Refused` where it cannot be read."""
        try:
            if isinstance(word, Moment) or _is_word(word):
                self[word]
                return True
            return False
        except Refused as error:
            if error.code in _NOT_THERE:
                return False
            raise

    def __iter__(self) -> Iterator[StoredGeneration]:
        """Yield every generation, oldest first; raises `Refused` at one that is damaged.

        One that is removed meanwhile is left out.
        """
        for position in self._positions():
            try:
                found = self._open(position)
            except Refused as error:
                if error.code not in ("removed-generation", "missing-root"):
                    raise
                continue
            yield found

    def __len__(self) -> int:
        return len(self._positions())

    def close(self) -> None:
        """Close the store; its generations can read nothing more."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        held = "closed" if self._store.root.fd < 0 else f"{len(self)} generations"
        return f"<store {self._store.path!r}, {held}>"

    def _at(self, moment: Moment) -> StoredGeneration:
        seen = self._survey()
        for position in (*seen.lineage, *seen.abandoned):
            if position.epoch == moment.epoch and (found := self._open(position)).moment == moment:
                return found
        raise Absent("no generation is of this moment", code="no-generation", found=repr(moment))

    def _survey(self) -> choose.Survey:
        _check_open(self._store)
        return choose.survey(self._store)

    def _positions(self) -> list[Position]:
        seen = self._survey()
        return sorted((*seen.lineage, *seen.abandoned))

    def _open(self, position: Position) -> StoredGeneration:
        _check_open(self._store)
        return StoredGeneration(Generation.open(self._store, *position))


class StoredGeneration(Mapping[str, "StoredArray"]):
    """One generation: its arrays by name, read when they are sliced.

    Once retention has removed it, reading raises `Refused` ``removed-generation``; words that were
    read are always those that were published.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._arrays = {r.name: r for r in generation.regions if r.kind not in DOCUMENTS}

    def __getitem__(self, name: str) -> StoredArray:
        region = self._arrays.get(name)
        if region is None:
            known = self._generation.schema.named(name) if isinstance(name, str) else None
            what = "a document: see .documents" if known is not None else "the generation has no such array"
            raise _no_region(what, name, self._arrays, self._generation)
        return StoredArray(self._generation, region)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def name(self) -> str:
        """What people call it: e000002-000001."""
        return self._generation.candidate.name

    @property
    def root(self) -> str:
        """The root digest, which names every byte of it."""
        return self._generation.candidate.root

    @property
    def continues(self) -> str | None:
        """The root digest of the generation before it in the lineage, or None."""
        return self._generation.root.continues

    @property
    def moment(self) -> Moment:
        """Update, cursor and epoch at which it was captured."""
        return self._generation.candidate.manifest.prefix.moment

    @property
    def owners(self) -> int:
        """How many owners saved it."""
        return self._generation.root.owners

    @property
    def learner(self) -> Learner:
        """Whose state it is."""
        return Learner.from_data(self._generation.root.learner)

    @property
    def contract(self) -> Contract:
        """On what its bits depend."""
        return Contract.from_data(self._generation.root.contract)

    @property
    def documents(self) -> Documents:
        """The documents by name, each read when it is asked for."""
        return Documents(self._generation)

    def __repr__(self) -> str:
        moment = self.moment
        lines = [
            f"<generation {self.name}: update {moment.update}, cursor {moment.cursor}, "
            f"epoch {moment.epoch}, {self.owners} owner{'s' * (self.owners != 1)}"
        ]
        shown = self._generation.regions[:20]
        for region in shown:
            kind = region.kind if region.kind in DOCUMENTS else f"{region.format} {_shape(region, self)}"
            lines.append(f"  {shortened(region.name, 60)}: {kind}")
        if len(self._generation.regions) > len(shown):
            lines.append(f"  ... {len(self._generation.regions) - len(shown)} more")
        return "\n".join(lines) + ">"


def _shape(region: Region, generation: StoredGeneration) -> tuple[int, ...]:
    return shape_of(region, generation.owners)


class Documents(Mapping[str, Any]):
    """The documents of a generation by name; of one that each owner has of its own, a list by owner."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._regions = {r.name: r for r in generation.regions if r.kind in DOCUMENTS}

    def __getitem__(self, name: str) -> Any:
        if name not in self._regions:
            raise _no_region("the generation has no such document", name, self._regions, self._generation)
        _check_open(self._generation.store)
        return self._generation.document(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._regions)

    def __len__(self) -> int:
        return len(self._regions)

    def __repr__(self) -> str:
        return f"<documents {', '.join(map(repr, self._regions)) or '(none)'}>"


class StoredArray:
    """An array of a generation. Slice it, or hand it to NumPy: ``numpy.asarray(array)``.

    Integers, slices with any step, and ``...`` pick words as in NumPy. Only the chunks behind them
    are read, and memory is needed for the answer alone. What each owner has of its own has a leading
    axis of owners.

    Attributes
    ----------
    name, format, kind : str
        Of the region; `format` is a number format by name.
    shape : tuple of int
    dtype : numpy.dtype
    layout : dict
        The rule that dealt its words to owners, as data.
    """

    def __init__(self, generation: Generation, region: Region) -> None:
        self._generation = generation
        self.name = region.name
        self.kind = region.kind
        self.format = region.format
        self.shape = shape_of(region, generation.root.owners)
        self.layout: Mapping[str, Any] = generation.root.layouts[region.ordinal]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of what is read."""
        return formats.by_name(self.format).dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of words."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def nbytes(self) -> int:
        """Bytes of all words."""
        return self.size * formats.by_name(self.format).itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without an axis")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, key: Any) -> Any:
        """Read a slice: a new array, or a scalar where integers pick one word.

        Raises `IndexError` as NumPy does, and `Refused` for anything in the store that is not what
        its digests say (``corrupt-shard``, ``missing-pack``, ``removed-generation``, ...).
        """
        chosen = select(key, self.shape)
        if chosen.lattice is None:
            return np.empty(chosen.shape, self.dtype)
        _check_open(self._generation.store)
        words = self._generation.words(self.name, chosen.lattice)
        if chosen.flipped:
            words = np.flip(words, chosen.flipped)
        array = words.reshape(chosen.shape)
        dotted = any(one is Ellipsis for one in (key if isinstance(key, tuple) else (key,)))
        return array if chosen.shape or dotted else array[()]

    def _word(self) -> Any:
        if self.ndim:
            raise TypeError(f"only an array without an axis is a number, not one of shape {self.shape}")
        return self[()]

    def __float__(self) -> float:
        return float(self._word())

    def __int__(self) -> int:
        return int(self._word())

    def __complex__(self) -> complex:
        return complex(self._word())

    def __index__(self) -> int:
        return operator.index(self._word())

    def __bool__(self) -> bool:
        if self.ndim:
            raise ValueError("an array of a store is neither true nor false: slice it, and ask NumPy")
        return bool(self._word())

    def __format__(self, spec: str) -> str:
        return format(self._word(), spec) if spec else str(self)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the words of a store are read into a new array: a copy cannot be avoided")
        array: Array = np.asarray(self[...])
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<array {shortened(self.name, 60)!r}: {self.format} {self.shape}, not read>"


def _is_word(word: object) -> TypeGuard[str | int]:
    """Whether it can mean a generation."""
    return (
        not isinstance(word, bool) and isinstance(word, str | int | np.integer) and asked.is_word(str(word))
    )


def _no_region(what: str, name: object, there: Iterable[str], generation: Generation) -> Absent:
    """Return what is raised for a name that the generation does not have."""
    known = list(there)
    told = ", ".join(known[:20]) + ", ..." * (len(known) > 20)
    return Absent(
        what,
        code="no-region",
        region=str(name),
        file=observe.entry_file(*generation.candidate.position),
        expected=told or "none",
    )


def _check_open(store: Store) -> None:
    if store.root.fd < 0:
        raise Refused("the store has been closed: read before that", code="closed", file=store.path)


def _name(position: Position) -> str:
    return names.entry(*position).removesuffix(".json")
