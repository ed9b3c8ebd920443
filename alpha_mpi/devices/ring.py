"""The ring: pinned buffers of one chunk each, of bounded number, lent and given back.

Pinned memory is what a device can copy to and from while the processor works; it is dear to make
and taken from everybody, so there is one ring per process and it is kept.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

from ..digest import CHUNK
from .runtime import Event, Runtime

#: Buffers of the ring, and how many of them one reader uses at a time.
BUFFERS = 32
DEPTH = 8


class Ring:
    """Lends buffers of `CHUNK` bytes, at most `BUFFERS` at a time."""

    def __init__(self, seam: Runtime) -> None:
        self._seam = seam
        self._made = 0
        self._free: list[memoryview] = []
        #: Given back while the device still reads them: free after the event.
        self._busy: collections.deque[tuple[Event, memoryview, Any]] = collections.deque()
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
            self.drop()
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

    def drop(self) -> None:
        """Forget a lent buffer of which nobody knows whether the device still uses it."""
        with self._changed:
            self._made -= 1
            self._changed.notify()


_rings: dict[int, tuple[Runtime, Ring, dict[int, Any]]] = {}
_lock = threading.Lock()


def _of(seam: Runtime) -> tuple[Runtime, Ring, dict[int, Any]]:
    with _lock:
        found = _rings.get(id(seam))
        if found is None or found[0] is not seam:
            found = _rings[id(seam)] = (seam, Ring(seam), {})
        return found


def ring(seam: Runtime) -> Ring:
    """Return the one ring of a runtime."""
    return _of(seam)[1]


def stream(seam: Runtime, device: int) -> Any:
    """Return the one stream on which the words of a device are staged."""
    streams = _of(seam)[2]
    with _lock:
        if device not in streams:
            streams[device] = seam.stream(device)
        return streams[device]
