"""Shards: what one owner writes of one capture, in columns and in the order of their keys.

A role may hold thousands, nearly always small arrays that lie in memory as they are stored. Those are
looked at, digested and written a *few* at a time, out of the arrays themselves; a `Source`, which can
do anything with one shard, is made where it is asked for.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from .. import digest
from ..errors import Refused
from ..format.columns import Pieces
from ..format.inventory import Key
from ..format.pack import Slot
from ..model.formats import JSON, Format, by_name, non_finite_in
from ..model.pieces import Interval
from ..model.schema import Region
from .own import Own
from .source import Source, source_of

#: Local shards of at most this size are digested, and written, together, a chunk's bytes at a time.
SMALL = 256 << 10
#: Most shards of one such batch.
FEW = 1000


class Wanted(NamedTuple):
    """What does not change from save to save of one own piece: see `Source`."""

    region: Region
    own: Own
    nbytes: int  # of a document 0: its length is that of the moment
    finite: bool
    words: Interval | None = None

    @property
    def format(self) -> Format | None:
        """The number format; None for a document."""
        return None if self.region.format == JSON else by_name(self.region.format)


class _Range(NamedTuple):
    """Shards [start, stop), their bytes in all, and which formats are looked at in which of them."""

    start: int
    stop: int
    nbytes: int
    formats: tuple[tuple[Format, tuple[int, ...]], ...]


class _Laid(NamedTuple):
    """What follows from the sizes of all shards, and from which of them are in this process's memory."""

    nbytes: Sequence[int]
    remote: Sequence[int]
    slots: tuple[Slot, ...]
    ranges: tuple[_Range, ...]
    heads: dict[tuple[str, str], list[bytes]]  # by purpose and algorithm: `digest.heads`


class Wants:
    """The own pieces of one owner, in the order of their keys: kept from save to save.

    Attributes
    ----------
    keys : list of Key
    formats : list of str
    pieces : Pieces
    documents : list of int
        Which of them are documents.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = tuple(wanted)
        self.keys: list[Key] = [w.own.key for w in wanted]
        self.formats = [w.region.format for w in wanted]
        ordinals, owners = [w.own.ordinal for w in wanted], [w.own.owner for w in wanted]
        self.pieces = Pieces(ordinals, owners, [w.own.ints for w in wanted])
        self.documents = [i for i, w in enumerate(wanted) if w.format is None]
        self._nbytes = [w.nbytes for w in wanted]
        self._looked = [w.format if w.finite else None for w in wanted]
        #: The dtype of an array that lies in memory as the whole shard is stored, where there is one.
        self._plain = [w.format.plain if w.format and w.words is None else None for w in wanted]
        self._laid: _Laid | None = None
        #: With the shards of a star's other owners (`merged.Merged`), as they were at the last save.
        self.merged: object = None

    def of(self, data: Sequence[Any], chunks: Sequence[bytes | None] | None = None) -> Shards:
        """Return the shards of these words: see `Shards`."""
        nbytes: Sequence[int] = self._nbytes
        if self.documents:
            nbytes = list(nbytes)
            for i in self.documents:
                nbytes[i] = len(data[i])
        remote = [i for i, words in enumerate(data) if not isinstance(words, (np.ndarray, bytes))]
        laid = self._laid
        if laid is None or laid.nbytes != nbytes or laid.remote != remote:
            slots = tuple([Slot(*key, n) for key, n in zip(self.keys, nbytes, strict=True)])
            laid = self._laid = _Laid(nbytes, remote, slots, tuple(self._ranges(nbytes, set(remote))), {})
        return Shards(self, laid, data, chunks)

    def _ranges(self, nbytes: Sequence[int], remote: set[int]) -> Iterator[_Range]:
        """Yield small local shards together, every other one alone."""
        start = total = 0
        for i, size in enumerate(nbytes):
            alone = size > SMALL or i in remote
            if i > start and (alone or total + size > digest.CHUNK or i - start == FEW):
                yield self._range(start, i, total)
                start, total = i, 0
            total += size
            if alone:
                yield self._range(i, i + 1, size)
                start, total = i + 1, 0
        if start < len(nbytes):
            yield self._range(start, len(nbytes), total)

    def _range(self, start: int, stop: int, nbytes: int) -> _Range:
        by_format: dict[int, tuple[Format, list[int]]] = {}
        for i, format in enumerate(self._looked[start:stop]):
            if format is not None and format.floating:
                by_format.setdefault(id(format), (format, []))[1].append(i)
        formats = tuple((format, tuple(where)) for format, where in by_format.values())
        return _Range(start, stop, nbytes, formats)

    def source(self, i: int, data: Any, chunks: bytes | None) -> Source:
        """Return one shard by itself."""
        region, own, _, finite, words = self._wanted[i]
        return source_of(region, own, data, finite, words, chunks)

    def plain(self, start: int, stop: int, data: Sequence[Any]) -> bool:
        """Whether these words, of the shape that is wanted, lie in memory as they are stored, whole."""
        try:
            return all(
                map(operator.is_, [array.dtype for array in data], self._plain[start:stop])
            ) and False not in [array.flags.c_contiguous for array in data]
        except AttributeError:  # a document, or words elsewhere
            return False


class Shards(Sequence[Source]):
    """What one owner writes of one capture. Made anew for every save (`Wants.of`).

    Attributes
    ----------
    wants : Wants
    data : sequence
        The held words of each: an array, words elsewhere, or a document's bytes.
    chunks : sequence of bytes, or None
        The joined chunk digests of each, where they are known already.
    nbytes : sequence of int
    slots : tuple of Slot
    """

    def __init__(
        self, wants: Wants, laid: _Laid, data: Sequence[Any], chunks: Sequence[bytes | None] | None
    ) -> None:
        self.wants, self.data, self.chunks = wants, data, chunks
        self.nbytes, self.slots, self._laid = laid.nbytes, laid.slots, laid

    def __len__(self) -> int:
        return len(self.slots)

    @overload
    def __getitem__(self, i: int) -> Source: ...
    @overload
    def __getitem__(self, i: slice) -> list[Source]: ...
    def __getitem__(self, i: int | slice) -> Source | list[Source]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        return self.wants.source(i, self.data[i], self.chunks[i] if self.chunks is not None else None)

    def few_at_once(self) -> Iterator[Few]:
        """Yield all shards in order: small local ones together, every other one alone."""
        return (Few(self, found) for found in self._laid.ranges)

    def part(self, i: int, at: int, nbytes: int) -> memoryview:
        """Return some bytes of one shard: of words elsewhere a copy."""
        words = self.data[i]
        if isinstance(words, np.ndarray) and self.wants.plain(i, i + 1, [words]):
            return words.data.cast("B")[at : at + nbytes]
        return self[i].part(at, nbytes)

    def tables(self, algorithm: str, check: bool = True) -> list[bytes]:
        """Return the joined chunk digests of each shard; `check`: refuse (``non-finite``) words that
        must be finite and are not. Those that are known are not taken again."""
        found: list[bytes] = []
        for few in self.few_at_once():
            known = [table for table in few.chunks or () if table is not None]
            if len(known) == few.stop - few.start:
                found += known
            elif few.alone:
                found.append(few.sources[0].table(algorithm, check))
            else:
                buffers, _ = few.shown()
                if check:
                    few.check_finite(buffers)
                found += digest.raws(buffers, algorithm)
        return found

    def names(self, tables: Sequence[bytes], algorithm: str) -> list[str]:
        """Return the shard digest of each, from their chunk digests."""
        return digest.of_tables(self._heads("shard", algorithm), tables, algorithm)

    def regions(self, tables: Sequence[bytes], algorithm: str) -> list[str]:
        """Return the region digest of each, from their chunk digests, where they are whole regions."""
        return digest.of_tables(self._heads("region", algorithm), tables, algorithm)

    def _heads(self, purpose: str, algorithm: str) -> list[bytes]:
        known = self._laid.heads
        found = known.get((purpose, algorithm))
        if found is None:
            found = digest.heads(purpose, self.wants.formats, self.nbytes, algorithm)
            known[purpose, algorithm] = found
        return found


class Few:
    """Some shards that follow one another: several small local ones, or one of any kind.

    Attributes
    ----------
    start, stop : int
        Which of them these are.
    total : int
        Their bytes.
    """

    def __init__(self, shards: Shards, found: _Range) -> None:
        self._shards = shards
        self.start, self.stop, self.total, self._formats = found

    @property
    def alone(self) -> bool:
        """Whether it is one shard, which may be of any size and anywhere."""
        return self.stop - self.start == 1

    @property
    def nbytes(self) -> Sequence[int]:
        """The bytes of each."""
        return self._shards.nbytes[self.start : self.stop]

    @property
    def keys(self) -> Sequence[Key]:
        """The key of each."""
        return self._shards.wants.keys[self.start : self.stop]

    @property
    def chunks(self) -> Sequence[bytes | None] | None:
        """The joined chunk digests of each that are known already: of replicated words."""
        chunks = self._shards.chunks
        return None if chunks is None else chunks[self.start : self.stop]

    @functools.cached_property
    def sources(self) -> list[Source]:
        """Each of them by itself."""
        return self._shards[self.start : self.stop]

    def shown(self) -> tuple[list[Any], bool]:
        """Return the bytes of each (not `alone`), and whether all are the user's own memory: what does
        not lie there as it is stored is packed, anew at each call.

        Raises `Refused` (``changed-while-saving``) for an array that is no longer what was captured.
        """
        data, nbytes = self._shards.data[self.start : self.stop], self.nbytes
        buffers, in_place = list(data), True
        if not self._shards.wants.plain(self.start, self.stop, data):
            buffers = [_bytes_of(source) for source in self.sources]
            in_place = all(source.memory is not None for source in self.sources)
        sizes = [buffer.nbytes for buffer in buffers]
        if sizes != nbytes:
            wrong = next(i for i, (a, b) in enumerate(zip(sizes, nbytes, strict=True)) if a != b)
            raise self.sources[wrong].changed()
        return buffers, in_place

    def check_finite(self, buffers: Sequence[Any]) -> None:
        """As `Source.check_finite` of the whole of each: one look for those of a format."""
        for format, where in self._formats:
            same = buffers if len(where) == len(buffers) else [buffers[i] for i in where]
            if non_finite_in(same, format) is not None:
                for source, view in zip(self.sources, buffers, strict=True):
                    source.check_finite(memoryview(view), 0)


def _bytes_of(source: Source) -> memoryview:
    try:
        return source.memory or source.view()
    except (Refused, ValueError) as error:
        raise source.changed() from error
