"""Identity of a device: which card, or which slice of one, whatever number a process gives it."""

from __future__ import annotations

import uuid as _uuid
from typing import NamedTuple

#: Stands between the card and the slice in a product's name, as the driver writes it.
_SLICE = " MIG "


class Identity(NamedTuple):
    """One device.

    Attributes
    ----------
    product : str
        As the driver names it: ``"NVIDIA H100 80GB HBM3"``; of a slice with the slice's profile at
        the end (``"... MIG 1g.10gb"``).
    uuid : str
        Of the card (``"GPU-..."``) or of the slice (``"MIG-..."``), as ``nvidia-smi -L`` lists it.
    mig : str
        The slice's profile (``"1g.10gb"``); empty for a whole card.
    """

    product: str
    uuid: str
    mig: str = ""

    def __str__(self) -> str:
        return f"{self.product} ({self.uuid})"


def identity_of(name: str, raw: bytes) -> Identity:
    """Return the identity of a device from its name and the 16 bytes of its UUID."""
    _, found, profile = name.rpartition(_SLICE)
    kind = "MIG" if found else "GPU"
    return Identity(name, f"{kind}-{_uuid.UUID(bytes=raw)}", profile if found else "")
