"""Layout: how the words of each region are dealt to owners.

Made of the rules of `rules`: constructors users call, rules as data in a root, and the layout
digest. Reading a rule back is strict and bounded, and calls nothing it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from .. import digest
from ..errors import Refused
from .pieces import Piece, Shape, is_empty, start
from .rules import (
    AXES_LIMIT,
    OWNERS_LIMIT,
    Grid,
    Held,
    Irregular,
    Mesh,
    On,
    PerOwner,
    Replicated,
    Rows,
    Rule,
    Shares,
    number,
    refuse,
    share,
    share_of,
)
from .schema import Region

__all__ = [
    "Grid",
    "Held",
    "Irregular",
    "Mesh",
    "On",
    "PerOwner",
    "Replicated",
    "Rows",
    "Rule",
    "Shares",
    "from_data",
    "grid",
    "held",
    "irregular",
    "layout_digest",
    "mesh",
    "on",
    "per_owner",
    "replicated",
    "rows",
    "share",
    "share_of",
    "shares",
    "sorted_pieces",
]


def replicated() -> Replicated:
    """Return the rule by which every owner holds all words."""
    return Replicated()


def shares() -> Shares:
    """Return the rule by which the flattened C order is dealt in contiguous shares."""
    return Shares()


def rows(axis: int = 0) -> Rows:
    """Return the rule by which one axis is dealt in contiguous shares."""
    axis = number(axis)
    if axis < 0:
        refuse("rows of an axis counted from 0", "an axis number of at least 0", axis)
    return Rows(axis)


def grid(dims: Iterable[int]) -> Grid:
    """Return the rule by which array axis i is dealt over ``dims[i]`` owners."""
    return Grid(tuple(map(number, dims)))


def mesh(axes: Mapping[str, int], split: Iterable[str | None]) -> Mesh:
    """Return the rule of a mesh: ``mesh({"data": 2, "model": 4}, (None, "model"))``.

    Owners are numbered in C order of the axes; the product of their sizes is the owner count.
    Array axis i is dealt over the mesh axis ``split[i]``; None, or no entry, holds it in full.
    """
    return Mesh(tuple((name, number(size)) for name, size in axes.items()), tuple(split))


def on(owners: Iterable[int], rule: Rule) -> On:
    """Return the rule by which only the listed owners hold the region, dealt over them by `rule`."""
    return On(tuple(map(number, owners)), rule)


def per_owner() -> PerOwner:
    """Return the rule of per-owner regions."""
    return PerOwner()


def irregular(pieces: Callable[[], Iterable[Piece]] | Iterable[Piece]) -> Irregular:
    """Return the rule by which each owner gives its pieces: a list, or a function read at each save.

    The region's source gives a list of arrays in the same order.
    """
    if callable(pieces):
        return Irregular(pieces)
    fixed = tuple(pieces)
    return Irregular(lambda: fixed)


def held(region: Region, rule: Rule, n: int, k: int) -> Held:
    """Return the pieces owner k of n holds of a region of any kind; see `Rule.pieces`."""
    if region.is_document:
        return (None,)
    if isinstance(rule, Irregular):
        return tuple(sorted_pieces(rule.current(region.shape), region.shape))
    return rule.pieces(region.shape, n, k)


def sorted_pieces(pieces: Iterable[Piece], shape: Shape) -> list[Piece]:
    """Return the pieces that hold words, by first word: the order of records."""
    return sorted((p for p in pieces if not is_empty(p)), key=lambda p: start(p, shape))


def layout_digest(
    rules: Iterable[Rule], owners: int, hierarchy: Mapping[str, Any], algorithm: str = digest.DEFAULT
) -> str:
    """Digest of the rules with their arguments, the owner count and the hierarchy as JSON data.

    An irregular region gives its word alone; its pieces are bound by the cover digest.
    """
    return digest.combine(
        "layout", [[r.as_data() for r in rules], owners, dict(hierarchy)], algorithm=algorithm
    )


_PLAIN: dict[str, type[Rule]] = {r.word: r for r in (Replicated, Shares, PerOwner, Irregular)}
_FIELDS = {"rows": {"axis"}, "grid": {"dims"}, "mesh": {"axes", "split"}, "on": {"owners", "of"}}


def from_data(data: Any) -> Rule:
    """Return the rule of JSON data that `Rule.as_data` gave; raises `Refused` (``layout``) else.

    An irregular rule comes back without its pieces: they stand in the manifests.
    """
    word = data.get("rule") if isinstance(data, dict) else None
    if not isinstance(word, str):
        _bad(data)
    if word in _PLAIN and set(data) == {"rule"}:
        return _PLAIN[word]()
    if word not in _FIELDS or set(data) != _FIELDS[word] | {"rule"}:
        _bad(data)
    if word == "rows":
        if not _number(data["axis"]) or data["axis"] >= AXES_LIMIT:
            _bad(data)
        return Rows(data["axis"])
    if word == "grid":
        return Grid(tuple(_list(data["dims"], AXES_LIMIT)))
    if word == "mesh":
        axes = [_list(a, 2) for a in _list(data["axes"], AXES_LIMIT)]
        split = _list(data["split"], AXES_LIMIT)
        if any(len(a) != 2 or not isinstance(a[0], str) for a in axes):
            _bad(data)
        if any(s is not None and not isinstance(s, str) for s in split):
            _bad(data)
        return Mesh(tuple((a[0], a[1]) for a in axes), tuple(split))
    return On(_owners(data["owners"]), from_data(_flat(data["of"])))


def _owners(data: Any) -> tuple[int, ...]:
    owners: list[int] = []
    for pair in _list(data, OWNERS_LIMIT):
        ends = _list(pair, 2)
        if len(ends) != 2 or not all(_number(e) for e in ends) or ends[0] >= ends[1]:
            _bad(pair)
        # Counted before it is spelled out: a range read from a file must not fill the memory.
        if len(owners) + ends[1] - ends[0] > OWNERS_LIMIT:
            _bad(pair)
        owners.extend(range(ends[0], ends[1]))
    return tuple(owners)


def _flat(data: Any) -> Any:
    if isinstance(data, dict) and data.get("rule") == "on":
        _bad(data)
    return data


def _list(data: Any, limit: int) -> list[Any]:
    if not isinstance(data, (list, tuple)) or len(data) > limit:
        _bad(data)
    return list(data)


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _bad(data: Any) -> NoReturn:
    raise Refused(
        "not a layout rule", code="layout", expected="a rule of docs/format.md", found=repr(data)[:200]
    )
