"""Comparing: in which words two generations differ, whatever their placements and stores.

A *difference* of a region counts words whose bits differ. Memory is bounded: words are read in
slices, and not at all where both generations name the same shards by the same digests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import bounded, quoted
from .format.documents import encode_document
from .model import formats
from .model.schema import Region
from .reading import StoredArray
from .restore.generation import Generation
from .restore.plan import DOCUMENTS, PER_OWNER

#: Bytes of one slice of each side.
SLICE = 8 << 20

Array = npt.NDArray[Any]


@dataclasses.dataclass
class Difference:
    """How one region differs.

    Attributes
    ----------
    region : str
    why : str or None
        Why words cannot be compared: it is in one generation only, or of another shape or format.
    words, differing : int
        Words compared, and those that differ.
    largest : float or None
        The largest absolute difference of two finite numbers.
    first : tuple of int or None
        Index of the first word that differs; `values` and `bits` are the two sides there.
    path : str or None
        Of a document: where the first difference is.
    """

    region: str
    why: str | None = None
    words: int = 0
    differing: int = 0
    largest: float | None = None
    first: tuple[int, ...] | None = None
    values: tuple[str, str] | None = None
    bits: tuple[str, str] | None = None
    path: str | None = None

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.why is None and not self.differing and self.path is None

    def __str__(self) -> str:
        """The region, where it first differs, and both sides there with their bits."""
        name = f"region {quoted(self.region, 100)}"
        if self.why:
            return f"{name}: {self.why}"
        if self.values is None:
            return f"{name}: the same"
        where = f"at {self.path}" if self.path else f"index {self.first}"
        bits = "" if self.bits is None else f", bits {self.bits[0]} and {self.bits[1]}"
        return f"{name}, {where}: {' and '.join(bounded(value, 100) for value in self.values)}{bits}"


def compare(
    a: Generation, b: Generation, progress: Callable[[int, int], None] | None = None
) -> Iterator[Difference]:
    """Yield a `Difference` for each region of either generation, in order; also where they are the same.

    Raises `Refused` for whatever is damaged on either side.
    """
    theirs = {region.name: region for region in b.regions}
    total = sum(_nbytes(r, a) for r in a.regions)
    done = 0
    for region in a.regions:
        other = theirs.pop(region.name, None)
        if other is None:
            yield Difference(region.name, "only in the first generation")
        elif why := _unlike(region, other, a, b):
            yield Difference(region.name, why)
        elif region.kind in DOCUMENTS:
            yield _documents(a, b, region.name)
        else:

            def tell(nbytes: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + nbytes, total)

            yield _arrays(a, b, region, other, tell)
        done += _nbytes(region, a)
    for name in theirs:
        yield Difference(name, "only in the second generation")


def _nbytes(region: Region, generation: Generation) -> int:
    if region.kind in DOCUMENTS:
        return 0
    times = generation.root.owners if region.kind in PER_OWNER else 1
    return region.size * formats.by_name(region.format).itemsize * times


def _unlike(mine: Region, other: Region, a: Generation, b: Generation) -> str | None:
    for what in ("kind", "format", "shape"):
        one, two = getattr(mine, what), getattr(other, what)
        if one != two:
            return f"{what} {one} and {two}"
    if mine.kind in PER_OWNER and a.root.owners != b.root.owners:
        return f"of {a.root.owners} and of {b.root.owners} owners"
    return None


def _arrays(
    a: Generation, b: Generation, region: Region, other: Region, tell: Callable[[int], None]
) -> Difference:
    one, two = StoredArray(a, region), StoredArray(b, other)
    found = Difference(region.name, words=one.size)
    if _named(a, region) == _named(b, other):
        return found
    done = 0
    for key in slices(one.shape, max(1, SLICE // one.dtype.itemsize)):
        part = (*key, ...)
        mine, their = one[part], two[part]
        _count(found, mine, their, key)
        done += mine.nbytes
        tell(done)
    return found


def _named(generation: Generation, region: Region) -> set[tuple[Any, ...]]:
    """The shards of a region by what they hold: equal sets are equal words."""
    own = region.kind in PER_OWNER
    return {
        (held.record.owner if own else None, held.record.piece, held.record.digest)
        for held in generation.helds()
        if held.record.ordinal == region.ordinal
    }


def slices(shape: Sequence[int], words: int) -> Iterator[tuple[slice, ...]]:
    """Yield slices that cut an array in C order into parts of at most `words` words."""
    if math.prod(shape) == 0:
        return
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    if inner > words:
        for i in range(shape[0]):
            for rest in slices(shape[1:], words):
                yield (slice(i, i + 1), *rest)
        return
    step = max(1, words // max(1, inner))
    for start in range(0, shape[0], step):
        yield (slice(start, min(start + step, shape[0])),)


def _count(found: Difference, a: Array, b: Array, key: tuple[slice, ...]) -> None:
    width = a.dtype.itemsize
    flat_a = np.ascontiguousarray(a).reshape(-1)
    flat_b = np.ascontiguousarray(b).reshape(-1)
    unlike = flat_a.view(np.uint8).reshape(-1, width) != flat_b.view(np.uint8).reshape(-1, width)
    at = np.flatnonzero(unlike.any(axis=1))
    if not len(at):
        return
    found.differing += len(at)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(flat_a[at].astype(wide) - flat_b[at].astype(wide))
        apart = apart[np.isfinite(apart)]
    if len(apart):
        found.largest = max(found.largest or 0.0, float(apart.max()))
    if found.first is None:
        word = int(at[0])
        inside = np.unravel_index(word, a.shape) if a.shape else ()
        offsets = [part.start for part in key] + [0] * (len(a.shape) - len(key))
        found.first = tuple(int(i) + offset for i, offset in zip(inside, offsets, strict=True))
        found.values = str(flat_a[word]), str(flat_b[word])
        found.bits = _bits(flat_a[word : word + 1]), _bits(flat_b[word : word + 1])


def _bits(word: Array) -> str:
    little = word.view(np.uint8).tobytes()
    return "0x" + little[::-1].hex()


def _documents(a: Generation, b: Generation, name: str) -> Difference:
    one, two = a.document(name), b.document(name)
    if encode_document(one) == encode_document(two):
        return Difference(name)
    path, mine, theirs = _where(one, two, "$")
    return Difference(name, path=path, values=(mine, theirs))


def _where(a: Any, b: Any, path: str) -> tuple[str, str, str]:
    """Return where two values first differ, and the two sides there."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            if key not in a or key not in b:
                return f"{path}.{key}", _said(a, key), _said(b, key)
            if encode_document(a[key]) != encode_document(b[key]):
                return _where(a[key], b[key], f"{path}.{key}")
    if isinstance(a, list) and isinstance(b, list):
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            if encode_document(x) != encode_document(y):
                return _where(x, y, f"{path}[{i}]")
        return path, f"{len(a)} items", f"{len(b)} items"
    return path, repr(a), repr(b)


def _said(value: dict[str, Any], key: str) -> str:
    return repr(value[key]) if key in value else "nothing"
