"""Snapshot: copies of a capture's device words on their own devices, to be staged from at leisure.

The copies come after what the producers had begun, and what they begin next comes after the copies.
So from the moment a snapshot is *ordered* the arrays may change again, although nothing has left the
device yet; a save that returned then would have to keep nothing but this object.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from .ring import stream
from .runtime import Event, Runtime, c_strides, told
from .words import DeviceWords

#: Bytes that a snapshot leaves free on each device, for the packing of strided words and for others.
SPARE = 64 << 20
#: Copies begin at multiples of so many bytes.
ALIGN = 512


class Snapshot:
    """Copies of device words, in the order of the originals.

    Attributes
    ----------
    words : list of DeviceWords
        The copies; good until `release`.
    ordered : list of Event
        One for each device: done when its copies are. Nothing but them need be waited for.
    """

    def __init__(self, seam: Runtime) -> None:
        self._seam = seam
        self._rooms: dict[int, Any] = {}
        self.words: list[DeviceWords] = []
        self.ordered: list[Event] = []

    def release(self) -> None:
        """Give the memory back. Called once nobody reads the copies any more; a second call does nothing."""
        while self._rooms:
            device, room = self._rooms.popitem()
            # What failed was told: this must not hide it.
            with contextlib.suppress(*self._seam.errors), self._seam.using(device):
                del room


def snapshot(originals: Sequence[DeviceWords]) -> Snapshot | str:
    """Return copies of words on their devices, or why there is no room for them.

    Called by the thread that took the words (of one runtime), right after they were taken. Where the
    stream of a producer is known, it waits on the device; where it is not, this thread waits for the
    copies. Raises `PeerFailed` (``device-failed``), with all memory given back.
    """
    seam = originals[0].seam
    found = Snapshot(seam)
    sizes: dict[int, int] = {}
    for words in originals:
        device = words.layout.device
        sizes[device] = sizes.get(device, 0) + -(-words.nbytes // ALIGN) * ALIGN
    try:
        places: dict[int, int] = {}
        for device, nbytes in sizes.items():
            if not nbytes:
                continue
            with told(seam):
                free = seam.free(device)
            if nbytes + SPARE > free:
                found.release()
                return _no_room(seam, device, nbytes, f"{free} are free and {SPARE} of them are left so")
            try:
                places[device], found._rooms[device] = seam.room(device, nbytes, stream(seam, device))
            except seam.errors as error:  # free in pieces only, or taken by somebody meanwhile
                found.release()
                return _no_room(seam, device, nbytes, f"{type(error).__name__}: {error}")
        _copy(seam, originals, places, found)
    except BaseException:
        found.release()
        raise
    return found


def _copy(seam: Runtime, originals: Sequence[DeviceWords], places: dict[int, int], found: Snapshot) -> None:
    keep = []
    for words in originals:
        device = words.layout.device
        layout = words.layout
        if words.nbytes:
            layout = layout._replace(
                pointer=places[device], strides=c_strides(words.shape, words.dtype.itemsize)
            )
            places[device] += -(-words.nbytes // ALIGN) * ALIGN
            with told(seam, words.region):
                keep.append(seam.copy(layout.pointer, words.layout, stream(seam, device)))
        found.words.append(DeviceWords(seam, layout, None, False, words.region))
    for device in places:
        with told(seam):
            event = seam.record(device, stream(seam, device))
            found.ordered.append(event)
            producers = {words.producer for words in originals if words.layout.device == device}
            for number in producers - {None}:
                seam.follow(device, number, event)
            if None in producers:  # whoever writes next cannot be told to wait
                event.wait()


def _no_room(seam: Runtime, device: int, nbytes: int, why: str) -> str:
    with told(seam):
        name = seam.identity(device)
    return f"no snapshot on {name}: it takes {nbytes} bytes, {why}"
