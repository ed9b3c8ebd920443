"""Staging: where validated bytes wait until everybody agrees; and sinks, where they go then.

A *staging* lends memory up to a ceiling, from blocks that it keeps: a page touched for the first
time costs more than a copy. A *sink* writes words to one destination array, whatever its strides
and byte order.
"""

from __future__ import annotations

import mmap
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..model import formats
from ..model.formats import Format
from .blocks import Block

Array = npt.NDArray[Any]

#: Default ceiling of staged bytes per process.
CEILING = 1 << 30
#: Bytes of one block, and what lent parts are rounded up to.
BLOCK = 64 << 20
ALIGN = 64


class Staging:
    """Lends memory, `ceiling` bytes at most; `clear` takes all of it back but keeps the pages."""

    def __init__(self, ceiling: int = CEILING) -> None:
        self.ceiling = max(0, ceiling)
        self.lent = 0
        self._free: list[memoryview] = []
        self._used: list[memoryview] = []
        self._rest = memoryview(b"")
        self._owned = 0

    def take(self, nbytes: int) -> memoryview | None:
        """Return memory of `nbytes`, or None if the ceiling leaves no room for it."""
        size = -(-nbytes // ALIGN) * ALIGN
        if len(self._rest) < size and not self._open(size):
            return None
        part, self._rest = self._rest[:nbytes], self._rest[size:]
        self.lent += size
        return part

    def _open(self, size: int) -> bool:
        at = next((i for i, block in enumerate(self._free) if len(block) >= size), None)
        if at is not None:
            block = self._free.pop(at)
        else:
            room = self.ceiling - self._owned
            if size > room:
                return False
            # Not from numpy: it asks for huge pages, whose first touch costs twice as much. And private:
            # the first touch of a shared page, which is Python's default here, costs a third more.
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            block = memoryview(mmap.mmap(-1, max(size, min(BLOCK, room)), flags=private))
            self._owned += len(block)
        self._used.append(block)
        self._rest = block
        return True

    def clear(self) -> None:
        """Take everything back. Nothing lent before may be used any more."""
        self._free += self._used
        self._used = []
        self._rest = memoryview(b"")
        self.lent = 0

    def free(self) -> None:
        """Take everything back and give the memory up."""
        self.clear()
        self._free = []
        self._owned = 0


class Remote(Protocol):
    """Words outside of this process's memory, such as on a GPU (`devices.words`), to be filled in
    place; they lie one behind the other."""

    def put(self, data: memoryview, at: int) -> None:
        """Begin to write consecutive words' bytes from byte `at` on."""

    def put_block(self, words: Array, at: int, strides: tuple[int, ...]) -> None:
        """Begin to write words where strides lead from word `at` on."""

    def fill(self, array: Array) -> None:
        """Write a whole array."""

    def settle(self) -> None:
        """Return when everything begun is written."""


class RemoteSink:
    """As `Sink`, for remote words; they are there once settled."""

    def __init__(self, words: Remote) -> None:
        self._words = words

    def put(self, data: memoryview, at: int, format: Format) -> None:
        """As `Sink.put`."""
        self._words.put(data, at)

    def put_block(self, block: Block, words: Array, first: int) -> None:
        """As `Sink.put_block`."""
        source = _strided(
            words.view(np.uint8), words.dtype, block.shape, block.source - first, block.source_strides
        )
        self._words.put_block(source, block.destination, block.destination_strides)


def sink_of(array: Array | Remote) -> Sink | RemoteSink:
    """Return what writes to an array, wherever it is."""
    return Sink(array) if isinstance(array, np.ndarray) else RemoteSink(array)


class Sink:
    """Writes words to one array; word i is the i-th in C order, whatever the array's strides."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self._wire = bytes_of(array)
        self._memory: Array | None = None  # of a contiguous array; made when a block is written

    def put(self, data: memoryview, at: int, format: Format) -> None:
        """Write consecutive words, as the store's bytes, from byte `at` of the words on."""
        if self._wire is not None:
            self._wire[at : at + len(data)] = data
            return
        words, first = formats.words_of(data, format), at // format.itemsize
        if self.array.flags.c_contiguous:
            self.array.reshape(-1)[first : first + len(words)] = words
        else:
            self.array.flat[first : first + len(words)] = words

    def put_block(self, block: Block, words: Array, first: int) -> None:
        """Write a block out of `words`, which begins with the source's word `first`."""
        source = _strided(
            words.view(np.uint8), words.dtype, block.shape, block.source - first, block.source_strides
        )
        if self._memory is None and self.array.flags.c_contiguous and self.array.size:
            self._memory = self.array.reshape(-1).view(np.uint8)
        if self._memory is not None:
            _strided(
                self._memory, self.array.dtype, block.shape, block.destination, block.destination_strides
            )[...] = source
            return
        *strides, step = block.destination_strides
        for index in np.ndindex(block.shape[:-1]):
            at = block.destination + sum(k * s for k, s in zip(index, strides, strict=True))
            stop = at + (block.shape[-1] - 1) * step + 1
            self.array.flat[at:stop:step] = source[index]


def _strided(
    memory: Array, dtype: np.dtype[Any], shape: tuple[int, ...], at: int, strides: tuple[int, ...]
) -> Array:
    """A view of some words of `memory` (bytes); numpy refuses one that would leave it."""
    size = dtype.itemsize
    view: Array = np.ndarray(shape, dtype, memory, at * size, tuple(s * size for s in strides))
    return view


def fresh(shape: tuple[int, ...], format: str) -> Array:
    """Return a new array, not initialised, in native byte order."""
    return np.empty(shape, formats.by_name(format).dtype)


def bytes_of(array: Array) -> memoryview | None:
    """Return the array's memory if its bytes are those of the store: contiguous, little-endian."""
    dtype = array.dtype
    little = np.little_endian if dtype.byteorder == "=" else dtype.byteorder in "<|"
    if not little or not array.flags.c_contiguous or not array.size:
        return None
    if dtype.kind in "biuf" and dtype.isbuiltin == 1:  # what nearly every array is: words that Python knows
        return memoryview(array.data).cast("B")
    return array.reshape(-1).view(np.uint8).data
