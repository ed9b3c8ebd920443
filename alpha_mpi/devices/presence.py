"""Presence: which GPUs this process sees. Called by `alpha-mpi doctor`; nothing is allocated."""

from __future__ import annotations

import importlib.util


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
