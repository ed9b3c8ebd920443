"""Direct: words from a device's memory to a file, not by way of the host's, where the store can.

The bytes come to the host all the same, for their digest is taken there; what is saved is the second
half of the way, from pinned memory through the page cache to the disk. A chunk is copied on the
device first, and both ways lead from that copy: so the bytes in the file are those that were
digested, even if somebody writes to the array meanwhile.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..digest import CHUNK
from .gds import File, Future, Memory, NotDirect, open_file
from .ring import DEPTH, Ring, lane, ring
from .runtime import Event, Layout, Runtime, told
from .words import DeviceWords

#: What an offset and a number of bytes must be multiples of.
PAGE = 4096
#: Writes the bytes of a view at an offset by way of the host.
Plain = Callable[[memoryview, int], None]


class Direct:
    """Whether a job writes directly. One for each checkpointer; used by one thread at a time.

    Attributes
    ----------
    reason : str or None
        Why the last file, or a part of it, was not written directly.
    nbytes : int
        Bytes written directly so far.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.nbytes = 0

    def opened(self, fd: int, wrote: Callable[[int], None]) -> DirectFile | None:
        """Open a file by its descriptor; None, and `reason`, where the store cannot.

        `wrote` is told of the bytes written directly.
        """
        try:
            return DirectFile(self, open_file(fd), wrote)
        except NotDirect as error:
            self.reason = str(error)
            return None


class _Chunk(NamedTuple):
    """A chunk on its way to the host."""

    number: int
    event: Event | None
    buffer: memoryview
    nbytes: int
    at: int  # of the words
    place: int  # its copy on the device
    keep: Any


class DirectFile:
    """One file, open for direct writing until `close`."""

    def __init__(self, direct: Direct, file: File, wrote: Callable[[int], None]) -> None:
        self._direct, self._file, self._wrote = direct, file, wrote
        self._broken = self._closed = False
        self._places: dict[int, tuple[int, Any]] = {}

    def close(self) -> None:
        """Close it; a second call does nothing. Called before the file is made durable."""
        self._places.clear()
        if not self._closed:
            self._closed = self._broken = True
            self._file.close()

    def takes(self, offset: int, nbytes: int) -> bool:
        """Return whether any of so many bytes at an offset of the file would be written directly."""
        return not self._broken and nbytes >= CHUNK and offset % PAGE == 0

    def steps(
        self, words: DeviceWords, begin: int, end: int, offset: int, plain: Plain
    ) -> Iterator[memoryview]:
        """As `words.steps`, while byte `begin` is written to `offset` of the file and so on.

        All bytes have been written when it ends: whole chunks directly, where `offset` is a multiple
        of `PAGE`; the last one, and every chunk whose direct write fails or comes short, by `plain`
        (`reason` says why then, and no more is tried in this file). Raises `PeerFailed`
        (``device-failed``), and what `plain` raises.
        """
        base = self._place(words.seam, words.layout.device)
        if base is not None:
            yield from self._steps(words, begin, end, offset, plain, base)
            return
        for view in words.steps(begin, end):
            yield view
            plain(view, offset)
            offset += len(view)

    def _steps(
        self, words: DeviceWords, begin: int, end: int, offset: int, plain: Plain, base: int
    ) -> Iterator[memoryview]:
        seam, device = words.seam, words.layout.device
        lent, queue = ring(seam), lane(seam, device).stream
        coming: collections.deque[_Chunk] = collections.deque()
        going: collections.deque[tuple[Future, _Chunk]] = collections.deque()
        shown: memoryview | None = None
        at, number, arrived = begin, 0, False
        with told(seam, words.region):
            try:
                while at < end or coming or going:
                    # The oldest chunk that is under way still has its place on the device.
                    oldest = min([c.number for c in (*coming, *(c for _, c in going))], default=number)
                    while at < end and number - oldest < DEPTH:
                        buffer = lent.borrow(device, wait=not coming and not going)
                        if buffer is None:
                            break
                        nbytes, place = min(CHUNK, end - at), base + number % DEPTH * CHUNK
                        coming.append(_Chunk(number, None, buffer, nbytes, at, place, None))
                        keep = self._begin(words, at, nbytes, place, buffer, queue)
                        coming[-1] = coming[-1]._replace(event=seam.record(device, queue), keep=keep)
                        at, number = at + nbytes, number + 1
                    if not coming or len(going) > DEPTH // 2:
                        self._arrived(*going.popleft(), offset - begin, plain, lent)
                        continue
                    chunk = coming[0]
                    assert chunk.event is not None
                    chunk.event.wait()
                    arrived = True
                    coming.popleft()
                    shown = chunk.buffer
                    view, target = chunk.buffer[: chunk.nbytes], offset + chunk.at - begin
                    future = self._send(chunk, target)
                    if future is not None:
                        going.append((future, chunk))
                        shown = None
                    yield view.toreadonly()
                    if future is None:
                        plain(view, target)
                        shown = None
                        lent.give_back(chunk.buffer)
            finally:
                if shown is not None:
                    lent.give_back(shown)
                for future, chunk in going:
                    _ended(future)  # it still reads the copy on the device
                    lent.give_back(chunk.buffer)
                for chunk in coming:
                    if chunk.event is None:
                        lent.leave(chunk.buffer, device, chunk.keep)
                    elif arrived:  # so the producer is done, and this is soon
                        lent.end(chunk.buffer, chunk.event, chunk.keep)
                    else:
                        lent.give_back(chunk.buffer, chunk.event, chunk.keep)

    def _place(self, seam: Runtime, device: int) -> int | None:
        """Return memory of a device for the chunks that are under way, kept until `close`; None
        where there is none."""
        if device not in self._places:
            try:
                # Not in the order of a stream: cuFile knows nothing of such memory.
                self._places[device] = seam.room(device, DEPTH * CHUNK, None)
            except seam.errors as error:
                self._give_up(f"no memory on the device: {type(error).__name__}: {error}")
                return None
        return self._places[device][0]

    def _begin(
        self, words: DeviceWords, at: int, nbytes: int, place: int, buffer: memoryview, queue: Any
    ) -> list[Any]:
        """Put the copies of a chunk onto the stream: to its place on the device, from there to the host."""
        kept, done = [], 0
        for box in words.boxes(at, at + nbytes):
            kept.append(words.seam.copy(place + done, box, queue))
            done += int(np.prod(box.shape)) * box.dtype.itemsize
        packed = Layout(place, np.dtype(np.uint8), (nbytes,), (1,), words.layout.device)
        kept.append(words.seam.to_host(buffer[:nbytes], packed, queue))
        return kept

    def _send(self, chunk: _Chunk, target: int) -> Future | None:
        if self._broken or chunk.nbytes != CHUNK or target % PAGE:
            return None
        try:
            return self._file.pwrite(Memory(chunk.place, chunk.nbytes), chunk.nbytes, target)
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return None

    def _arrived(self, future: Future, chunk: _Chunk, shift: int, plain: Plain, lent: Ring) -> None:
        """Wait for a direct write. What did not arrive is written by way of the host."""
        try:
            found = _ended(future)
            if found == chunk.nbytes:
                self._direct.nbytes += found
                self._wrote(found)
            else:
                what = found if isinstance(found, str) else f"{found} of {chunk.nbytes} bytes were written"
                self._give_up(what)
                plain(chunk.buffer[: chunk.nbytes], chunk.at + shift)
        finally:
            lent.give_back(chunk.buffer)

    def _give_up(self, reason: str) -> None:
        if not self._broken:
            self._broken = True
            self._direct.reason = reason[:300]


def _ended(future: Future) -> int | str:
    """Return the bytes that a write has written, or how it failed."""
    try:
        return int(future.get())
    except Exception as error:  # of whatever kind: the bytes are here still
        return f"{type(error).__name__}: {error}"
