"""Presence: which GPUs this process sees. Called by commands; nothing is allocated."""

from __future__ import annotations

import importlib.util

from .identity import Identity
from .runtime import runtime


def gpus() -> list[str] | None:
    """Return a name for each GPU, None where CuPy is not installed.

    Raises whatever CuPy raises where its driver or its libraries do not fit.
    """
    if importlib.util.find_spec("cupy") is None:
        return None
    import cupy

    runtime = cupy.cuda.runtime
    found = []
    for device in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(device)
        name = properties["name"]
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        found.append(f"{text}, {properties['totalGlobalMem']} bytes")
    return found


def identities() -> list[Identity] | None:
    """Return which devices there are, by number; None where CuPy is not installed."""
    if importlib.util.find_spec("cupy") is None:
        return None
    seam = runtime()
    return [seam.identity(device) for device in range(seam.count())]
