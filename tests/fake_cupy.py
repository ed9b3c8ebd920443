"""CuPy as far as `alpha_mpi.devices.cuda` uses it, with memory of the host; written from CuPy's source.

What it keeps to (CuPy 13.6 and 14.2, CUDA 12): the current device is one per thread, 0 at first;
making a device current, and every call that needs one, makes a context on it; an address is known
only where the current device has a context (cudaErrorInvalidValue else); a stream is entered on its
own device only; events and streams of different devices do not mix; packing needs a compiler.
"""

from __future__ import annotations

import ctypes
import threading
import types
from typing import Any

import numpy as np


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}")
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA_ERROR_{status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


class Gpus:
    """So many devices, and the module `cupy` and the library `libcuda` that see them."""

    def __init__(self, count: int = 2, names: Any = b"Fake One") -> None:
        self.count, self.names = count, names
        self.failing: dict[str, Exception] = {}
        self.contexts: set[int] = set()
        self.homes: dict[int, tuple[int, int, Any]] = {}  # address -> bytes, device, memory
        self.local = threading.local()
        self.streams: dict[int, int] = {}  # number -> device
        self.events: dict[int, int] = {}
        self.recorded: list[tuple[int, int]] = []
        self.free = 1 << 30
        self.driver = 0
        self.pools = True
        self.cupy = self._module()

    # ------------------------------------------------ what the tests ask

    def memory(self, device: int, values: np.ndarray[Any, Any]) -> int:
        """Return the address of new memory of a device that holds some words."""
        self.contexts.add(device)
        room = np.ascontiguousarray(values).copy()
        self.homes[room.ctypes.data] = (max(1, room.nbytes), device, room)
        return int(room.ctypes.data)

    def current(self) -> int:
        return getattr(self.local, "device", 0)

    def _touch(self, what: str = "") -> int:
        if what in self.failing:
            raise self.failing[what]
        self.contexts.add(self.current())
        return self.current()

    def _home(self, pointer: int) -> tuple[int, Any]:
        for first, (nbytes, device, room) in self.homes.items():
            if first <= pointer < first + nbytes:
                return device, room
        raise CUDARuntimeError(1)

    # ------------------------------------------------ cupy

    def _module(self) -> Any:
        gpus = self
        runtime = types.SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyDeviceToDevice=3,
            cudaDevAttrMemoryPoolsSupported=115,
        )

        def function(work: Any) -> Any:
            setattr(runtime, work.__name__, staticmethod(work).__func__)
            return work

        @function
        def getDeviceCount() -> int:
            if "getDeviceCount" in gpus.failing:
                raise gpus.failing["getDeviceCount"]
            return gpus.count

        @function
        def driverGetVersion() -> int:
            return gpus.driver

        @function
        def getDevice() -> int:
            return gpus.current()

        @function
        def setDevice(device: int) -> None:
            assert 0 <= device < gpus.count
            gpus.local.device = device
            gpus.contexts.add(device)

        @function
        def getDeviceProperties(device: int) -> dict[str, Any]:
            return {"name": gpus.names, "totalGlobalMem": 1 << 30, "uuid": b"cut"}

        @function
        def deviceGetAttribute(attribute: int, device: int) -> int:
            return int(gpus.pools)

        @function
        def deviceSynchronize() -> None:
            gpus._touch()

        @function
        def memGetInfo() -> tuple[int, int]:
            gpus._touch()
            return gpus.free, 2 << 30

        @function
        def pointerGetAttributes(pointer: int) -> Any:
            if gpus.current() not in gpus.contexts:
                raise CUDARuntimeError(1)
            return types.SimpleNamespace(device=gpus._home(pointer)[0])

        @function
        def eventRecord(event: int, stream: int) -> None:
            device = gpus._touch("eventRecord")
            if gpus.events[event] != device or gpus.streams.get(stream, device) != device:
                raise CUDARuntimeError(400)
            gpus.recorded.append((device, stream))

        @function
        def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
            if gpus.streams.get(stream, gpus._touch()) != gpus.current():
                raise CUDARuntimeError(400)
            assert event in gpus.events

        @function
        def memcpyAsync(to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
            device = gpus._touch("memcpyAsync")
            assert gpus.streams[stream] == device
            for side, pointer in ((1, to), (2, source)):
                if kind in (side, 3):
                    assert gpus._home(pointer)[0] == device
            ctypes.memmove(to, source, nbytes)

        class Device:
            def __init__(self, device: int) -> None:
                self.id = device

            def use(self) -> Device:
                setDevice(self.id)
                return self

        class Event:
            def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
                assert block and disable_timing
                self.ptr = 5000 + len(gpus.events)
                gpus.events[self.ptr] = gpus._touch()

            def synchronize(self) -> None:
                gpus._touch("synchronize")

        class Stream:
            def __init__(self, non_blocking: bool = False) -> None:
                assert non_blocking
                self.ptr = 9000 + len(gpus.streams)
                self.device_id = gpus.streams[self.ptr] = gpus._touch()

            def __enter__(self) -> Stream:
                if gpus.current() != self.device_id:
                    raise RuntimeError("The device that the stream is created on does not match")
                gpus.local.stream = self
                return self

            def __exit__(self, *_: Any) -> None:
                gpus.local.stream = None

        class UnownedMemory:
            def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
                assert device_id >= 0
                self.ptr, self.size, self.device_id = ptr, size, device_id

        class Memory:
            def __init__(self, size: int) -> None:
                device = gpus._touch("malloc")
                self.ptr, self.size, self.device_id = gpus.memory(device, np.zeros(size, "u1")), size, device

            def __del__(self) -> None:
                gpus.homes.pop(self.ptr, None)

        class MemoryPointer:
            def __init__(self, mem: Any, offset: int) -> None:
                self.mem, self.ptr = mem, mem.ptr + offset

        def malloc_async(size: int) -> MemoryPointer:
            if not gpus.pools:
                raise RuntimeError("Device does not support malloc_async")
            assert getattr(gpus.local, "stream", None) is not None
            return MemoryPointer(Memory(size), 0)

        class ndarray:
            def __init__(
                self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None
            ) -> None:
                if memptr is None:
                    memptr = MemoryPointer(Memory(int(np.prod(shape)) * np.dtype(dtype).itemsize), 0)
                self.data = memptr
                device, room = gpus._home(memptr.ptr)
                assert device == memptr.mem.device_id
                buffer = (ctypes.c_char * room.nbytes).from_address(room.ctypes.data)
                self.words = np.ndarray(shape, dtype, buffer, memptr.ptr - room.ctypes.data, strides)
                self.flags, self.shape, self.dtype = self.words.flags, self.words.shape, self.words.dtype
                self.nbytes = self.words.nbytes

            def __setitem__(self, index: Any, value: ndarray) -> None:
                compiled()
                self.words[index] = value.words

        def compiled() -> None:
            if "nvrtc" in gpus.failing:
                raise gpus.failing["nvrtc"]
            stream = getattr(gpus.local, "stream", None)
            assert stream is not None and stream.device_id == gpus._touch()

        def ascontiguousarray(array: ndarray) -> ndarray:
            if array.flags.c_contiguous:
                return array
            compiled()
            made = ndarray(array.shape, array.dtype)
            made.words[...] = array.words
            return made

        def alloc_pinned_memory(nbytes: int) -> bytearray:
            gpus._touch("pinned")
            return bytearray(nbytes)

        cuda = types.SimpleNamespace(
            runtime=runtime,
            driver=types.SimpleNamespace(CUDADriverError=CUDADriverError),
            memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=Device,
            Event=Event,
            Stream=Stream,
            UnownedMemory=UnownedMemory,
            Memory=Memory,
            MemoryPointer=MemoryPointer,
            malloc_async=malloc_async,
            alloc_pinned_memory=alloc_pinned_memory,
        )
        module = types.ModuleType("cupy")
        module.__dict__.update(cuda=cuda, ndarray=ndarray, empty=ndarray, ascontiguousarray=ascontiguousarray)
        return module

    # ------------------------------------------------ libcuda

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, handle: Any, device: Any) -> int:
        handle._obj.value = device.value
        return 0 if device.value < self.count else 101

    def cuDeviceGetUuid_v2(self, raw: Any, handle: Any) -> int:
        raw._obj[:] = [0xAA, 0, *[0] * 13, handle.value]  # zero bytes, which CuPy's property ends at
        return 0

    def cuDevicePrimaryCtxGetState(self, device: int, flags: Any, active: Any) -> int:
        active._obj.value = device in self.contexts
        return 0
