"""CUDA by CuPy: the one module that imports it, once a device array is seen.

Nothing here is computed by CuPy but the packing of strided words; arrays are taken by their
address, so that whoever made them (CuPy, PyTorch, JAX, Numba) does not matter.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np

from .identity import Identity, identity_of
from .runtime import Event, Layout, c_strides

#: Words are packed as bits: a dtype of each width that CuPy can copy.
_BITS: dict[int, Any] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
}
#: Numbers of cudaError_t: no driver that fits, no device, an address that is none of the current device.
_INSUFFICIENT_DRIVER, _NO_DEVICE, _INVALID_VALUE = 35, 100, 1


class NotPacked(RuntimeError):
    """CuPy could not build or load the kernel that packs strided words."""


class _Event:
    """A CUDA event; whoever waits for it sleeps, for ranks share the cores."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self._cuda, self._device = cuda, device
        self.raw = cupy.cuda.Event(block=True, disable_timing=True)

    def wait(self) -> None:
        with self._cuda.using(self._device):
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
            NotPacked,
        )

    def count(self) -> int:
        try:
            return int(self._cuda.getDeviceCount())
        except self._cuda.CUDARuntimeError as error:
            none = error.status == _INSUFFICIENT_DRIVER and not self._cuda.driverGetVersion()
            if none or error.status == _NO_DEVICE:  # else the driver is too old for CuPy's CUDA
                return 0
            raise

    def identity(self, device: int) -> Identity:
        if device in self._known:
            return self._known[device]
        name = self._cuda.getDeviceProperties(device)["name"]
        text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        found = self._known[device] = identity_of(text, _uuid(device))
        return found

    def current(self) -> int:
        return int(self._cuda.getDevice())

    @contextlib.contextmanager
    def using(self, device: int) -> Iterator[None]:
        # Not cupy.cuda.Device: since CUDA 12 setDevice makes a context, so going back to device 0 on
        # a thread that never used it takes hundreds of megabytes there, from every rank of a node.
        before = self._cuda.getDevice()
        if before == device:
            yield
            return
        self._cuda.setDevice(device)
        try:
            yield
        finally:
            if _has_context(before):
                self._cuda.setDevice(before)

    def device_of(self, pointer: int) -> int:
        # An address is known only where the current device has a context (CuPy issue 3991).
        current = self.current()
        others = [device for device in range(self.count()) if device != current]
        fault: Exception | None = None
        for device in (d for d in (current, *others) if _has_context(d)):
            with self.using(device):
                try:
                    found = int(self._cuda.pointerGetAttributes(pointer).device)
                    return found if found >= 0 else current  # memory that CUDA did not allocate
                except self._cuda.CUDARuntimeError as error:
                    if error.status != _INVALID_VALUE:
                        raise
                    fault = error
        if fault is None:
            return int(self._cuda.pointerGetAttributes(pointer).device)
        raise fault

    def pinned(self, nbytes: int, device: int) -> memoryview:
        with self.using(device):  # whichever is current gets a context; all of them may use it
            return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes).data

    def stream(self, device: int) -> Any:
        with self.using(device):
            return cupy.cuda.Stream(non_blocking=True)

    def number(self, stream: Any) -> int:
        return int(stream) if isinstance(stream, int) else int(stream.ptr)

    def record(self, device: int, stream: Any) -> Event:
        with self.using(device):
            event = _Event(self, device)
            self._cuda.eventRecord(event.raw.ptr, self.number(stream))
            return event

    def follow(self, device: int, stream: Any, event: Event) -> None:
        assert isinstance(event, _Event)
        with self.using(device):
            self._cuda.streamWaitEvent(self.number(stream), event.raw.ptr)

    def finish(self, device: int) -> None:
        with self.using(device):
            self._cuda.deviceSynchronize()

    def to_host(self, host: memoryview, words: Layout, stream: Any) -> Any:
        with self.using(words.device), stream:
            array = _array(words)
            with _kernel():
                packed = cupy.ascontiguousarray(array)
            kind = self._cuda.memcpyDeviceToHost
            self._cuda.memcpyAsync(_address(host), packed.data.ptr, len(host), kind, stream.ptr)
            return packed

    def to_device(self, words: Layout, host: memoryview, stream: Any) -> Any:
        with self.using(words.device), stream:
            there = _array(words)
            packed = there if there.flags.c_contiguous else cupy.empty(there.shape, there.dtype)
            kind = self._cuda.memcpyHostToDevice
            self._cuda.memcpyAsync(packed.data.ptr, _address(host), len(host), kind, stream.ptr)
            if packed is not there:
                with _kernel():
                    there[...] = packed
            return packed

    def free(self, device: int) -> int:
        with self.using(device):
            return int(self._cuda.memGetInfo()[0])

    def room(self, device: int, nbytes: int, stream: Any) -> tuple[int, Any]:
        # Neither from CuPy's pool, which would keep it from PyTorch and JAX afterwards.
        attribute = self._cuda.cudaDevAttrMemoryPoolsSupported
        with self.using(device):
            if stream is not None and self._cuda.deviceGetAttribute(attribute, device):
                with stream:
                    found = cupy.cuda.malloc_async(nbytes)
            else:  # giving this back waits for the whole device
                found = cupy.cuda.MemoryPointer(cupy.cuda.Memory(nbytes), 0)
            return int(found.ptr), found

    def copy(self, pointer: int, words: Layout, stream: Any) -> Any:
        with self.using(words.device), stream:
            array = _array(words)
            if array.flags.c_contiguous:
                nbytes, kind = int(array.nbytes), self._cuda.memcpyDeviceToDevice
                self._cuda.memcpyAsync(pointer, array.data.ptr, nbytes, kind, stream.ptr)
            else:
                packed = c_strides(words.shape, words.dtype.itemsize)
                with _kernel():
                    _array(words._replace(pointer=pointer, strides=packed))[...] = array
            return array

    def arrays(self, device: int) -> Any:
        cupy.cuda.Device(device).use()
        return cupy


@contextlib.contextmanager
def _kernel() -> Iterator[None]:
    """Around what makes CuPy compile: a wheel brings neither NVRTC nor CUDA's headers."""
    try:
        yield
    except (
        cupy.cuda.runtime.CUDARuntimeError,
        cupy.cuda.driver.CUDADriverError,
        cupy.cuda.memory.OutOfMemoryError,
    ):
        raise
    except Exception as error:
        raise NotPacked(
            "words that do not lie one behind the other are packed by a kernel, which CuPy compiles with "
            "CUDA's NVRTC and headers: set CUDA_PATH, or install CuPy with its [ctk] extra, or give arrays "
            f"that are contiguous ({type(error).__name__}: {error})"
        ) from error


def _array(words: Layout) -> Any:
    """Words as an array of CuPy's; it holds nothing of whoever made them."""
    width = words.dtype.itemsize
    nbytes = width + sum(abs(s) * (n - 1) for s, n in zip(words.strides, words.shape, strict=True))
    memory = cupy.cuda.UnownedMemory(words.pointer, nbytes, None, words.device)
    return cupy.ndarray(words.shape, _BITS[width], cupy.cuda.MemoryPointer(memory, 0), words.strides)


def _address(host: memoryview) -> int:
    return int(np.frombuffer(host, np.uint8).ctypes.data)


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _has_context(device: int) -> bool:
    """Return whether this process uses a device already; asking does not make it do so."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    failed = _driver().cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
    return not failed and bool(active.value)


def _uuid(device: int) -> bytes:
    """Ask the driver. CuPy's own property ends at the first zero byte, and is that of the card for
    a slice (cuDeviceGetUuid_v2 in the CUDA driver's reference tells slices apart)."""
    driver = _driver()
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
