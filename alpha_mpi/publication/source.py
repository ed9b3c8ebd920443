"""Source: one own piece, with the bytes it has now, as it is digested and written.

Bytes are never copied here when the user's array already is little-endian C order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol

import msgspec
import numpy as np

from .. import digest
from ..errors import Refused
from ..format.inventory import Key
from ..format.pack import Slot
from ..model.formats import JSON, Format, by_name, memory_of, non_finite_in, payload
from ..model.pieces import Interval
from ..model.schema import Region
from .own import Own


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
    """One own piece and its bytes at one moment (`source_of`).

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

    def changed(self) -> Refused:
        """Return the refusal for words that were not the same twice within one save."""
        return changed(self.own.owner, self.region.name)

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


def changed(owner: int, region: str) -> Refused:
    """Return the refusal for words of a region that were not the same twice within one save."""
    return Refused(
        "the words changed between capture and write: nothing may write to them during a save",
        code="changed-while-saving",
        role=owner,
        region=region,
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


def give_up(steps: Iterable[memoryview]) -> None:
    """End steps that are not gone through: an error that is kept would keep their buffers lent."""
    if isinstance(steps, Generator):
        steps.close()
