"""Capture: one owner's words at one moment, read but not yet written.

A *source* is one own piece with the bytes it has now; a *copy* is a piece of a replica group that
another owner writes, of which only the digest matters. Bytes are never copied here when the
user's array already is little-endian C order.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from .. import digest
from ..errors import Refused
from ..format.manifest import DeviceRecord
from ..format.pack import Slot
from ..model.formats import JSON, Format, by_name, memory_of, non_finite_in, payload
from ..model.layout import Irregular, Rule
from ..model.pieces import Interval, Piece, size, start
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


class DirectFile(Protocol):
    """A pack that is written to from where remote words are (`devices.direct`)."""

    def takes(self, offset: int, nbytes: int) -> bool:
        """Return whether any of so many bytes at an offset would be."""

    def steps(
        self, words: Any, begin: int, end: int, offset: int, plain: Callable[[memoryview, int], None]
    ) -> Iterator[memoryview]:
        """Yield bytes of words as `Remote.steps`; `plain` writes those that are not written directly."""

    def close(self) -> None:
        """Close it, before the pack is made durable."""


class Source(msgspec.Struct, gc=False):
    """One own piece and its bytes. Made anew for every shard of every save (`source_of`).

    Attributes
    ----------
    region : Region
    own : Own
    data : array, Remote or bytes
        The held words, or a document's bytes.
    slot : Slot
        The shard's key and byte count.
    format : Format or None
        The number format; None for a document.
    finite : bool
        Whether words that are infinite or not a number are refused.
    words : Interval or None
        The part of `data` that is own, where not all of it is.
    chunks : bytes or None
        The joined chunk digests, where known already.
    memory : memoryview or None
        The shard's bytes, where the owner's own array lies in memory like them: then it is looked
        at and written as it is, and nothing is copied.
    """

    region: Region
    own: Own
    data: Any
    slot: Slot
    format: Format | None
    finite: bool
    words: Interval | None = None
    chunks: bytes | None = None
    memory: memoryview | None = None

    @property
    def key(self) -> Key:
        """The shard's key within its role."""
        return self.own.key

    @property
    def nbytes(self) -> int:
        """Bytes of the shard."""
        return self.slot.nbytes

    @property
    def local(self) -> bool:
        """Whether the words are in this process's memory."""
        return self.memory is not None or self.format is None or isinstance(self.data, np.ndarray)

    def view(self) -> memoryview:
        """Return a local shard's bytes; the user's own memory wherever it has the right layout."""
        if self.memory is not None:
            return self.memory
        assert self.format is not None
        view, size = payload(self.data, self.format), self.format.itemsize
        return view if self.words is None else view[self.words.start * size : self.words.stop * size]

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

    def steps_into(
        self, file: DirectFile, offset: int, plain: Callable[[memoryview, int], None]
    ) -> Iterator[memoryview]:
        """As `steps` of remote words, which are written to an offset of a file meanwhile."""
        begin = self._begin
        return file.steps(self.data, begin, begin + self.nbytes, offset, plain)

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
        bad = non_finite_in((view,), format)
        if bad is not None:
            index = at // format.itemsize + bad[1] + (self.words.start if self.words else 0)
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


def source_of(
    region: Region,
    own: Own,
    data: Any,
    finite: bool,
    words: Interval | None = None,
    chunks: bytes | None = None,
) -> Source:
    """Return the source of one own piece."""
    if region.format == JSON:
        slot = Slot(*own.key, len(data))
        return Source(region, own, data, slot, None, False, words, chunks, memoryview(data))
    format = by_name(region.format)
    first, stop = (0, int(data.size)) if words is None else (words.start, words.stop)
    memory = memory_of(data, format) if isinstance(data, np.ndarray) else None
    if memory is not None:
        memory = memory[first * format.itemsize : stop * format.itemsize]
    slot = Slot(*own.key, (stop - first) * format.itemsize)
    return Source(region, own, data, slot, format, finite and format.floating, words, chunks, memory)


def check_all_finite(sources: Sequence[Source], views: Sequence[memoryview]) -> None:
    """As `Source.check_finite` of each, its whole shard in `views`: one look for those of a format."""
    judged = [source.format if source.finite else None for source in sources]
    for format in {id(format): format for format in judged}.values():
        if format is None:
            continue
        same = views
        if judged.count(format) != len(judged):
            same = [view for view, own in zip(views, judged, strict=True) if own is format]
        if non_finite_in(same, format) is not None:
            for source, view in zip(sources, views, strict=True):
                source.check_finite(view, 0)


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


def _moved(owner: int, region: Region) -> Refused:
    return Refused(
        "the pieces changed between the check of the layout and the capture: nothing may change them "
        "during a save",
        code="changed-while-saving",
        role=owner,
        region=region.name,
    )


class _Wanted(NamedTuple):
    """What does not change from save to save of one own piece: see `Source`."""

    region: Region
    own: Own
    key: tuple[int, int]  # of what is held: ordinal, first word
    format: Format | None
    nwords: int
    slot: Slot
    finite: bool


class Taking:
    """How one owner's words are captured: what does not change from save to save.

    `own` are its own pieces; `rules` and `finite` have one entry per region.
    """

    def __init__(
        self, schema: Schema, rules: Sequence[Rule | None], own: Sequence[Own], finite: Sequence[bool]
    ) -> None:
        self.own = own
        self._schema = schema
        self._finite = finite
        regions = zip(schema.regions, rules, strict=True)
        self._replicated = [region for region, rule in regions if is_replicated(region, rule)]
        self._irregular = {i for i, rule in enumerate(rules) if isinstance(rule, Irregular)}
        self._everywhere = everywhere = {region.ordinal for region in self._replicated}
        self._wanted: list[_Wanted] = []
        for o in own:
            region = schema.regions[o.ordinal]
            format = None if region.format == JSON else by_name(region.format)
            words = region.size if o.piece is None else size(o.piece)
            slot = Slot(*o.key, words * format.itemsize if format else 0)
            must = finite[o.ordinal] and format is not None and format.floating
            key = (o.ordinal, 0 if o.ordinal in everywhere else o.start)
            self._wanted.append(_Wanted(region, o, key, format, words, slot, must))
        #: Keys of what is held and either own or replicated; other pieces are copies.
        self._known = {w.key for w in self._wanted} | {(ordinal, 0) for ordinal in everywhere}
        # Of the last capture: the pieces held, their keys, where among them each wanted one is, and
        # which are copies.
        self._pieces: list[Piece | None] = []
        self._ordinals: list[int] = []
        self._keys: list[tuple[int, int]] = []
        self._places: list[int] = []
        self._copies: list[int] = []

    def _locate(self, held: Sequence[HeldWords]) -> None:
        """Find the keys of what is held; nearly always those of the last capture, the very pieces.

        Raises `Refused` (``changed-while-saving``) where the pieces held are not those that the
        layout check decided on: their words would be written as those of other places.
        """
        pieces, ordinals = [h.piece for h in held], [h.ordinal for h in held]
        if ordinals == self._ordinals and all(map(operator.is_, pieces, self._pieces)):
            return
        shapes = [region.shape for region in self._schema.regions]
        keys = [(o, start(piece, shapes[o])) for o, piece in zip(ordinals, pieces, strict=True)]
        at = {key: i for i, key in enumerate(keys)}
        for wanted in self._wanted:
            found = at.get(wanted.key)
            split = wanted.region.ordinal in self._everywhere  # a part of what is held may be own
            if found is None or not (split or pieces[found] == wanted.own.piece):
                raise _moved(wanted.own.owner, wanted.region)
        if self._irregular:  # nobody has copies there: all that is held is own, and held once
            for i, key in enumerate(keys):
                if key[0] in self._irregular and (key not in self._known or at[key] != i):
                    raise _moved(held[i].owner, self._schema.regions[key[0]])
        self._keys = keys
        self._copies = [i for i, key in enumerate(keys) if key not in self._known]
        self._places = [at[wanted.key] for wanted in self._wanted]
        self._pieces, self._ordinals = pieces, ordinals

    def take(
        self, held: Sequence[HeldWords], algorithm: str, devices: tuple[DeviceRecord, ...] = ()
    ) -> Capture:
        """Return the capture of the words held now.

        Called once per save by every owner, before anything is sent. Raises `Refused`:
        ``non-finite`` for replicated words, which every owner looks at, ``changed-while-saving``
        where an irregular region's pieces are no longer those of the layout check.
        """
        self._locate(held)
        tables: dict[int, bytes] = {}
        replicas = []
        if self._replicated:
            have = dict(zip(self._keys, held, strict=True))
        for region in self._replicated:
            words = have.get((region.ordinal, 0))
            nbytes, table = 0, b""
            if words is not None:  # else no words at all: shape with a zero
                own = Own(region.ordinal, words.owner, 0, None)
                whole = source_of(region, own, words.data, self._finite[region.ordinal])
                nbytes, table = whole.nbytes, whole.table(algorithm)
            tables[region.ordinal] = table
            replicas.append((region.ordinal, digest.region(region.format, nbytes, table, algorithm)))
        sources = []
        for (region, own, _, format, nwords, slot, finite), at in zip(
            self._wanted, self._places, strict=True
        ):
            data = held[at].data
            if own.ordinal in tables:
                sources.append(_of_replicated(region, own, data, tables[own.ordinal], algorithm))
            elif format is not None and data.size == nwords:
                memory = memory_of(data, format) if isinstance(data, np.ndarray) else None
                sources.append(Source(region, own, data, slot, format, finite, None, None, memory))
            else:
                sources.append(source_of(region, own, data, finite))
        copies = []
        for at in self._copies:
            key, h = self._keys[at], held[at]
            region = self._schema.regions[key[0]]
            if region.format == JSON or not np.size(h.data):
                continue
            copy = source_of(region, Own(region.ordinal, h.owner, key[1], h.piece), h.data, False)
            table = copy.table(algorithm)
            copies.append((region.ordinal, digest.shard(region.format, copy.nbytes, table, algorithm)))
        return Capture(tuple(sources), tuple(replicas), tuple(sorted(copies)), devices)


def _of_replicated(region: Region, own: Own, data: Any, table: bytes, algorithm: str) -> Source:
    """Return the source of the part of replicated words that is own, whose digests are known."""
    if not isinstance(own.piece, Interval):
        return source_of(region, own, data, False, None, table)
    width, itemsize = digest.SIZES[algorithm], by_name(region.format).itemsize
    first = own.piece.start * itemsize // digest.CHUNK
    last = digest.chunk_count(own.piece.stop * itemsize)
    return source_of(region, own, data, False, own.piece, table[first * width : last * width])
