"""A stand-in for GPUs, as unhelpful as CUDA allows: the other side of `alpha_mpi.devices.runtime`.

What is put on a stream is done as late as it may be: when somebody waits for an event after it. Until
then pinned memory holds poison, and a buffer that is written to again too soon spoils the copy out of
it; so a read before its event, a missing order between streams, or a buffer used twice give wrong
words. With ``early=True`` the library's own copies are done at once instead, so that one that does
not wait for its producer comes before it. Addresses outside of a device's memory, and words and
streams of different devices, are errors of the test. `fail` makes any operation fail.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from alpha_mpi.devices import dlpack
from alpha_mpi.devices.identity import Identity
from alpha_mpi.devices.runtime import Layout
from alpha_mpi.devices.words import LEGACY

POISON = 0xA5
#: CUDA's number of the default stream of each thread.
PER_THREAD = 2
CARD = Identity("Fake One", "GPU-aaaaaaaa-0000-0000-0000-000000000001")
OTHER = Identity("Fake One", "GPU-bbbbbbbb-0000-0000-0000-000000000002")
NEWER = Identity("Fake Two", "GPU-cccccccc-0000-0000-0000-000000000003")
SLICE = Identity("Fake One MIG 1g.10gb", "MIG-aaaaaaaa-0000-0000-0000-000000000004", "1g.10gb")


class FakeError(RuntimeError):
    """What a device says when it fails."""


class Stream:
    """Work in order; `done` counts what has been done."""

    def __init__(self, fake: Fake, device: int, producer: bool = False) -> None:
        self.fake, self.device, self.producer = fake, device, producer
        self.work: list[Callable[[], None]] = []
        self.done = 0
        fake.streams.append(self)
        self.handle = 1000 + len(fake.streams)

    def put(self, work: Callable[[], None]) -> None:
        with self.fake.lock:
            self.work.append(work)
            if self.fake.early and not self.producer:
                self.run(len(self.work))

    def run(self, stop: int) -> None:
        with self.fake.lock:
            while self.done < stop:
                work = self.work[self.done]
                self.done += 1
                work()


class Event:
    """The work on a stream so far."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, len(stream.work)

    def wait(self) -> None:
        self.stream.fake.step("wait")
        self.stream.run(self.at)


class _Room:
    """Keeps memory of a device."""


class Fake:
    """Devices of these identities (`alpha_mpi.devices.runtime.Runtime`).

    `visible` is what CUDA_VISIBLE_DEVICES says: numbers, UUIDs, or their beginnings.
    """

    errors: tuple[type[Exception], ...] = (FakeError,)

    def __init__(self, *cards: Identity, visible: str | None = None, early: bool = False) -> None:
        cards = cards or (CARD,)
        self.cards = [_seen(cards, word) for word in visible.split(",")] if visible else list(cards)
        self.early = early
        self.lock = threading.RLock()
        self.streams: list[Stream] = []
        self.memory: list[tuple[int, int, int, Any]] = []  # first, stop, device, array; by address
        self.calls: list[str] = []
        self.pinned_bytes = 0
        self.total = 1 << 30  # bytes of memory that each device has left for rooms
        self.held = collections.Counter[int]()
        self.capsules = 0  # of DLPack, not given back yet
        self._fail: dict[str, int] = {}
        self._local = threading.local()
        self._producers: dict[tuple[int, int], Stream] = {}

    # ------------------------------------------------ the seam

    def count(self) -> int:
        return len(self.cards)

    def identity(self, device: int) -> Identity:
        self.step("identity")
        return self.cards[device]

    def current(self) -> int:
        return getattr(self._local, "device", 0)

    @contextlib.contextmanager
    def using(self, device: int) -> Iterator[None]:
        before = self.current()
        self._local.device = device
        try:
            yield
        finally:
            self._local.device = before

    def device_of(self, pointer: int) -> int:
        return self._home(pointer)[2]

    def pinned(self, nbytes: int, device: int) -> memoryview:
        self.step("pinned")
        assert 0 <= device < len(self.cards)
        self.pinned_bytes += nbytes
        return np.full(nbytes, POISON, np.uint8).data

    def stream(self, device: int) -> Stream:
        self.step("stream")
        return Stream(self, device)

    def number(self, stream: Any) -> int:
        return stream.handle if isinstance(stream, Stream) else int(stream)

    def record(self, device: int, stream: Any) -> Event:
        self.step("record")
        found = self.stream_of(stream, device)
        assert found.device == device, "an event of another device's stream"
        return Event(found)

    def follow(self, device: int, stream: Any, event: Event) -> None:
        self.step("follow")
        self.stream_of(stream, device).put(lambda: event.stream.run(event.at))

    def finish(self, device: int) -> None:
        self.step("finish")
        for stream in list(self.streams):
            if stream.device == device:
                stream.run(len(stream.work))

    def to_host(self, host: memoryview, words: Layout, stream: Stream) -> Any:
        self.step("to_host")
        there, here = self._words(words, stream), np.frombuffer(host, np.uint8)
        here[...] = POISON
        assert len(here) == there.nbytes

        def work() -> None:
            self.step("copy")
            here[...] = np.frombuffer(there.tobytes(), np.uint8)

        stream.put(work)
        return None

    def to_device(self, words: Layout, host: memoryview, stream: Stream) -> Any:
        self.step("to_device")
        there, here = self._words(words, stream), np.frombuffer(host, np.uint8)
        assert len(here) == there.nbytes

        def work() -> None:
            self.step("copy")
            there[...] = here.view(there.dtype).reshape(there.shape)

        stream.put(work)
        return None

    def free(self, device: int) -> int:
        self.step("free")
        return self.total - self.held[device]

    def room(self, device: int, nbytes: int, stream: Stream | None) -> tuple[int, Any]:
        self.step("room")
        if nbytes > self.total - self.held[device]:
            raise FakeError("out of memory")
        data = self.own(device, np.full(nbytes, POISON, np.uint8))
        self.held[device] += nbytes
        first = data.ctypes.data

        def gone() -> None:
            data[...] = POISON

        def given_back() -> None:
            self.held[device] -= nbytes
            self.memory[:] = [m for m in self.memory if m[0] != first]
            gone() if stream is None else stream.put(gone)

        room = _Room()
        weakref.finalize(room, given_back)
        return first, room

    def copy(self, pointer: int, words: Layout, stream: Stream) -> Any:
        self.step("copy_there")
        there = self._words(words, stream)
        packed = np.empty(words.shape, words.dtype).strides
        here = self._words(words._replace(pointer=pointer, strides=packed), stream)

        def work() -> None:
            self.step("copy")
            here[...] = there

        stream.put(work)
        return None

    def arrays(self, device: int) -> Any:
        self._local.device = device
        return Space(self, device)

    # ------------------------------------------------ what tests ask

    def fail(self, what: str, after: int = 0) -> None:
        """Make the next `what` fail, or one `after` so many."""
        self._fail[what] = after

    def step(self, what: str) -> None:
        self.calls.append(what)
        if what in self._fail:
            self._fail[what] -= 1
            if self._fail[what] < 0:
                del self._fail[what]
                raise FakeError(f"{what} failed")

    def array(self, values: Any, device: int = 0, kind: type[Array] | None = None) -> Any:
        """Return a new array on a device."""
        return (kind or Array)(self, np.array(values), device)

    def producer(self, device: int) -> Stream:
        """Return the stream on which this thread's arrays of a device are made."""
        key = (threading.get_ident(), device)
        if key not in self._producers:
            self._producers[key] = Stream(self, device, producer=True)
        return self._producers[key]

    def legacy(self, device: int) -> Stream:
        """Return the legacy default stream of a device."""
        if (0, device) not in self._producers:
            self._producers[0, device] = Stream(self, device, producer=True)
        return self._producers[0, device]

    def stream_of(self, stream: Any, device: int = 0) -> Stream:
        if isinstance(stream, Stream):
            return stream
        if stream in (LEGACY, PER_THREAD):
            return self.legacy(device) if stream == LEGACY else self.producer(device)
        return next(s for s in self.streams if s.handle == stream)

    def own(self, device: int, values: Any) -> Any:
        """Return a copy of some words in a device's memory."""
        room = np.full(values.nbytes + 64, POISON, np.uint8)
        first = room.ctypes.data
        bisect.insort(self.memory, (first, first + room.nbytes, device, room), key=lambda m: m[0])
        data = room[: values.nbytes].view(values.dtype).reshape(values.shape)
        data[...] = values
        return data

    def _home(self, pointer: int) -> tuple[int, int, int, Any]:
        at = bisect.bisect_right(self.memory, pointer, key=lambda m: m[0]) - 1
        assert at >= 0 and pointer < self.memory[at][1], "an address of no device"
        return self.memory[at]

    def _words(self, words: Layout, stream: Stream) -> Any:
        """Return words in a device's memory; NumPy refuses those that leave it."""
        assert stream.device == words.device, "words of another device than the stream's"
        first, _, device, room = self._home(words.pointer)
        assert device == words.device
        lowest = words.pointer + sum(
            min(0, s * (n - 1)) for s, n in zip(words.strides, words.shape, strict=True)
        )
        assert lowest >= first
        return np.ndarray(words.shape, words.dtype, room.data, words.pointer - first, words.strides)


def _seen(cards: tuple[Identity, ...], word: str) -> Identity:
    if word.isdigit():
        return cards[int(word)]
    if "/" in word:  # MIG-GPU-<card>/<instance>/<part>: the first slice there is, of the fake's one card
        return next(card for card in cards if card.mig)
    return next(card for card in cards if card.uuid.startswith(word))


class Array:
    """An array as CuPy has it: its interface names the current stream of the current device."""

    def __init__(self, fake: Fake, values: Any, device: int, data: Any = None) -> None:
        self.fake, self.device_number = fake, device
        self.data = fake.own(device, values) if data is None else data
        self.writable = True

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        found = self.data[index if ... in index else (*index, ...)]  # a view, also of one word
        return type(self)(self.fake, None, self.device_number, found)

    @property
    def T(self) -> Any:
        return type(self)(self.fake, None, self.device_number, self.data.T)

    @property
    def layout(self) -> Layout:
        d = self.data
        return Layout(d.ctypes.data, d.dtype, d.shape, d.strides, self.device_number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        current = self.fake.producer(self.fake.current())
        strides = None if self.data.flags.c_contiguous else self.data.strides
        pointer = self.data.ctypes.data if self.data.size else 0
        found = {"shape": self.data.shape, "typestr": self.data.dtype.str, "version": 3}
        return {**found, "data": (pointer, not self.writable), "strides": strides, "stream": current.handle}

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def later(self, values: Any) -> None:
        """Let the producer write words, when the device gets there."""
        values = np.array(values)

        def work() -> None:
            self.data[...] = values

        self.fake.producer(self.device_number).put(work)

    def get(self) -> Any:
        """Wait for the producer alone, and return the words."""
        producer = self.fake.producer(self.device_number)
        producer.run(len(producer.work))
        return self.data.copy()


class Numba(Array):
    """An interface of version 2, that names no stream, and no DLPack."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found = dict(super().__cuda_array_interface__, version=2)
        del found["stream"]
        return found


class Unnamed(Array):
    """Made on the legacy default stream, of which its interface says None."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(super().__cuda_array_interface__, stream=None)

    def later(self, values: Any) -> None:
        values = np.array(values)
        self.fake.legacy(self.device_number).put(lambda: self.data.__setitem__(..., values))


class Torch(Numba):
    """An interface that names no stream, and DLPack that orders."""

    version: tuple[int, int] | None = None  # of the capsules; None: older than DLPack 1.0
    flags = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device_number

    def __dlpack__(self, *, stream: int, **more: Any) -> Any:
        fake = self.fake
        if self.version is None and more:
            raise TypeError(f"__dlpack__() got an unexpected keyword argument {next(iter(more))!r}")
        fake.step("dlpack")
        assert fake.current() == self.device_number, "the current device is not the array's"
        event = Event(fake.producer(self.device_number))
        fake.follow(self.device_number, fake.stream_of(stream), event)
        return capsule_of(self)


class Versioned(Torch):
    """As PyTorch, JAX and CuPy now are: capsules of DLPack 1."""

    version = (1, 1)


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_OTHERS = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12, "float4_e2m1fn": 17}
_api = ctypes.pythonapi
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = _api.PyCapsule_New
_new.argtypes, _new.restype = (ctypes.c_void_p, ctypes.c_char_p, _Destructor), ctypes.py_object
_kept: list[Any] = []  # functions that C may still call


def capsule_of(array: Torch) -> Any:
    """Return a real capsule of an array; the fake counts those that are not given back yet."""
    data, ndim, fake = array.data, array.data.ndim, array.fake
    managed = dlpack.Managed() if array.version is None else dlpack.Versioned()
    if array.version is not None:
        (managed.major, managed.minor), managed.flags = array.version, array.flags
    tensor, size = managed.tensor, data.dtype.itemsize
    tensor.data, tensor.byte_offset = data.ctypes.data - 64, 64
    tensor.device_type, tensor.device_id, tensor.ndim = 2, array.device_number, ndim
    code = _OTHERS.get(data.dtype.name)
    tensor.code = _CODES[data.dtype.kind] if code is None else code
    tensor.bits, tensor.lanes = 8 * size, 1
    tensor.shape = (ctypes.c_int64 * ndim)(*data.shape)
    if not data.flags.c_contiguous:
        tensor.strides = (ctypes.c_int64 * ndim)(*(s // size for s in data.strides))
    name = b"dltensor" if array.version is None else b"dltensor_versioned"

    def given_back(_: int) -> None:
        fake.capsules -= 1
        key.clear()

    # Kept as long as the capsule is; freed with it, but for the function that is running just then.
    key = [managed, data]
    destructor = _Destructor(given_back)
    key.append(destructor)
    _kept.append(destructor)
    fake.capsules += 1
    return _new(ctypes.addressof(managed), name, destructor)


class Jax:
    """DLPack alone, and nobody may write to it."""

    def __init__(self, fake: Fake, values: Any, device: int) -> None:
        self._array = Torch(fake, values, device)
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **more: Any) -> Any:
        return self._array.__dlpack__(**more)

    def __array_namespace__(self) -> Any:
        fake = self._array.fake

        class Space:
            @staticmethod
            def asarray(values: Any, device: int) -> Jax:
                return Jax(fake, values, device)

        return Space

    def get(self) -> Any:
        return self._array.get()


Jax.__module__ = "jax.numpy"


class Math(NDArrayOperatorsMixin, Array):
    """An array to calculate with, as CuPy's: never together with an array of the host."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **more: Any) -> Any:
        if any(isinstance(one, np.ndarray) and one.ndim for one in inputs):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        values = [one.get() if isinstance(one, Array) else one for one in inputs]
        found = getattr(ufunc, method)(*values, **more)
        if out is None:
            return Math(self.fake, np.asarray(found), self.device_number)
        out[0].data[...] = found
        return out[0]

    def __setitem__(self, index: Any, values: Any) -> None:
        if isinstance(values, np.ndarray) and values.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        self.data[index] = values.get() if isinstance(values, Array) else values

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple) and any(isinstance(i, list) for i in index):
            return Math(self.fake, self.data[index], self.device_number)  # a copy
        return super().__getitem__(index)

    def __float__(self) -> float:
        return float(self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape  # type: ignore[no-any-return]

    @property
    def size(self) -> int:
        return int(self.data.size)

    def reshape(self, *shape: Any) -> Math:
        return Math(self.fake, None, self.device_number, self.data.reshape(*shape))

    def tobytes(self) -> bytes:
        return self.get().tobytes()  # type: ignore[no-any-return]


class Space:
    """A module of arrays on a device, as far as the learners use CuPy."""

    def __init__(self, fake: Fake, device: int = 0) -> None:
        self._new = lambda values: Math(fake, np.asarray(values), device)

    def asarray(self, values: Any) -> Math:
        return values if isinstance(values, Math) else self._new(values)

    def zeros(self, shape: Any) -> Math:
        return self._new(np.zeros(shape))

    def ones(self, shape: Any) -> Math:
        return self._new(np.ones(shape))

    def concatenate(self, parts: list[Math]) -> Math:
        return self._new(np.concatenate([part.get() for part in parts]))
