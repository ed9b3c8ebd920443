"""Reception: what owner 0 of a star does with the bytes of the others.

A *stream* is one owner's shards joined in the order of their keys; it arrives in slices cut
anywhere. Each chunk is checked against the owner's own digest before the pack is committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from .. import digest
from ..format.inventory import Item
from .shards import Shards
from .writer import PackWriter, changed


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
                part = self._shards[i].part(at, left)
                parts.append(part)
                offset += len(part)
                left -= len(part)
            if left:
                i += 1
        self._i = min(i, max(0, len(self._shards) - 1))
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


class Incoming:
    """One owner's stream as it arrives at owner 0: checked, and written where it belongs."""

    def __init__(self, owner: int, items: Sequence[Item], names: Mapping[int, str], algorithm: str) -> None:
        self.owner = owner
        self.items = items
        self.nbytes = sum(item.nbytes for item in items)
        self._names = names
        self._algorithm = algorithm
        self._i = 0
        self._at = 0
        self._hasher: Any = digest.hasher(algorithm)
        self.received = 0

    def take(self, view: memoryview, writer: PackWriter) -> None:
        """Write the next bytes of the stream. Raises `Refused` (``changed-while-saving``)."""
        self.received += len(view)
        while len(view):
            item = self.items[self._i]
            room = min(digest.CHUNK - self._at % digest.CHUNK, item.nbytes - self._at)
            part, view = view[:room], view[room:]
            self._hasher.update(part)
            writer.pwrite(part, writer.offset_of(item.key) + self._at)
            self._at += len(part)
            if self._at % digest.CHUNK == 0 or self._at == item.nbytes:
                self._end_chunk(item)
            if self._at == item.nbytes:
                self._i, self._at = self._i + 1, 0

    def _end_chunk(self, item: Item) -> None:
        width = digest.SIZES[self._algorithm]
        k = (self._at - 1) // digest.CHUNK
        if self._hasher.digest() != item.chunks[k * width : (k + 1) * width]:
            raise changed(self.owner, self._names[item.ordinal])
        self._hasher = digest.hasher(self._algorithm)
