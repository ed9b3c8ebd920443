"""Capture: one owner's words at one moment, read but not yet written.

A *source* is one own piece with the bytes it has now; a *copy* is a piece of a replica group that
another owner writes, of which only the digest matters. Bytes are never copied here when the
user's array already is little-endian C order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from .. import digest
from ..errors import Refused
from ..format.manifest import DeviceRecord
from ..model.formats import JSON, Format, by_name, first_non_finite, payload, words_of
from ..model.layout import Rule
from ..model.pieces import Interval, Piece, start
from ..model.schema import Region, Schema
from .own import Own, is_replicated

#: One shard's key within a role.
Key = tuple[int, int, int]


class HeldWords(Protocol):
    """What an owner holds of one region now: an array, or a document's bytes."""

    @property
    def ordinal(self) -> int: ...
    @property
    def owner(self) -> int: ...
    @property
    def piece(self) -> Piece | None: ...
    @property
    def data(self) -> Any: ...


class Remote(Protocol):
    """Words outside of this process's memory, such as on a GPU (`devices.words`)."""

    @property
    def size(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def steps(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield bytes [begin, end) in C order, a chunk at a time, each good until the next."""

    def copy(self, begin: int, end: int) -> memoryview:
        """Return bytes [begin, end) in memory of their own."""


class Source(msgspec.Struct, gc=False):
    """One own piece and its bytes. Made anew for every shard of every save.

    Attributes
    ----------
    region : Region
    own : Own
    data : array, Remote or bytes
        The held words, or a document's bytes.
    finite : bool
        Whether words that are infinite or not a number are refused.
    words : Interval or None
        The part of `data` that is own, where not all of it is.
    chunks : bytes or None
        The joined chunk digests, where known already.
    format : Format or None
        The number format; None for a document.
    nbytes : int
        Bytes of the shard.
    """

    region: Region
    own: Own
    data: Any
    finite: bool
    words: Interval | None = None
    chunks: bytes | None = None
    format: Format | None = None
    nbytes: int = 0

    def __post_init__(self) -> None:
        if self.region.format == JSON:
            self.finite, self.nbytes = False, len(self.data)
        else:
            format = self.format = by_name(self.region.format)
            words = self.words
            size = int(self.data.size) if words is None else words.stop - words.start
            self.nbytes = size * format.itemsize
            self.finite = self.finite and format.floating

    @property
    def key(self) -> Key:
        """The shard's key within its role."""
        return self.own.key

    @property
    def local(self) -> bool:
        """Whether the words are in this process's memory."""
        return self.format is None or isinstance(self.data, np.ndarray)

    def view(self) -> memoryview:
        """Return a local shard's bytes; the user's own memory wherever it has the right layout."""
        format = self.format
        if format is None:
            return memoryview(self.data)
        view = payload(self.data, format)
        if self.words is not None:
            view = view[self.words.start * format.itemsize : self.words.stop * format.itemsize]
        return view

    def steps(self) -> Iterable[memoryview]:
        """Return the shard's bytes chunk by chunk; of remote words each is good until the next."""
        if not self.local:
            begin = self._begin
            steps: Iterator[memoryview] = self.data.steps(begin, begin + self.nbytes)
            return steps
        view = self.view()
        if self.nbytes <= digest.CHUNK:
            return (view,) if self.nbytes else ()
        return (view[at : at + digest.CHUNK] for at in range(0, len(view), digest.CHUNK))

    def part(self, at: int, nbytes: int) -> memoryview:
        """Return some bytes of the shard: of remote words a copy."""
        if self.local:
            return self.view()[at : at + nbytes]
        begin, end = self._begin + at, self._begin + min(at + nbytes, self.nbytes)
        found: memoryview = self.data.copy(begin, end)
        return found

    def table(self, algorithm: str, check: bool = True) -> bytes:
        """Return the joined chunk digests; `check`: refuse words that must be finite and are not."""
        tables: list[bytes] = []
        steps = self.steps()
        try:
            for view in steps:
                if check:
                    self.check_finite(view, len(tables) * digest.CHUNK)
                tables.append(digest.raw(view, algorithm))
        except BaseException:
            give_up(steps)
            raise
        return b"".join(tables)

    @property
    def _begin(self) -> int:
        format, words = self.format, self.words
        return 0 if words is None or format is None else words.start * format.itemsize

    def check_finite(self, view: memoryview, at: int) -> None:
        """Refuse (``non-finite``) words that are infinite or not a number in `view`, which begins
        at byte `at` of the shard. The index named is that of the word in the owner's array."""
        format = self.format
        if not self.finite or format is None:
            return
        words = words_of(view, format)
        if format.itemsize > 2 and np.isfinite(words).all():
            return
        bad = first_non_finite(words)
        if bad is not None:
            index = at // format.itemsize + bad + (self.words.start if self.words else 0)
            shape = np.shape(self.data)
            place = tuple(int(i) for i in np.unravel_index(index, shape)) if shape else ()
            raise Refused(
                "a word is infinite or not a number (declare the region with finite=False if it may be)",
                code="non-finite",
                role=self.own.owner,
                region=self.region.name,
                expected="finite words",
                found=f"word {index}, index {place} of the owner's array",
            )


def give_up(steps: Iterable[memoryview]) -> None:
    """End steps that are not gone through: an error that is kept would keep their buffers lent."""
    if isinstance(steps, Generator):
        steps.close()


@dataclasses.dataclass(frozen=True)
class Capture:
    """One owner's words at one moment: what it writes, and digests of what it only compares.

    `replicas` lists (ordinal, region digest) of every replicated region, `copies` (ordinal, piece
    digest) of the pieces another owner of the same group writes, `devices` those on which the words
    lie, where they are to be recorded.
    """

    sources: tuple[Source, ...]
    replicas: tuple[tuple[int, str], ...]
    copies: tuple[tuple[int, str], ...]
    devices: tuple[DeviceRecord, ...] = ()


def take(
    schema: Schema,
    rules: Sequence[Rule | None],
    own: Sequence[Own],
    held: Iterable[HeldWords],
    finite: Sequence[bool],
    algorithm: str,
    devices: tuple[DeviceRecord, ...] = (),
) -> Capture:
    """Return the capture of one owner from the words it holds now.

    Called once per save by every owner, before anything is sent. Raises `Refused`
    (``non-finite``) for replicated words, which every owner looks at.
    """
    have: dict[tuple[int, int], HeldWords] = {}
    for h in held:
        have[h.ordinal, start(h.piece, schema.regions[h.ordinal].shape)] = h
    tables: dict[int, bytes] = {}
    replicas = []
    for region, rule in zip(schema.regions, rules, strict=True):
        if not is_replicated(region, rule):
            continue
        words = have.get((region.ordinal, 0))
        nbytes, table = 0, b""
        if words is not None:  # else no words at all: shape with a zero
            own_ = Own(region.ordinal, words.owner, 0, None)
            whole = Source(region, own_, words.data, finite[region.ordinal])
            nbytes, table = whole.nbytes, whole.table(algorithm)
        tables[region.ordinal] = table
        replicas.append((region.ordinal, digest.region(region.format, nbytes, table, algorithm)))
    sources, written = [], set()
    width = digest.SIZES[algorithm]
    for o in own:
        region = schema.regions[o.ordinal]
        if o.ordinal in tables:
            words = have[o.ordinal, 0]
            if isinstance(o.piece, Interval):
                size = by_name(region.format).itemsize
                first = o.piece.start * size // digest.CHUNK
                last = digest.chunk_count(o.piece.stop * size)
                chunk = tables[o.ordinal][first * width : last * width]
                sources.append(Source(region, o, words.data, False, o.piece, chunk))
            else:
                sources.append(Source(region, o, words.data, False, None, tables[o.ordinal]))
        else:
            words = have[o.ordinal, o.start]
            sources.append(Source(region, o, words.data, finite[o.ordinal]))
        written.add((o.ordinal, o.start))
    copies = []
    for (ordinal, at), h in have.items():
        region = schema.regions[ordinal]
        if ordinal in tables or (ordinal, at) in written or region.format == JSON:
            continue
        if not np.size(h.data):
            continue
        copy = Source(region, Own(ordinal, h.owner, at, h.piece), h.data, False)
        copies.append((ordinal, digest.shard(region.format, copy.nbytes, copy.table(algorithm), algorithm)))
    return Capture(tuple(sources), tuple(replicas), tuple(sorted(copies)), devices)
