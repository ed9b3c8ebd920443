"""State: what a training code declares as its own, once, before it resumes and saves.

A *region* is declared by a name and a *source*: an array that is filled in place, a function that
returns it, or an object and the name of its attribute. Sources are read at every save, never bound
to the bytes they had when they were declared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np

from .declared import Declared, Destination, Repartition, check_reading
from .devices.identity import Identity
from .devices.words import DeviceWords
from .errors import CheckpointError, Refused
from .model.formats import JSON, NAMES, Format, by_name, of_dtype
from .model.layout import Irregular, PerOwner, Replicated, Rule, per_owner, replicated
from .model.pieces import Shape
from .model.schema import Region, Schema, check_name, check_shape
from .protocol.hierarchy import Hierarchy
from .sources import (
    DocumentSource,
    Source,
    call,
    check_filled,
    is_filled,
    read,
    reading_of,
    source_of,
)

__all__ = ["Declared", "Destination", "State"]


@dataclasses.dataclass(frozen=True)
class _Entry:
    """One declaration as the user gave it; `format` and `shape` are None until they are read."""

    name: str
    kind: str
    source: Source | DocumentSource
    rule: Rule
    shape: Shape | None
    format: Format | None
    finite: bool
    repartition: Repartition | None = None


@dataclasses.dataclass
class _Functions:
    """A document's two functions as a source."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


class State:
    """The regions of one learner, in the order they are declared: the same on every owner.

    Every method raises `Refused` for what could not be saved and resumed: ``name`` (empty, twice,
    an unpaired surrogate), ``format`` (object, structured, string and time arrays, longdouble),
    ``cannot-set`` (a value that can be neither filled in place nor set; the message says the
    cure), ``layout``, ``shape``, ``source``, ``late-region`` (a `Checkpointer` uses the state already).

    Wherever a `source` is asked for, it is one of

    * an array: filled in place at resume;
    * a function that returns the array: called once when the `Checkpointer` is made, and at every
      save and resume. The array is filled in place, so it must be the same memory at each call (a
      second call at the start makes sure). Where it is not, or the value is a number, give
      ``write=``, a function that takes the value back;
    * an object, with `attr`, the name of its attribute: a writable array is filled in place, a
      Python number, a NumPy scalar or an immutable array is set.

    Python's ``bool``, ``int``, ``float`` and ``complex`` are saved as ``bool``, ``int64``,
    ``float64`` and ``complex128`` and come back as the same Python type.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        #: Whether a `Checkpointer` was made with it: a region declared later would never be saved.
        self.in_use = False

    def __len__(self) -> int:
        return len(self._entries)

    def partition(
        self,
        name: str,
        source: Any,
        attr: str | None = None,
        *,
        shape: Iterable[int] | None = None,
        layout: Rule | None = None,
        like: str | None = None,
        dtype: Any = None,
        write: Callable[[Any], Any] | None = None,
        finite: bool = True,
    ) -> None:
        """Declare a global array of which each owner holds the pieces that `layout` deals to it.

        Called on every owner alike; `source` gives this owner's piece.

        Parameters
        ----------
        shape : tuple of int
            Of the whole array.
        layout : Rule
            `rows`, `shares`, `grid`, `mesh`, `on`, `irregular`.
        like : str
            Take shape and layout of this region, declared earlier, instead.
        dtype : dtype or name of a format, optional
            Needed where an owner that holds nothing gives no array; checked where it is given.
        finite : bool
            Refuse to save or resume infinite and not-a-number words.
        """
        name = self._new(name)
        if like is not None:
            if shape is not None or layout is not None:
                _refuse(name, "layout", "like= stands for shape= and layout=: give one or the other")
            other = self._entries.get(like)
            if other is None or other.kind != "array" or isinstance(other.rule, Irregular):
                _refuse(
                    name,
                    "layout",
                    "like= names no array region declared earlier with a regular layout",
                    found=str(like)[:200],
                )
            rule, extents = other.rule, other.shape
        else:
            if layout is None or shape is None:
                _refuse(name, "layout", "a partitioned region needs shape= and layout=, or like=")
            if not isinstance(layout, Rule) or isinstance(layout, PerOwner):
                _refuse(
                    name,
                    "layout",
                    "not a layout rule of one array",
                    expected="rows(), shares(), grid(...), mesh(...), on(...) or irregular(...)",
                    found=repr(layout)[:200],
                )
            rule, extents = layout, check_shape(shape, region=name)
        self._add_array(name, "array", source, attr, write, rule, extents, dtype, finite)

    def replicate(
        self,
        name: str,
        source: Any,
        attr: str | None = None,
        *,
        dtype: Any = None,
        write: Callable[[Any], Any] | None = None,
        finite: bool = True,
    ) -> None:
        """Declare an array or number that every owner holds, bit for bit the same.

        A save compares all of them and refuses a diverged one.
        """
        name = self._new(name)
        self._add_array(name, "array", source, attr, write, replicated(), None, dtype, finite)

    def per_owner(
        self,
        name: str,
        source: Any,
        attr: str | None = None,
        *,
        dtype: Any = None,
        write: Callable[[Any], Any] | None = None,
        finite: bool = True,
        repartition: Repartition | None = None,
    ) -> None:
        """Declare what each owner has of its own: ``rng(generator)``, an array, a number.

        Arrays have the same shape and format on every owner. Anything with `read` and `write`
        methods is a document of each owner. Never given to another owner.

        Parameters
        ----------
        repartition : callable, optional
            ``repartition(values, old_count, new_count, owner)`` returns what this owner has when a
            generation of another number of owners is resumed, from the values that all of them had
            (a list by old owner). Without it such a generation is refused (``per-owner-state``).
            Draws from a `stream` need no rule: they depend on the sample, not on the owner.
        """
        name = self._new(name)
        if repartition is not None and not callable(repartition):
            _refuse(name, "source", "repartition= takes a function", found=type(repartition).__name__)
        if attr is None and write is None and _is_document_source(source):
            self._add_document(name, "per-owner-document", source, per_owner())
        else:
            self._add_array(name, "per-owner", source, attr, write, per_owner(), None, dtype, finite)
        self._entries[name] = dataclasses.replace(self._entries[name], repartition=repartition)

    def document(self, name: str, read: Any, write: Callable[[Any], Any] | None = None) -> None:
        """Declare a JSON-able value, the same on every owner: read at save, given back at resume.

        `read` is a function that returns it and `write` one that takes it; or `read` alone is an
        object with these two methods, such as ``stream(seed)`` or ``rng(generator)``.
        """
        name = self._new(name)
        if write is None and _is_document_source(read):
            self._add_document(name, "document", read, replicated())
            return
        for what, function in (("read", read), ("write", write)):
            if not callable(function):
                _refuse(
                    name, "source", f"a document needs a function to {what} it", found=type(function).__name__
                )
        assert write is not None
        self._add_document(name, "document", _Functions(read, write), replicated())

    def declare(self, owners: int, owner: int, hierarchy: Hierarchy) -> Declared:
        """Return this state as declared for one owner; reads each source for its format.

        Called by every owner when a `Checkpointer` is made. Raises `Refused` with the region named.
        """
        if not self._entries:
            raise Refused("a state without a region has nothing to save", code="empty-state")
        regions: list[Region] = []
        devices: set[Identity] = set()
        for ordinal, entry in enumerate(self._entries.values()):
            try:
                regions.append(_region(ordinal, entry, owners, owner, devices))
            except CheckpointError as error:
                error.region = error.region or entry.name
                raise
        entries = tuple(self._entries.values())
        return Declared(
            Schema(tuple(regions)),
            tuple(e.rule for e in entries),
            tuple(e.finite for e in entries),
            tuple(e.source for e in entries),
            owners,
            owner,
            hierarchy,
            {i: e.repartition for i, e in enumerate(entries) if e.repartition is not None},
            tuple(sorted(devices, key=lambda d: d.uuid)),
        )

    def _new(self, name: str) -> str:
        check_name(name)
        if self.in_use:
            raise Refused(
                "a Checkpointer uses this state already: declare every region before it is made",
                code="late-region",
                region=name,
            )
        if name in self._entries:
            raise Refused("two regions have the same name", code="name", region=name)
        return name

    def _add_array(
        self,
        name: str,
        kind: str,
        source: Any,
        attr: str | None,
        write: Callable[[Any], Any] | None,
        rule: Rule,
        shape: Shape | None,
        dtype: Any,
        finite: bool,
    ) -> None:
        if isinstance(rule, Irregular) and write is not None:
            _refuse(name, "source", "the arrays of an irregular region are filled in place: no write=")
        if isinstance(rule, Irregular) and attr is None and isinstance(source, (list, tuple)):
            arrays = source  # read anew at each save, so a list may change with its pieces
            found = source_of(lambda: arrays, None, write, name)
        else:
            found = source_of(source, attr, write, name)
        entry = _Entry(name, kind, found, rule, shape, _format(dtype, name), bool(finite))
        self._entries[name] = entry

    def _add_document(self, name: str, kind: str, source: DocumentSource, rule: Rule) -> None:
        self._entries[name] = _Entry(name, kind, source, rule, (), None, False)


def _region(ordinal: int, entry: _Entry, owners: int, owner: int, devices: set[Identity]) -> Region:
    """Return one entry as a region of the schema, its source read once and found fit.

    The devices on which its words lie are added to `devices`.
    """
    source, rule = entry.source, entry.rule
    if not isinstance(source, Source):
        return Region(ordinal, entry.name, entry.kind, JSON, ())
    if isinstance(rule, Irregular):
        assert entry.shape is not None
        format = _irregular_format(entry, source, owner, devices)
        return Region(ordinal, entry.name, entry.kind, format.name, entry.shape)
    if entry.shape is not None:
        rule.check(entry.shape, owners)
    holds = entry.shape is None or bool(rule.pieces(entry.shape, owners, owner))
    if not holds and entry.format is not None and not isinstance(rule, Replicated):
        assert entry.shape is not None
        return Region(ordinal, entry.name, entry.kind, entry.format.name, entry.shape)
    if holds:
        reading = read(source, entry.name, owner)
    else:
        reading = _given_for_nothing(entry, source, owner)
    if holds and isinstance(reading.array, DeviceWords):
        devices.add(reading.array.identity)
    if reading.array is None and (entry.format is None or entry.shape is None):
        _refuse(
            entry.name,
            "format",
            "the source gives no array yet, so its format is unknown: give dtype=",
            expected="an array or a number",
            found="None",
        )
    format = entry.format or of_dtype(reading.array.dtype)  # type: ignore[union-attr]
    shape = entry.shape if entry.shape is not None else reading.array.shape  # type: ignore[union-attr]
    region = Region(ordinal, entry.name, entry.kind, format.name, shape)
    if holds:
        pieces = rule.pieces(shape, owners, owner)
        check_reading(reading, region, pieces[0] if pieces else None, allow_none=source.settable)
        is_filled(source, reading, entry.name, owner)  # refuses what has no way back
    return region


def _given_for_nothing(entry: _Entry, source: Source, owner: int) -> Any:
    """Read the source of an owner that holds nothing, for its format alone."""
    value = call(source.read, entry.name, owner)
    try:
        return reading_of(value, entry.name)
    except Refused:
        return reading_of(None, entry.name)


def _irregular_format(entry: _Entry, source: Source, owner: int, devices: set[Identity]) -> Format:
    """Read the arrays of an irregular region twice: their format, and that filling them lasts."""
    lists = [call(source.read, entry.name, owner) for _ in range(2)]
    if any(not isinstance(arrays, (list, tuple)) for arrays in lists) or len(lists[0]) != len(lists[1]):
        _refuse(
            entry.name,
            "format",
            "an irregular region's source gives a list of arrays, one per piece",
            found=type(lists[0]).__name__,
        )
    first, again = ([reading_of(value, entry.name) for value in arrays] for arrays in lists)
    check_filled(first, again, entry.name)
    devices.update(r.array.identity for r in first if isinstance(r.array, DeviceWords))
    if entry.format is not None:
        return entry.format
    if not first:
        _refuse(entry.name, "format", "this owner holds no piece, so the format is unknown: give dtype=")
    assert first[0].array is not None
    return of_dtype(first[0].array.dtype)


def _format(dtype: Any, name: str) -> Format | None:
    if dtype is None:
        return None
    try:
        if isinstance(dtype, Format):
            return dtype
        return by_name(dtype) if isinstance(dtype, str) and dtype in NAMES else of_dtype(np.dtype(dtype))
    except TypeError:
        raise Refused(
            "not a dtype",
            code="format",
            region=name,
            expected="a dtype or a format's name",
            found=repr(dtype)[:80],
        ) from None
    except Refused as error:
        error.region = name
        raise


def _is_document_source(source: Any) -> bool:
    return callable(getattr(source, "read", None)) and callable(getattr(source, "write", None))


def _refuse(region: str, code: str, message: str, expected: object = None, found: object = None) -> NoReturn:
    raise Refused(message, code=code, region=region, expected=expected, found=found)
