"""Staged: the device words of one capture, made ready to be read by a save.

On this owner alone: nothing here is agreed, for the words are the same either way.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import msgspec

from .declared import HeldPiece
from .devices.convoy import Convoy
from .devices.snapshot import Snapshot, snapshot
from .devices.words import DeviceWords, in_convoy
from .errors import Refused


class SnapshotWarning(UserWarning):
    """There was no room for a snapshot on a device; the words were read from the arrays themselves."""


def is_asked(snapshot: object) -> bool:
    """Return whether a user's `snapshot` asks for one. Raises `Refused` (``argument``)."""
    if snapshot is not None and snapshot != "device":
        raise Refused(
            "snapshot says where the words are copied to first",
            code="argument",
            expected='"device", or None',
            found=repr(snapshot),
        )
    return snapshot is not None


def warn(note: str | None) -> None:
    """Say why there was no snapshot, where the user saves."""
    if note is not None:
        warnings.warn(f"{note}; it was saved without one", SnapshotWarning, stacklevel=5)


class Staged:
    """The pieces of one capture, those on devices from a snapshot if one was asked for and fits.

    Attributes
    ----------
    held : sequence of HeldPiece
    note : str or None
        Why there is no snapshot although one was asked for.
    """

    def __init__(self, held: Sequence[HeldPiece], ask: bool) -> None:
        self.held, self.note = held, None
        self._snapshot: Snapshot | None = None
        self._convoy: Convoy | None = None
        words = [piece.data for piece in held if isinstance(piece.data, DeviceWords)]
        if not words:
            return
        if ask:
            found = snapshot(words)
            if isinstance(found, str):
                self.note = found
            else:
                self._snapshot, words = found, found.words
                copies = iter(words)
                self.held = [
                    msgspec.structs.replace(piece, data=next(copies))
                    if isinstance(piece.data, DeviceWords)
                    else piece
                    for piece in held
                ]
        self._convoy = in_convoy(words)

    def close(self) -> None:
        """Give back what is held on the devices and for them. Called when the attempt has ended here."""
        if self._convoy is not None:
            self._convoy.close()
        if self._snapshot is not None:
            self._snapshot.release()
