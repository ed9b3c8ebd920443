"""CUDA by CuPy: the one module that imports it, once a device array is seen.

Nothing here is computed by CuPy but the packing of strided words; arrays are taken by their
address, so that whoever made them (CuPy, PyTorch, JAX, Numba) does not matter.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import cupy
import numpy as np

from .identity import Identity, identity_of
from .runtime import Event, Layout

#: Words are packed as bits: a dtype of each width that CuPy can copy.
_BITS: dict[int, Any] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
}


class _Event:
    """A CUDA event; whoever waits for it sleeps, for ranks share the cores."""

    def __init__(self) -> None:
        self.raw = cupy.cuda.Event(block=True, disable_timing=True)

    def wait(self) -> None:
        self.raw.synchronize()


class Cuda:
    """The devices of this process (see `runtime.Runtime`)."""

    def __init__(self) -> None:
        self._cuda = cupy.cuda.runtime
        self._known: dict[int, Identity] = {}
        self.errors: tuple[type[Exception], ...] = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.memory.OutOfMemoryError,
        )

    def count(self) -> int:
        return int(self._cuda.getDeviceCount()) if cupy.cuda.is_available() else 0

    def identity(self, device: int) -> Identity:
        if device in self._known:
            return self._known[device]
        name = self._cuda.getDeviceProperties(device)["name"]
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        found = self._known[device] = identity_of(text, _uuid(device))
        return found

    def current(self) -> int:
        return int(self._cuda.getDevice())

    def using(self, device: int) -> contextlib.AbstractContextManager[Any]:
        return cupy.cuda.Device(device)  # type: ignore[no-any-return]

    def device_of(self, pointer: int) -> int:
        return int(self._cuda.pointerGetAttributes(pointer).device)

    def pinned(self, nbytes: int) -> memoryview:
        return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes).data

    def stream(self, device: int) -> Any:
        with cupy.cuda.Device(device):
            return cupy.cuda.Stream(non_blocking=True)

    def record(self, device: int, stream: Any) -> Event:
        with cupy.cuda.Device(device):
            event = _Event()
            self._cuda.eventRecord(event.raw.ptr, _handle(stream))
            return event

    def follow(self, device: int, stream: Any, event: Event) -> None:
        assert isinstance(event, _Event)
        with cupy.cuda.Device(device):
            self._cuda.streamWaitEvent(_handle(stream), event.raw.ptr)

    def finish(self, device: int) -> None:
        with cupy.cuda.Device(device):
            self._cuda.deviceSynchronize()

    def to_host(self, host: memoryview, words: Layout, stream: Any) -> Any:
        with cupy.cuda.Device(words.device), stream:
            packed = cupy.ascontiguousarray(_array(words))
            kind = self._cuda.memcpyDeviceToHost
            self._cuda.memcpyAsync(_address(host), packed.data.ptr, len(host), kind, stream.ptr)
            return packed

    def to_device(self, words: Layout, host: memoryview, stream: Any) -> Any:
        with cupy.cuda.Device(words.device), stream:
            there = _array(words)
            packed = there if there.flags.c_contiguous else cupy.empty(there.shape, there.dtype)
            kind = self._cuda.memcpyHostToDevice
            self._cuda.memcpyAsync(packed.data.ptr, _address(host), len(host), kind, stream.ptr)
            if packed is not there:
                there[...] = packed
            return packed

    def arrays(self, device: int) -> Any:
        cupy.cuda.Device(device).use()
        return cupy

    def imported(self, value: Any, device: int, stream: Any) -> tuple[Layout, Any]:
        with cupy.cuda.Device(device), stream:
            array = cupy.from_dlpack(value)
        words = Layout(array.data.ptr, array.dtype, array.shape, array.strides, int(array.device.id))
        return words, array


def _handle(stream: Any) -> int:
    """The stream's address; 1 and 2 are the legacy and the per-thread default stream."""
    return int(stream) if isinstance(stream, int) else int(stream.ptr)


def _array(words: Layout) -> Any:
    """Words as an array of CuPy's; it holds nothing of whoever made them."""
    width = words.dtype.itemsize
    nbytes = width + sum(abs(s) * (n - 1) for s, n in zip(words.strides, words.shape, strict=True))
    memory = cupy.cuda.UnownedMemory(words.pointer, nbytes, None, words.device)
    return cupy.ndarray(words.shape, _BITS[width], cupy.cuda.MemoryPointer(memory, 0), words.strides)


def _address(host: memoryview) -> int:
    return int(np.frombuffer(host, np.uint8).ctypes.data)


def _uuid(device: int) -> bytes:
    """Ask the driver. CuPy's own property ends at the first zero byte, and is that of the card for
    a slice (cuDeviceGetUuid_v2 in the CUDA driver's reference tells slices apart)."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(handle), ctypes.c_int(device)),
        ask(ctypes.byref(raw), handle),
    ):
        if status:
            raise cupy.cuda.driver.CUDADriverError(status)
    return bytes(raw)
