"""The ring: pinned buffers of one chunk each, of bounded number, lent and given back.

Pinned memory is what a device can copy to and from while the processor works; it is dear to make
and taken from everybody, so there is one ring per process and it is kept. A *lane* is the one stream
on which the words of a device are staged.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import Any

from ..digest import CHUNK
from .runtime import Event, Layout, Runtime

#: Buffers of the ring, and how many of them one reader uses at a time.
BUFFERS = 32
DEPTH = 8
#: Parts of one buffer begin at multiples of so many bytes.
ALIGN = 64


class Ring:
    """Lends buffers of `CHUNK` bytes, at most `BUFFERS` at a time."""

    def __init__(self, seam: Runtime) -> None:
        self._seam = seam
        self._made = 0
        self._free: list[memoryview] = []
        #: Given back while the device still reads them: free after the event.
        self._busy: collections.deque[tuple[Event, memoryview, Any]] = collections.deque()
        #: Dropped: kept for good, so that nobody is lent memory that a device may still write to.
        self._dropped: list[memoryview] = []
        self._changed = threading.Condition()

    def borrow(self, device: int, wait: bool = True) -> memoryview | None:
        """Return a buffer, for words of a device; without `wait` None where all are lent out."""
        with self._changed:
            while True:
                if self._free:
                    return self._free.pop()
                if self._made < BUFFERS:
                    buffer = self._seam.pinned(CHUNK, device)
                    self._made += 1
                    return buffer
                if not wait:
                    return None
                if self._busy:
                    event, buffer, _ = self._busy.popleft()
                    break
                self._changed.wait()
        try:
            event.wait()
        except BaseException:
            self.drop(buffer)
            raise
        return buffer

    def give_back(self, buffer: memoryview, event: Event | None = None, keep: Any = None) -> None:
        """Take a buffer back; with an event the device uses it, and `keep`, until then."""
        with self._changed:
            if event is None:
                self._free.append(buffer)
            else:
                self._busy.append((event, buffer, keep))
            self._changed.notify()

    def leave(self, buffer: memoryview, device: int, keep: Any = None) -> None:
        """Take back a buffer whose copies failed half-way: free after what is on the device's lane now."""
        try:
            event = self._seam.record(device, lane(self._seam, device).stream)
        except BaseException as error:
            self.drop(buffer)
            if not isinstance(error, self._seam.errors):
                raise
        else:
            self.give_back(buffer, event, keep)

    def end(self, buffer: memoryview, event: Event, keep: Any) -> None:
        """Take back a buffer nobody reads, once its copies are done: they read the user's array no more."""
        with contextlib.suppress(*self._seam.errors):
            event.wait()
        self.give_back(buffer, event, keep)

    def drop(self, buffer: memoryview) -> None:
        """Lend a buffer no more: nobody knows whether the device still uses it."""
        with self._changed:
            self._dropped.append(buffer)
            self._made -= 1
            self._changed.notify()


class Lane:
    """The one stream on which the words of a device are staged, and what was begun on it.

    Small writes share a buffer; `settle` waits once for all writes of whichever array.
    """

    def __init__(self, seam: Runtime, lent: Ring, device: int) -> None:
        self._seam, self._ring, self._device = seam, lent, device
        self.stream = seam.stream(device)
        self._lock = threading.RLock()
        self._open: memoryview | None = None  # the buffer that small writes share, filled so far
        self._filled = 0
        self._keep: list[Any] = []
        self._begun = self._settled = 0

    def send(self, words: Layout, data: memoryview) -> None:
        """Put on the stream: write `data`, at most a chunk, where `words` are. `data` may be used again."""
        with self._lock:
            nbytes = len(data)
            if self._open is None or self._filled + nbytes > CHUNK:
                self._close()
                self._open = self._ring.borrow(self._device)
            assert self._open is not None
            room = self._open[self._filled : self._filled + nbytes]
            try:
                room[:] = data
                self._keep.append(self._seam.to_device(words, room, self.stream))
            except BaseException:
                with contextlib.suppress(*self._seam.errors):
                    self._close()  # what was put before is under way
                raise
            self._filled += -(-nbytes // ALIGN) * ALIGN
            self._begun += 1

    def settle(self) -> None:
        """Return when all that was sent is there; one wait for any number of arrays."""
        with self._lock:
            self._close()
            begun = self._begun
            if self._settled >= begun:
                return
            event = self._seam.record(self._device, self.stream)
        event.wait()
        with self._lock:
            self._settled = max(self._settled, begun)

    def _close(self) -> None:
        if self._open is None:
            return
        buffer, keep = self._open, self._keep
        self._open, self._filled, self._keep = None, 0, []
        try:
            event = self._seam.record(self._device, self.stream)
        except BaseException:
            self._ring.drop(buffer)
            raise
        self._ring.give_back(buffer, event, keep)


_rings: dict[int, tuple[Runtime, Ring, dict[int, Lane]]] = {}
_lock = threading.Lock()


def _of(seam: Runtime) -> tuple[Runtime, Ring, dict[int, Lane]]:
    with _lock:
        found = _rings.get(id(seam))
        if found is None or found[0] is not seam:
            found = _rings[id(seam)] = (seam, Ring(seam), {})
        return found


def ring(seam: Runtime) -> Ring:
    """Return the one ring of a runtime."""
    return _of(seam)[1]


def lane(seam: Runtime, device: int) -> Lane:
    """Return the one lane to a device."""
    _, lent, lanes = _of(seam)
    with _lock:
        if device not in lanes:
            lanes[device] = Lane(seam, lent, device)
        return lanes[device]


def stream(seam: Runtime, device: int) -> Any:
    """Return the one stream on which the words of a device are staged."""
    return lane(seam, device).stream
