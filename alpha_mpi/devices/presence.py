"""Presence: which GPUs this process sees. Called by commands; nothing is allocated."""

from __future__ import annotations

import importlib.util

from .identity import Identity
from .runtime import runtime, told


def gpus() -> list[str] | None:
    """Return a name for each GPU, None where CuPy is not installed.

    Raises whatever CuPy raises where its driver or its libraries do not fit.
    """
    if importlib.util.find_spec("cupy") is None:
        return None
    count = runtime().count()
    import cupy

    found = []
    for device in range(count):
        properties = cupy.cuda.runtime.getDeviceProperties(device)
        name = properties["name"]
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        found.append(f"{text}, {properties['totalGlobalMem']} bytes")
    return found


def identities() -> list[Identity] | None:
    """Return which devices there are, by number; None where CuPy is not installed.

    Raises `Refused` (``missing-package``) where CuPy cannot be loaded, `PeerFailed`
    (``device-failed``) where the driver does not fit.
    """
    if importlib.util.find_spec("cupy") is None:
        return None
    seam = runtime()
    with told(seam):
        return [seam.identity(device) for device in range(seam.count())]
