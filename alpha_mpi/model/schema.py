"""Schema: the ordered declaration of all regions of a state.

A *region* is one logical array or document, identified by (schema digest, ordinal): no rank, path
or device is part of it. Its *kind* says what a piece of it is: ``array`` (intervals and boxes of
one global array), ``per-owner`` (each owner's own array of the same shape), ``document`` (one
JSON value, the same on all owners), ``per-owner-document`` (each owner's own).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from .. import digest
from ..canonical import EXACT
from ..errors import Refused
from .formats import JSON, by_name
from .pieces import Shape, words

KINDS = ("array", "per-owner", "document", "per-owner-document")
DOCUMENTS = ("document", "per-owner-document")
#: Longest name of a region, in characters.
NAME_LIMIT = 1024
#: Most axes of a region.
RANK_LIMIT = 32


@dataclasses.dataclass(frozen=True)
class Region:
    """One declared region. Documents have format ``json`` and shape ().

    Raises `Refused`: ``name``, ``shape``, ``format``, ``kind``.
    """

    ordinal: int
    name: str
    kind: str
    format: str
    shape: Shape

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.kind not in KINDS:
            raise Refused("unknown kind of region", code="kind", region=self.name, found=str(self.kind)[:80])
        if self.is_document:
            if self.format != JSON or self.shape != ():
                raise Refused(
                    "a document has format json and no shape",
                    code="format",
                    region=self.name,
                    found=f"{self.format} {self.shape}"[:200],
                )
            return
        try:
            by_name(self.format)
        except Refused as error:
            error.region = self.name
            raise
        check_shape(self.shape, by_name(self.format).itemsize, self.name)

    @property
    def is_document(self) -> bool:
        """Whether the region is a JSON value, not an array."""
        return self.kind in DOCUMENTS

    @property
    def size(self) -> int:
        """Words of the region (of one owner's array where it is per owner); 1 for a document."""
        return words(self.shape)


def check_name(name: object) -> str:
    """Return a region's name, or refuse it (``name``): empty, too long, or not encodable."""
    if not isinstance(name, str):
        raise Refused("a region's name must be a str", code="name", found=type(name).__name__)
    if not name:
        raise Refused("a region needs a name", code="name", expected="a non-empty name", found="''")
    if len(name) > NAME_LIMIT:
        raise Refused(
            "a region's name is too long",
            code="name",
            region=name,
            expected=f"at most {NAME_LIMIT} characters",
            found=len(name),
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            "a region's name holds an unpaired surrogate and has no UTF-8 form",
            code="name",
            region=name,
            found=f"U+{ord(name[error.start]):04X} at character {error.start}",
        ) from None
    return name


def check_shape(shape: object, itemsize: int = 1, region: str | None = None) -> Shape:
    """Return a shape as a tuple of ints, or refuse it (``shape``)."""
    try:
        extents = tuple(int(n.__index__()) for n in shape)  # type: ignore[attr-defined]
    except (TypeError, AttributeError):
        raise Refused("not a shape", code="shape", region=region, found=repr(shape)[:80]) from None
    if len(extents) > RANK_LIMIT or any(not 0 <= n < EXACT for n in extents):
        raise Refused(
            "a shape out of range",
            code="shape",
            region=region,
            expected=f"at most {RANK_LIMIT} axes of 0 to 2**53 - 1",
            found=str(extents)[:200],
        )
    if words(extents) * itemsize >= EXACT:
        raise Refused(
            "a region too large for this format",
            code="shape",
            region=region,
            expected="less than 2**53 bytes",
            found=words(extents) * itemsize,
        )
    return extents


@dataclasses.dataclass(frozen=True)
class Schema:
    """All regions of a state, in the order of their declaration; region i has ordinal i.

    Raises `Refused` (``name``) for two regions of one name.
    """

    regions: tuple[Region, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for i, region in enumerate(self.regions):
            if region.ordinal != i:
                raise ValueError(f"region {i} has ordinal {region.ordinal}")
            if region.name in seen:
                raise Refused("two regions have the same name", code="name", region=region.name)
            seen.add(region.name)

    @classmethod
    def of(cls, regions: Iterable[tuple[str, str, str, Shape]]) -> Schema:
        """Make a schema of (name, kind, format, shape), numbered in order."""
        return cls(tuple(Region(i, n, k, f, tuple(s)) for i, (n, k, f, s) in enumerate(regions)))

    def as_data(self) -> list[list[Any]]:
        """Return [name, kind, format, shape] of every region, in order."""
        return [[r.name, r.kind, r.format, list(r.shape)] for r in self.regions]

    def digest(self, algorithm: str = digest.DEFAULT) -> str:
        """Return the schema digest: neither owner count nor layout is part of it."""
        return digest.combine("schema", self.as_data(), algorithm=algorithm)

    def named(self, name: str) -> Region | None:
        """Return the region of this name, or None."""
        return next((r for r in self.regions if r.name == name), None)

    def changes(self, other: Schema) -> list[str]:
        """Return one line per region of both whose kind, format or shape is another in `other`."""
        theirs = {r.name: r for r in other.regions}
        lines = []
        for a in self.regions:
            b = theirs.get(a.name)
            if b is None:
                continue
            for what in ("kind", "format", "shape"):
                x, y = getattr(a, what), getattr(b, what)
                if x != y:
                    lines.append(f"{a.name!r} has another {what}: expected {x}, found {y}")
        return lines

    def difference(self, other: Schema) -> list[str]:
        """Return one line per difference of `other` from this schema; empty when they are equal.

        Lines name the region: what only one of them has, another kind, format or shape, and the
        first region out of order.
        """
        mine = {r.name: r for r in self.regions}
        theirs = {r.name: r for r in other.regions}
        lines = [f"{n!r} is missing" for n in mine if n not in theirs]
        lines += [f"{n!r} is additional" for n in theirs if n not in mine]
        lines += self.changes(other)
        order_mine = [n for n in mine if n in theirs]
        order_theirs = [n for n in theirs if n in mine]
        for a_name, b_name in zip(order_mine, order_theirs, strict=True):
            if a_name != b_name:
                lines.append(f"another order: expected {a_name!r}, found {b_name!r}")
                break
        return lines
