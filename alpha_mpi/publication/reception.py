"""Reception: what owner 0 of a star does with the bytes of the others.

A *stream* is one owner's shards joined in the order of their keys; it arrives in slices cut
anywhere. Each chunk is checked against the owner's own digest before the pack is committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .. import digest
from ..errors import Refused
from ..format.inventory import Inventory, Key
from .shards import FEW, SMALL, Shards
from .source import changed
from .writer import PackWriter


class Outgoing:
    """The own stream of an owner, read in slices for the gather."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.nbytes = sum(shards.nbytes)
        self._starts = [0, *itertools.accumulate(shards.nbytes)]
        self._i = 0

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Return bytes [offset, offset + nbytes) of the stream; slices are asked for in order."""
        parts: list[memoryview] = []
        while self._i and self._starts[self._i] > offset:
            self._i -= 1
        i, left = self._i, nbytes
        while left and i < len(self._shards):
            at = offset - self._starts[i]
            if at < self._shards.nbytes[i]:
                part = self._shards.part(i, at, left)
                parts.append(part)
                offset += len(part)
                left -= len(part)
            if left:
                i += 1
        self._i = min(i, max(0, len(self._shards) - 1))
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


class Incoming:
    """One owner's stream as it arrives at owner 0: checked, and written where it belongs."""

    def __init__(
        self,
        owner: int,
        keys: Sequence[Key],
        inventory: Inventory,
        names: Mapping[int, str],
        algorithm: str,
    ) -> None:
        self.owner = owner
        self.nbytes = sum(inventory.nbytes)
        self._keys = keys
        self._sizes, self._chunks = inventory.nbytes, inventory.chunks
        self._names = names
        self._algorithm = algorithm
        self._i = 0  # the shard that comes next, or whose bytes come
        self._at = 0
        self._hasher: Any = digest.hasher(algorithm)
        self.received = 0

    def take(self, view: memoryview, writer: PackWriter) -> None:
        """Write the next bytes of the stream. Raises `Refused` (``changed-while-saving``)."""
        self.received += len(view)
        while len(view):
            taken = 0 if self._at else self._take_few(view, writer)
            view = view[taken or self._take_part(view, writer) :]

    def _take_few(self, view: memoryview, writer: PackWriter) -> int:
        """Check and write the small shards that `view` begins with, whole ones of a chunk in all; return
        their bytes."""
        first = i = self._i
        buffers: list[Any] = []
        parts: list[memoryview] = []
        at, begin, end, most = 0, 0, 0, min(len(view), digest.CHUNK)  # in the view; in the pack; bytes
        for size in self._sizes[first : first + FEW]:
            if size > SMALL or at + size > most:
                break
            offset, gap = writer.place_of(self._keys[i])
            if i == first:
                begin = end = offset - gap
            if offset - gap != end:
                break
            parts.append(view[at : at + size])
            buffers += (bytes(gap), parts[-1]) if gap else (parts[-1],)
            at, end, i = at + size, offset + size, i + 1
        if i == first:
            return 0
        found, expected = digest.raws(parts, self._algorithm), self._chunks[first:i]
        if found != expected:
            wrong = [a == b for a, b in zip(found, expected, strict=True)].index(False)
            raise self._changed(first + wrong)
        writer.pwrite(buffers, begin)
        self._i = i
        return at

    def _take_part(self, view: memoryview, writer: PackWriter) -> int:
        """Check and write bytes of one shard, up to the end of a chunk; return how many."""
        i, size = self._i, self._sizes[self._i]
        part = view[: min(digest.CHUNK - self._at % digest.CHUNK, size - self._at)]
        self._hasher.update(part)
        offset, gap = writer.place_of(self._keys[i])
        if self._at or not gap:
            writer.pwrite([part], offset + self._at)
        else:
            writer.pwrite([bytes(gap), part], offset - gap)
        self._at += len(part)
        if self._at % digest.CHUNK == 0 or self._at == size:
            self._end_chunk(i)
        if self._at == size:
            self._i, self._at = i + 1, 0
        return len(part)

    def _end_chunk(self, i: int) -> None:
        width = digest.SIZES[self._algorithm]
        k = (self._at - 1) // digest.CHUNK
        if self._hasher.digest() != self._chunks[i][k * width : (k + 1) * width]:
            raise self._changed(i)
        self._hasher = digest.hasher(self._algorithm)

    def _changed(self, i: int) -> Refused:
        return changed(self.owner, self._names[self._keys[i][0]])
