"""GPUDirect Storage by kvikio: the one module that imports it, once somebody asks for it.

A file is opened a second time, by the descriptor that is there already, so whoever made it goes on
making it durable. kvikio's own fallback to POSIX is turned off while it opens: it would copy through
buffers of its own what the library can write by itself, and not say so.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

from ..errors import Refused


class NotDirect(Exception):
    """Why a file cannot be written to from a device's memory."""


class Future(Protocol):
    """A write that was begun."""

    def get(self) -> int:
        """Wait for it; return the bytes written. Raises what kvikio raises."""


class File(Protocol):
    """`kvikio.CuFile`, as far as it is used."""

    def pwrite(self, buf: Any, size: int | None = None, file_offset: int = 0) -> Future:
        """Begin to write device memory to an offset."""

    def close(self) -> None:
        """Close this way to the file; the file stays."""


class Memory:
    """Bytes of a device's memory, as other libraries take them. Nothing is waited for."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


def is_there() -> bool:
    """Return whether kvikio is installed. Loads nothing."""
    return importlib.util.find_spec("kvikio") is not None


def is_usable() -> bool:
    """Return whether kvikio can be used. Loads it where it is installed."""
    try:
        check()
    except Refused:
        return False
    return True


def check() -> None:
    """Load kvikio. Raises `Refused` (``missing-package``), naming the extra."""
    what = "pip install 'alpha-mpi[gds-cuda12]', or [gds-cuda13]"
    if not is_there():
        raise _missing(f"gpu_direct=True needs kvikio: {what}", "not installed")
    try:
        import kvikio
        import kvikio.defaults

        kvikio.CuFile, kvikio.CompatMode, kvikio.defaults.set  # noqa: B018 (before 25.02 there is no `set`)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise _missing(f"kvikio cannot be used ({what}): {error}", type(error).__name__) from error


def open_file(fd: int) -> File:
    """Open the file of a descriptor for direct writing. Raises `NotDirect` with the reason."""
    import kvikio
    import kvikio.defaults

    try:
        with kvikio.defaults.set("compat_mode", kvikio.CompatMode.OFF):
            found: File = kvikio.CuFile(f"/proc/self/fd/{fd}", "r+")
            return found
    except (RuntimeError, OSError) as error:
        raise NotDirect(f"{type(error).__name__}: {error}"[:300]) from error


def _missing(what: str, found: str) -> Refused:
    return Refused(what, code="missing-package", expected="kvikio", found=found)
