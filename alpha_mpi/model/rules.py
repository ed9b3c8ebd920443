"""Rules: which owner holds which words, as a function of (shape, owner count, owner).

A *rule* is a frozen value with arguments but without owner count: it is written in the root, and
no list per role ever is. *Shares* are contiguous, their sizes differ by at most one, larger first.
A *group* are the owners that hold the same piece: its lowest owner writes, the others are compared
with it. Every rule answers

``check(shape, n)``
    Refuses (``layout``) what the rule cannot deal; called at declaration.
``pieces(shape, n, k)``
    The pieces owner k of n holds: none where it holds nothing, None for a whole one.
``group(shape, n, k)``
    The owners that hold the same pieces as owner k, ascending; empty where it holds nothing.
``writes(shape, n, k)``
    Per piece of `pieces`: whether owner k is the one who writes it.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from ..errors import Refused
from .pieces import Box, Interval, Piece, Shape, check, is_empty, plain, whole, words

#: Most owners an `On` rule may list, and most axes of a mesh or grid.
OWNERS_LIMIT = 1 << 22
AXES_LIMIT = 32

#: Pieces an owner holds of one region; None is the whole of a per-owner array or document.
Held = tuple[Piece | None, ...]


F = TypeVar("F", bound=Callable[..., Any])


def _remembered(pieces: F) -> F:
    """Keep the last answers of a method: thousands of regions have few shapes, and one piece is shared
    where many are equal. Not for a rule that lists its owners, whose hash takes as long as they are many."""
    return cast(F, functools.lru_cache(maxsize=512)(pieces))


def share(extent: int, n: int, k: int) -> tuple[int, int]:
    """Return [start, stop) of share k when `extent` words are dealt to n, larger shares first."""
    each, extra = divmod(extent, n)
    begin = k * each + min(k, extra)
    return begin, begin + each + (k < extra)


def share_of(extent: int, n: int, word: int) -> int:
    """Return which of n shares holds a word."""
    each, extra = divmod(extent, n)
    longer = extra * (each + 1)
    return word // (each + 1) if word < longer else extra + (word - longer) // each


def refuse(message: str, expected: object = None, found: object = None) -> NoReturn:
    raise Refused(message, code="layout", expected=expected, found=found)


class Rule(abc.ABC):
    """A layout rule (see the module's docstring). Rules are equal when their data are."""

    word: ClassVar[str]

    def check(self, shape: Shape, n: int) -> None:
        """Refuse (``layout``) a shape or an owner count this rule cannot deal."""
        if n < 1:
            refuse("a layout needs at least one owner", found=n)

    @abc.abstractmethod
    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        """Return the pieces owner k of n holds; empty ones are left out."""

    def group(self, shape: Shape, n: int, k: int) -> Sequence[int]:
        """Return the owners that hold the same pieces as owner k, ascending."""
        return (k,) if self.pieces(shape, n, k) else ()

    def writes(self, shape: Shape, n: int, k: int) -> tuple[bool, ...]:
        """Return, per piece of owner k, whether it is the one who writes it."""
        held = self.pieces(shape, n, k)
        if not held:
            return ()
        return (self.group(shape, n, k)[0] == k,) * len(held)

    def slices(self, shape: Shape, n: int, k: int) -> tuple[slice, ...]:
        """Return the index, in the whole array, of the words owner k holds: one slice per axis.

        Called by users, for sizes and places. Empty slices where it holds nothing. Raises `Refused`
        (``layout``) for a shape or count that cannot be dealt, and for a rule whose pieces are not
        one box.
        """
        self.check(shape, n)
        box = self._box(shape, n, k)
        if not isinstance(box, Box):
            refuse("the pieces of this rule are not one box", "rows, grid, mesh or replicated", self.word)
        return tuple(slice(a, b) for a, b in zip(box.starts, box.stops, strict=True))

    def _box(self, shape: Shape, n: int, k: int) -> Piece | None:
        return None

    def as_data(self) -> dict[str, Any]:
        """Return the rule with its arguments as JSON data (docs/format.md)."""
        return {"rule": self.word}


@dataclasses.dataclass(frozen=True)
class Replicated(Rule):
    """Every owner holds all words; they are written once."""

    word: ClassVar[str] = "replicated"

    @_remembered
    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        return (whole(shape),) if words(shape) else ()

    def group(self, shape: Shape, n: int, k: int) -> Sequence[int]:
        return range(n) if words(shape) else ()

    def _box(self, shape: Shape, n: int, k: int) -> Piece:
        return _box(shape, {})


@dataclasses.dataclass(frozen=True)
class Shares(Rule):
    """Owner k holds share k of the flattened C order."""

    word: ClassVar[str] = "shares"

    def bounds(self, extent: int, n: int, k: int) -> tuple[int, int]:
        """Return [start, stop) of owner k's words out of `extent`. Called by users, for sizes."""
        return share(extent, n, k)

    @_remembered
    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        return _kept(Interval(*share(words(shape), n, k)))


@dataclasses.dataclass(frozen=True)
class Rows(Rule):
    """Owner k holds share k of one axis, and all of the others. Its piece is a box."""

    axis: int = 0
    word: ClassVar[str] = "rows"

    def bounds(self, extent: int, n: int, k: int) -> tuple[int, int]:
        """Return [start, stop) of owner k's rows out of `extent`. Called by users, for sizes."""
        return share(extent, n, k)

    def check(self, shape: Shape, n: int) -> None:
        super().check(shape, n)
        if not 0 <= self.axis < len(shape):
            refuse("rows of an axis that is not there", f"an axis of shape {shape}", f"axis {self.axis}")

    @_remembered
    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        return _kept(self._box(shape, n, k))

    def _box(self, shape: Shape, n: int, k: int) -> Piece:
        return _box(shape, {self.axis: share(shape[self.axis], n, k)})

    def as_data(self) -> dict[str, Any]:
        return {"axis": self.axis, "rule": self.word}


@dataclasses.dataclass(frozen=True)
class Grid(Rule):
    """Array axis i is dealt over ``dims[i]``; owners are numbered in C order of the grid.

    `dims` may be shorter than the array's rank: the other axes are held in full.
    """

    dims: tuple[int, ...]
    word: ClassVar[str] = "grid"

    def __post_init__(self) -> None:
        if len(self.dims) > AXES_LIMIT or any(not _count(d) for d in self.dims):
            refuse("a grid needs positive dimensions", "integers of at least 1", str(self.dims)[:200])

    def check(self, shape: Shape, n: int) -> None:
        super().check(shape, n)
        if len(self.dims) > len(shape):
            refuse("a grid has more dimensions than the array", f"at most {len(shape)}", self.dims)
        if math.prod(self.dims) != n:
            refuse("a grid of another number of owners", f"{n} owners", self.dims)

    @_remembered
    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        return _kept(self._box(shape, n, k))

    def _box(self, shape: Shape, n: int, k: int) -> Piece:
        at = _coordinates(self.dims, k)
        cut = {i: share(shape[i], d, c) for i, (d, c) in enumerate(zip(self.dims, at, strict=True))}
        return _box(shape, cut)

    def as_data(self) -> dict[str, Any]:
        return {"dims": list(self.dims), "rule": self.word}


@dataclasses.dataclass(frozen=True)
class Mesh(Rule):
    """Owners on named axes; array axis i is split over the axis ``split[i]`` names, or not (None).

    Owners are numbered in C order of the axes as given (the last varies fastest). Owners that
    differ only on axes no array axis is split over hold the same piece.
    """

    axes: tuple[tuple[str, int], ...]
    split: tuple[str | None, ...]
    word: ClassVar[str] = "mesh"

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(names) > AXES_LIMIT or len(set(names)) != len(names):
            refuse("a mesh needs distinct axes", found=str(names)[:200])
        for name, count in self.axes:
            if not isinstance(name, str) or not name or not _count(count):
                refuse(
                    "a mesh axis needs a name and a size",
                    "a size of at least 1",
                    f"{name!r}: {count!r}"[:200],
                )
        used = [s for s in self.split if s is not None]
        unknown = [s for s in used if s not in names]
        if unknown:
            refuse("an axis is split over a mesh axis that is not there", names, unknown[0])
        if len(set(used)) != len(used):
            refuse("two array axes are split over one mesh axis", found=self.split)

    def check(self, shape: Shape, n: int) -> None:
        super().check(shape, n)
        if math.prod(self._dims) != n:
            refuse("a mesh of another number of owners", f"{n} owners", dict(self.axes))
        if len(self.split) > len(shape):
            refuse("more axes are split than the array has", f"at most {len(shape)}", self.split)

    def coordinates(self, k: int) -> dict[str, int]:
        """Return owner k's place on each named axis."""
        return dict(zip((name for name, _ in self.axes), _coordinates(self._dims, k), strict=True))

    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        return _kept(self._box(shape, n, k))

    def _box(self, shape: Shape, n: int, k: int) -> Piece:
        at, sizes = self.coordinates(k), dict(self.axes)
        cut = {i: share(shape[i], sizes[s], at[s]) for i, s in enumerate(self.split) if s is not None}
        return _box(shape, cut)

    def group(self, shape: Shape, n: int, k: int) -> Sequence[int]:
        if not self.pieces(shape, n, k):
            return ()
        used = {s for s in self.split if s is not None}
        places = [
            (at,) if name in used else range(count)
            for (name, count), at in zip(self.axes, _coordinates(self._dims, k), strict=True)
        ]
        return tuple(_number(self._dims, place) for place in itertools.product(*places))

    def as_data(self) -> dict[str, Any]:
        return {"axes": [[n, c] for n, c in self.axes], "rule": self.word, "split": list(self.split)}

    @functools.cached_property
    def _dims(self) -> tuple[int, ...]:
        return tuple(count for _, count in self.axes)


@dataclasses.dataclass(frozen=True)
class On(Rule):
    """Some owners hold the region, dealt by `rule` over them in the order listed; others nothing."""

    owners: tuple[int, ...]
    rule: Rule
    word: ClassVar[str] = "on"

    def __post_init__(self) -> None:
        if not self.owners or len(self.owners) > OWNERS_LIMIT:
            refuse("a region must be on some owner", found=f"{len(self.owners)} owners")
        if any(not _count(k + 1) for k in self.owners) or len(self._place) != len(self.owners):
            refuse("owners must be distinct numbers from 0", found=str(self.owners)[:200])
        if not isinstance(self.rule, (Replicated, Shares, Rows, Grid, Mesh)):
            refuse(
                "this rule cannot be dealt over listed owners",
                "replicated, shares, rows, grid or mesh",
                getattr(self.rule, "word", type(self.rule).__name__),
            )

    def check(self, shape: Shape, n: int) -> None:
        super().check(shape, n)
        beyond = [k for k in self.owners if k >= n]
        if beyond:
            refuse("a listed owner does not exist", f"owners 0 to {n - 1}", f"owner {beyond[0]}")
        self.rule.check(shape, len(self.owners))

    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        i = self._place.get(k)
        return () if i is None else self.rule.pieces(shape, len(self.owners), i)

    def group(self, shape: Shape, n: int, k: int) -> Sequence[int]:
        i = self._place.get(k)
        if i is None:
            return ()
        return sorted(self.owners[j] for j in self.rule.group(shape, len(self.owners), i))

    def as_data(self) -> dict[str, Any]:
        ranges: list[list[int]] = []
        for k in self.owners:
            if ranges and ranges[-1][1] == k:
                ranges[-1][1] = k + 1
            else:
                ranges.append([k, k + 1])
        return {"of": self.rule.as_data(), "owners": ranges, "rule": self.word}

    @functools.cached_property
    def _place(self) -> dict[int, int]:
        return {k: i for i, k in enumerate(self.owners)}


@dataclasses.dataclass(frozen=True)
class PerOwner(Rule):
    """Every owner holds an array or document of its own: never a replica of another's."""

    word: ClassVar[str] = "per-owner"

    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        return (None,) if words(shape) else ()


@dataclasses.dataclass(frozen=True)
class Irregular(Rule):
    """Each owner says at every save which pieces it holds; they stand in its own manifest.

    No function of (shape, owner count, owner): `pieces` refuses, `current` asks this owner.
    """

    source: Callable[[], Iterable[Piece]] | None = dataclasses.field(default=None, compare=False)
    word: ClassVar[str] = "irregular"

    def pieces(self, shape: Shape, n: int, k: int) -> Held:
        refuse("irregular pieces are known to their owner alone")

    def writes(self, shape: Shape, n: int, k: int) -> tuple[bool, ...]:
        refuse("irregular pieces are known to their owner alone")

    def current(self, shape: Shape) -> tuple[Piece, ...]:
        """Return this owner's pieces as the user gives them now, in the user's order.

        Raises `Refused` (``bad-piece``, ``layout``) for one outside the shape or another type.
        """
        if self.source is None:
            refuse("irregular pieces were not given: declare the region with irregular(pieces)")
        given = tuple(self.source())
        for piece in given:
            if not isinstance(piece, (Interval, Box)):
                refuse("a piece must be an Interval or a Box", found=type(piece).__name__)
        pieces = tuple(map(plain, given))
        for piece in pieces:
            check(piece, shape)
        return pieces


def _kept(piece: Piece) -> Held:
    return () if is_empty(piece) else (piece,)


def _box(shape: Shape, cut: Mapping[int, tuple[int, int]]) -> Piece:
    """Return the box cut on some axes; a 0-d region has no axis, its one word is an interval."""
    if not shape:
        return whole(shape)
    bounds = [cut.get(i, (0, n)) for i, n in enumerate(shape)]
    return Box(tuple([a for a, _ in bounds]), tuple([b for _, b in bounds]))


def _coordinates(dims: Sequence[int], k: int) -> tuple[int, ...]:
    at = []
    for d in reversed(dims):
        k, c = divmod(k, d)
        at.append(c)
    return tuple(reversed(at))


def _number(dims: Sequence[int], at: Sequence[int]) -> int:
    k = 0
    for d, c in zip(dims, at, strict=True):
        k = k * d + c
    return k


def number(value: Any) -> int:
    """Return a user's integer, NumPy's included, as Python's own; refuse (``layout``) others."""
    try:
        return operator.index(value)
    except TypeError:
        refuse("a layout is made of whole numbers", found=repr(value)[:80])


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 53
