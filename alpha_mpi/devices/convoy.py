"""Convoy: small arrays that are read one after the other, whose copies go ahead of the reader.

A copy and a wait for each of a thousand biases would be a thousand round trips. In a *convoy* the
arrays behind the one that is read are under way already, many in one pinned buffer with one event.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ..digest import CHUNK
from .ring import ALIGN, lane, ring
from .runtime import Event, Layout, Runtime

#: Buffers that one convoy uses at a time.
AHEAD = 4


class Words(Protocol):
    """What a convoy reads (`words.DeviceWords`)."""

    layout: Layout

    @property
    def nbytes(self) -> int: ...
    def begin(self, host: memoryview, at: int) -> list[Any]:
        """Put the copies of the bytes from `at` on onto the stream."""


class _Batch:
    """One buffer and the arrays in it; `event` is there once nothing more is added."""

    def __init__(self, device: int, buffer: memoryview) -> None:
        self.device, self.buffer = device, buffer
        self.filled = self.left = 0
        self.event: Event | None = None
        self.done = False
        self.keep: list[Any] = []


class Convoy:
    """Arrays in the order in which they will be read: of each pass over them, from any of them on.

    Another order, or an array that is left out, costs time and nothing else. Used by one thread at
    a time; `close` gives every buffer back, after which it can be used again.
    """

    def __init__(self, seam: Runtime, words: Sequence[Words]) -> None:
        self._seam, self._words = seam, words
        self._ring = ring(seam)
        self._open: dict[int, _Batch] = {}  # by device: what is added to
        self._live = 0
        self._arrived = False  # whether a copy of this pass is done
        self._ahead: collections.deque[tuple[int, _Batch, int]] = collections.deque()  # number, where
        self._lock = threading.RLock()

    def read(self, number: int) -> Iterator[memoryview]:
        """Yield all bytes of one array; the view is good until it is asked for the next."""
        with self._lock:
            while self._ahead and self._ahead[0][0] != number:
                self._leave(self._ahead.popleft()[1])
            self._send(number, len(self._words))
            if not self._ahead or self._ahead[0][0] != number:  # lost with what was to go behind it
                self.close()
                self._send(number, number + 1)
            _, batch, at = self._ahead.popleft()
            try:
                if not batch.done:
                    self._sealed(batch).wait()
                    batch.done = self._arrived = True
            except BaseException:
                self._lose(batch)
                raise
        try:
            yield batch.buffer[at : at + self._words[number].nbytes].toreadonly()
        finally:
            with self._lock:
                self._leave(batch)

    def close(self) -> None:
        """Forget what is under way and was not read; where something was, nobody reads the arrays then."""
        with self._lock:
            while self._ahead:
                batch = self._ahead.popleft()[1]
                if self._arrived and not batch.done:  # so the producers are done, and this is soon
                    with contextlib.suppress(*self._seam.errors):
                        self._sealed(batch).wait()
                        batch.done = True
                self._leave(batch)
            self._arrived = False

    def _send(self, number: int, stop: int) -> None:
        """Begin the copies of an array and of those behind it before `stop`, as far as there is room."""
        at = self._ahead[-1][0] + 1 if self._ahead else number
        while at < stop:
            try:
                place = self._place(self._words[at], wait=at == number)
                if place is None:
                    return
            except self._seam.errors:
                if at == number:
                    raise
                return  # it is told when its turn comes, with its name
            self._ahead.append((at, *place))
            at += 1

    def _place(self, words: Words, wait: bool) -> tuple[_Batch, int] | None:
        device, nbytes = words.layout.device, words.nbytes
        batch = self._open.get(device)
        if batch is not None and batch.filled + nbytes > CHUNK:
            self._sealed(batch)
            batch = None
        if batch is None:
            if self._live >= AHEAD and not wait:
                return None
            buffer = self._ring.borrow(device, wait)
            if buffer is None:
                return None
            batch = self._open[device] = _Batch(device, buffer)
            self._live += 1
        at = batch.filled
        batch.left += 1
        try:
            batch.keep += words.begin(batch.buffer[at : at + nbytes], 0)
        except BaseException:
            batch.filled = CHUNK  # part of it may be under way: the place is not used again
            self._leave(batch)
            raise
        batch.filled += -(-nbytes // ALIGN) * ALIGN
        return batch, at

    def _sealed(self, batch: _Batch) -> Event:
        if self._open.get(batch.device) is batch:
            del self._open[batch.device]
        if batch.event is None:
            try:
                batch.event = self._seam.record(batch.device, lane(self._seam, batch.device).stream)
            except BaseException:
                self._lose(batch)
                raise
        return batch.event

    def _leave(self, batch: _Batch) -> None:
        """One array of a batch is done with; the last one gives its buffer back."""
        batch.left -= 1
        if batch.left or batch.device < 0:
            return
        try:
            event = self._sealed(batch)
        except self._seam.errors:
            return  # the buffer is lost, and what was in it is not wanted
        self._live -= 1
        self._ring.give_back(batch.buffer, None if batch.done else event, batch.keep)

    def _lose(self, batch: _Batch) -> None:
        """Give up a batch of which nobody knows whether the device still writes to it."""
        if batch.device < 0:
            return
        if self._open.get(batch.device) is batch:
            del self._open[batch.device]
        batch.device = -1
        self._live -= 1
        self._ring.drop(batch.buffer)
        self._ahead = collections.deque(one for one in self._ahead if one[1] is not batch)
