"""Staged: the device words of one capture, made ready to be read by a save.

On this owner alone: nothing here is agreed, for the words are the same either way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .devices import gds
from .devices.convoy import Convoy
from .devices.direct import Direct
from .devices.snapshot import Snapshot, snapshot
from .devices.words import DeviceWords, in_convoy
from .errors import Refused, warn_user
from .held import HeldPieces


class SnapshotWarning(UserWarning):
    """There was no room for a snapshot on a device; the words were read from the arrays themselves."""


class DirectWarning(UserWarning):
    """The store, or a part of it, was not written to directly; the words went by the host's memory."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """How a user wants arrays on GPUs to be saved.

    Attributes
    ----------
    snapshot : bool
        From copies on their devices.
    direct : Direct or None
        From the device's memory to the store.
    must : bool
        Whether it is told where that was not possible.
    """

    snapshot: bool = False
    direct: Direct | None = None
    must: bool = False

    @classmethod
    def of(cls, snapshot: object, gpu_direct: object) -> Asked:
        """Return what a user's arguments ask for. Raises `Refused` (``argument``)."""
        if snapshot not in (None, "device"):
            raise _no_such("snapshot says where the words are copied to first", '"device", or None', snapshot)
        if gpu_direct not in (None, False, True, "auto"):
            expected = 'True, False, or "auto"'
            raise _no_such("gpu_direct says whether GPUs write to the store", expected, gpu_direct)
        asks = gpu_direct is True or (gpu_direct == "auto" and gds.is_usable())
        return cls(snapshot is not None, Direct() if asks else None, gpu_direct is True)

    def check(self) -> None:
        """Refuse (``missing-package``) what cannot be done here."""
        if self.must:
            gds.check()

    def notes(self, staged: Staged | None) -> tuple[Warning, ...]:
        """Return what a save did otherwise than asked."""
        notes: list[Warning] = []
        if staged is not None and staged.note is not None:
            notes.append(SnapshotWarning(f"{staged.note}; it was saved without one"))
        if self.direct is not None and self.direct.reason is not None:
            reason, self.direct.reason = self.direct.reason, None
            if self.must:
                notes.append(DirectWarning(f"written by way of the host's memory, not directly: {reason}"))
        return tuple(notes)


#: Through the host's memory, from the arrays themselves.
AS_EVER = Asked()


def _no_such(what: str, expected: str, found: object) -> Refused:
    return Refused(what, code="argument", expected=expected, found=repr(found))


def warn(notes: Sequence[Warning]) -> None:
    """Say what a save did otherwise than asked, where the user saves."""
    for note in notes:
        warn_user(note)


class Staged:
    """The pieces of one capture, those on devices from a snapshot if one was asked for and fits.

    Attributes
    ----------
    held : HeldPieces
    note : str or None
        Why there is no snapshot although one was asked for.
    """

    def __init__(self, held: HeldPieces, ask: bool) -> None:
        self.held, self.note = held, None
        self._snapshot: Snapshot | None = None
        self._convoy: Convoy | None = None
        words = [data for data in held.data if isinstance(data, DeviceWords)]
        if not words:
            return
        if ask:
            found = snapshot(words)
            if isinstance(found, str):
                self.note = found
            else:
                self._snapshot, words = found, found.words
                copies = iter(words)
                data = [next(copies) if isinstance(data, DeviceWords) else data for data in held.data]
                self.held = HeldPieces(held.ordinals, held.pieces, data, held.owner)
        self._convoy = in_convoy(words)

    def close(self) -> None:
        """Give back what is held on the devices and for them. Called when the attempt has ended here."""
        if self._convoy is not None:
            self._convoy.close()
        if self._snapshot is not None:
            self._snapshot.release()
