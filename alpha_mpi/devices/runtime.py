"""The seam to the devices: everything the library asks of a GPU is asked here.

`runtime` gives what talks to the real ones (`cuda.Cuda`), made when the first device array is seen;
`replaced` puts another in its place, such as the fake that the tests use. Pointers are addresses in
a device's memory; a stream is whatever `stream` returned, or the number of a producer's stream.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import PeerFailed, Refused
from .identity import Identity

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """Words in a device's memory: the first one's address, their dtype, and strides in bytes."""

    pointer: int
    dtype: np.dtype[Any]
    shape: Shape
    strides: Shape
    device: int


def c_strides(shape: Shape, itemsize: int) -> Shape:
    """Return the strides, in bytes, of words that lie one behind the other in C order."""
    return tuple(math.prod(shape[i + 1 :]) * itemsize for i in range(len(shape)))


class Event(Protocol):
    """Everything that was put on a stream before the event was recorded."""

    def wait(self) -> None:
        """Return when it is done. Called by any thread; raises one of the runtime's `errors`."""


class Runtime(Protocol):
    """What the library asks of the devices. Every method may be called by any thread, leaves the
    current device as it was (where that one is in use at all: making a device current can be what
    takes memory on it), and raises one of `errors` where the device fails."""

    errors: tuple[type[Exception], ...]

    def count(self) -> int:
        """Return how many devices this process sees; 0 where there is no driver."""

    def identity(self, device: int) -> Identity:
        """Return which device a number stands for."""

    def current(self) -> int:
        """Return the current device."""

    def using(self, device: int) -> contextlib.AbstractContextManager[Any]:
        """Make a device current inside of a block."""

    def device_of(self, pointer: int) -> int:
        """Return the device whose memory holds an address."""

    def pinned(self, nbytes: int, device: int) -> memoryview:
        """Return new page-locked memory of the host, for all devices; `device` is one in use."""

    def stream(self, device: int) -> Any:
        """Return a new stream that waits for no other by itself."""

    def number(self, stream: Any) -> int:
        """Return the number under which other libraries know a stream."""

    def record(self, device: int, stream: Any) -> Event:
        """Return an event after everything that is on a stream now."""

    def follow(self, device: int, stream: Any, event: Event) -> None:
        """Make what is put on `stream` from now on wait for an event."""

    def finish(self, device: int) -> None:
        """Wait for everything on every stream of a device."""

    def to_host(self, host: memoryview, words: Layout, stream: Any) -> Any:
        """Put on `stream`: copy words, in C order, into pinned memory.

        Returns what must be kept until it is done. Words that do not lie one behind the other are
        packed on the device first.
        """

    def to_device(self, words: Layout, host: memoryview, stream: Any) -> Any:
        """Put on `stream`: copy words in C order out of pinned memory. Returns as `to_host`."""

    def free(self, device: int) -> int:
        """Return how many bytes of a device's memory nobody has."""

    def room(self, device: int, nbytes: int, stream: Any) -> tuple[int, Any]:
        """Return new memory of a device: its address, and what must be kept as long as it is used.

        With a stream it may be used in the stream's order only, and is given back in it.
        """

    def copy(self, pointer: int, words: Layout, stream: Any) -> Any:
        """Put on `stream`: copy words, in C order, to an address of the same device. As `to_host`."""

    def arrays(self, device: int) -> Any:
        """Return a module of arrays in NumPy's manner, and leave the device current for it."""


_runtime: Runtime | None = None


def runtime() -> Runtime:
    """Return the seam to the devices of this process.

    Called once a device array is seen. Raises `Refused` (``missing-package``), naming the extra.
    """
    global _runtime
    if _runtime is None:
        if importlib.util.find_spec("cupy") is None:
            raise Refused(
                "an array on a GPU needs CuPy: pip install 'alpha-mpi[gpu-cuda12]', or [gpu-cuda13]",
                code="missing-package",
                expected="cupy",
                found="not installed",
            )
        try:
            from .cuda import Cuda
        except ImportError as error:  # CuPy for another CUDA, or without the libraries it needs
            raise Refused(
                f"CuPy is installed and cannot be loaded: {error}",
                code="missing-package",
                expected="CuPy for this machine's CUDA: pip install 'alpha-mpi[gpu-cuda12]', or [gpu-cuda13]",
                found=type(error).__name__,
            ) from error
        _runtime = Cuda()
    return _runtime


@contextlib.contextmanager
def replaced(other: Runtime) -> Iterator[None]:
    """Let `other` stand for the devices inside of a block; for tests and trials."""
    global _runtime
    before, _runtime = _runtime, other
    try:
        yield
    finally:
        _runtime = before


@contextlib.contextmanager
def told(seam: Runtime, region: str | None = None) -> Iterator[None]:
    """Make a device's failure one of the library's errors: `PeerFailed` (``device-failed``)."""
    try:
        yield
    except seam.errors as error:
        raise PeerFailed(
            f"the GPU failed: {type(error).__name__}: {error}", code="device-failed", region=region
        ) from error
