"""Device words: an array on a device as the library reads and fills it, whoever made it.

Reads and writes are ordered after the producer's stream and go through the ring: the copy of a
chunk runs while the one before is digested and written. Words that do not lie one behind the other
are packed on the device, a chunk at a time.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..digest import CHUNK
from ..errors import Refused
from .convoy import Convoy
from .dlpack import exported
from .identity import Identity
from .ring import DEPTH, lane, ring, stream
from .runtime import Event, Layout, Runtime, Shape, c_strides, runtime, told

#: Devices of DLPack that are CUDA's: its own memory, and memory it manages.
_CUDA = (2, 13)
#: CUDA's number of the legacy default stream.
LEGACY = 1
#: Libraries whose arrays nobody may write to, though DLPack does not say so.
_IMMUTABLE = ("jax", "jaxlib", "tensorflow")


class DeviceWords:
    """The words of one array on a device, as they are when the device gets there.

    `value` is the user's array, kept alive as long as this. `writable`: filling them fills it.
    `region` is the name that errors give.
    """

    def __init__(self, seam: Runtime, layout: Layout, value: Any, writable: bool, region: str | None) -> None:
        self.seam = seam
        self._keep = value
        self.region = region
        self.layout = layout
        steps = zip(layout.strides, layout.shape, strict=True)
        self.writable = writable and not any(s == 0 and n > 1 for s, n in steps)
        #: Number of the producer's stream, where it is known.
        self.producer: int | None = None
        #: The convoy that reads these words as its array of this number, where there is one.
        self.convoy: tuple[Convoy, int] | None = None

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    @property
    def size(self) -> int:
        return math.prod(self.layout.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.layout.dtype.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether the words lie one behind the other in C order."""
        step = self.layout.dtype.itemsize
        for n, s in zip(reversed(self.layout.shape), reversed(self.layout.strides), strict=True):
            if n > 1 and s != step:
                return False
            step *= n
        return True

    @property
    def identity(self) -> Identity:
        """Which device they lie on."""
        with told(self.seam, self.region):
            return self.seam.identity(self.layout.device)

    def is_same_memory(self, other: DeviceWords) -> bool:
        """Return whether both are the same words of one device's memory, in the same order."""
        return self.layout == other.layout

    # ------------------------------------------------ reading

    def steps(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield bytes [begin, end) of the words in C order, a chunk at a time, from `begin` on.

        Both lie between two words. Each view is good until the next one is asked for. Raises
        `PeerFailed` (``device-failed``).
        """
        if self.convoy is not None and (begin, end) == (0, self.nbytes):
            with told(self.seam, self.region):
                yield from self.convoy[0].read(self.convoy[1])
            return
        seam, lent = self.seam, ring(self.seam)
        pending: collections.deque[tuple[Event | None, memoryview, int, Any]] = collections.deque()
        shown: memoryview | None = None
        arrived = False
        at = begin
        with told(seam, self.region):
            try:
                while at < end or pending:
                    while at < end and len(pending) < DEPTH:
                        buffer = lent.borrow(self.layout.device, wait=not pending)
                        if buffer is None:
                            break
                        nbytes = min(CHUNK, end - at)
                        pending.append((None, buffer, nbytes, None))  # known before it can fail
                        keep = self.begin(buffer[:nbytes], at)
                        event = seam.record(self.layout.device, self._stream)
                        pending[-1] = (event, buffer, nbytes, keep)
                        at += nbytes
                    event_, buffer, nbytes, _ = pending[0]
                    assert event_ is not None
                    event_.wait()
                    arrived = True
                    pending.popleft()
                    shown = buffer
                    yield buffer[:nbytes].toreadonly()
                    shown = None
                    lent.give_back(buffer)
            finally:
                if shown is not None:
                    lent.give_back(shown)
                for left, buffer, _, keep in pending:
                    if left is None:
                        lent.leave(buffer, self.layout.device, keep)
                    elif arrived:  # so the producer is done, and this is soon
                        lent.end(buffer, left, keep)
                    else:
                        lent.give_back(buffer, left, keep)

    def copy(self, begin: int, end: int) -> memoryview:
        """Return bytes [begin, end) of the words, cut anywhere, in memory of their own."""
        size = self.layout.dtype.itemsize
        first = begin // size * size
        found = bytearray(-(-end // size) * size - first)
        done = 0
        for view in self.steps(first, first + len(found)):
            found[done : done + len(view)] = view
            done += len(view)
        return memoryview(found)[begin - first : end - first]

    def fetch(self) -> npt.NDArray[Any]:
        """Return the words as an array of the host."""
        data = self.copy(0, self.size * self.dtype.itemsize)
        return np.frombuffer(data, self.dtype).reshape(self.shape)

    # ------------------------------------------------ writing

    def put(self, data: memoryview, at: int) -> None:
        """Begin to write bytes of consecutive words from byte `at` on; `settle` ends it.

        `at` and the end lie between two words. `data` may be used again at once.
        """
        data = memoryview(data).cast("B")
        for i in range(0, len(data), CHUNK):
            part = data[i : i + CHUNK]
            done = 0
            for box in self.boxes(at + i, at + i + len(part)):
                nbytes = math.prod(box.shape) * box.dtype.itemsize
                self._send(box, part[done : done + nbytes])
                done += nbytes

    def put_block(self, words: npt.NDArray[Any], at: int, strides: Shape) -> None:
        """Begin to write `words` where strides, in words, lead from word `at` on; as `put`.

        The words lie one behind the other here. At most one chunk.
        """
        assert self.contiguous
        size = self.dtype.itemsize
        layout = self.layout._replace(
            pointer=self.layout.pointer + at * size,
            shape=words.shape,
            strides=tuple(s * size for s in strides),
        )
        packed = np.ascontiguousarray(words)
        self._send(layout, memoryview(packed.reshape(-1).view(np.uint8).data))

    def fill(self, array: npt.NDArray[Any]) -> None:
        """Write a whole array of the host, and end it."""
        if self.size:
            flat = np.ascontiguousarray(array, self.dtype).reshape(-1).view(np.uint8)
            self.put(memoryview(flat.data), 0)
        self.settle()

    def settle(self) -> None:
        """Return when everything begun is written, so that any stream finds it."""
        with told(self.seam, self.region):
            lane(self.seam, self.layout.device).settle()

    def _send(self, words: Layout, data: memoryview) -> None:
        with told(self.seam, self.region):
            lane(self.seam, words.device).send(words, data)

    def made_like(self, space: Any, value: Any, array: npt.NDArray[Any]) -> Any:
        """Return a new array of `value`'s library, `space`, on the same device, with these words."""
        device = getattr(value, "device", None)
        with told(self.seam, self.region), self.seam.using(self.layout.device):
            try:
                return space.asarray(array, device=device)
            except TypeError:  # libraries that take no device make it on the current one
                return space.asarray(array)

    # ------------------------------------------------ places

    @property
    def _stream(self) -> Any:
        return stream(self.seam, self.layout.device)

    def begin(self, host: memoryview, at: int) -> list[Any]:
        """Put the copies of the bytes from `at` on into pinned memory onto the stream.

        Returns what must be kept until they are done.
        """
        kept, done = [], 0
        for box in self.boxes(at, at + len(host)):
            nbytes = math.prod(box.shape) * box.dtype.itemsize
            kept.append(self.seam.to_host(host[done : done + nbytes], box, self._stream))
            done += nbytes
        return kept

    def boxes(self, begin: int, end: int) -> Iterator[Layout]:
        """Yield the words of bytes [begin, end), in order, as boxes of the array."""
        layout, size = self.layout, self.layout.dtype.itemsize
        if self.contiguous:
            yield layout._replace(
                pointer=layout.pointer + begin, shape=((end - begin) // size,), strides=(size,)
            )
            return
        for starts, shape in _boxes(layout.shape, begin // size, end // size):
            at = sum(i * s for i, s in zip(starts, layout.strides, strict=True))
            yield layout._replace(pointer=layout.pointer + at, shape=shape)


def _boxes(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    """Yield (first index, shape) of the boxes that are words [start, stop) in C order."""
    if not shape:
        yield (), ()
        return
    inner = math.prod(shape[1:])
    first, head = divmod(start, inner)
    last, tail = divmod(stop, inner)
    if first == last:
        yield from _in_row(first, shape, head, tail)
        return
    if head:
        yield from _in_row(first, shape, head, inner)
        first += 1
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if tail:
        yield from _in_row(last, shape, 0, tail)


def _in_row(row: int, shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    for starts, extents in _boxes(shape[1:], start, stop):
        yield (row, *starts), (1, *extents)


def in_convoy(words: Iterable[DeviceWords]) -> Convoy | None:
    """Let the small ones of some words be read ahead, in this order; `close` what is returned.

    None where there are fewer than two.
    """
    small = [one for one in words if 0 < one.nbytes <= CHUNK]
    if len(small) < 2:
        return None
    convoy = Convoy(small[0].seam, small)
    for number, one in enumerate(small):
        one.convoy = (convoy, number)
    return convoy


# ------------------------------------------------ whose arrays these are


def is_device_array(value: Any) -> bool:
    """Return whether a value is an array on a GPU, of whatever library. Loads nothing."""
    if isinstance(value, (np.ndarray, np.generic, type)):
        return False
    return _interface(value) is not None or _dlpack_device(value) is not None


def device_words(value: Any, region: str | None = None) -> DeviceWords:
    """Return the words of a device array, to be read or filled after what its producer has begun.

    Called by the thread that uses the array, whose streams count. The `stream` of
    ``__cuda_array_interface__`` is honoured; where it names none, DLPack tells the producer of
    ours; where there is neither, the whole device is waited for. Raises `Refused` (``format``,
    ``missing-package``), `PeerFailed` (``device-failed``).
    """
    seam = runtime()
    with told(seam, region):
        found, there = _interface(value), _dlpack_device(value)
        if found is not None and found.get("mask") is not None:
            raise Refused("a masked array on a GPU", code="format", region=region, found="a mask")
        # A dtype that NumPy does not know by itself, as bfloat16, has no typestr of its own.
        typed = found is not None and "stream" in found and np.dtype(found["typestr"]).kind != "V"
        if there is not None and not typed:
            return _by_dlpack(seam, value, found, there, region)
        assert found is not None
        pointer = int(found["data"][0])
        device = seam.device_of(pointer) if pointer else seam.current()
        if "stream" in found and device != seam.current():
            with seam.using(device):  # the current stream is one per device
                found = _interface(value) or found
        if "stream" not in found:
            seam.finish(device)
        else:  # none named: the legacy default stream, on which work goes unless told otherwise
            event = seam.record(device, int(found["stream"] or LEGACY))
            seam.follow(device, stream(seam, device), event)
    dtype = np.dtype(found["typestr"])
    if not dtype.isnative:
        raise Refused(
            "an array on a GPU in foreign byte order", code="format", region=region, found=str(dtype)
        )
    shape = tuple(int(n) for n in found["shape"])
    strides = found.get("strides")
    if strides is None:
        strides = c_strides(shape, dtype.itemsize)
    layout = Layout(pointer, dtype, shape, tuple(int(s) for s in strides), device)
    words = DeviceWords(seam, layout, value, not found["data"][1], region)
    words.producer = int(found["stream"]) if found.get("stream") else None
    return words


def _by_dlpack(
    seam: Runtime, value: Any, interface: dict[str, Any] | None, device: int, region: str | None
) -> DeviceWords:
    with seam.using(device):
        export, capsule = exported(value, seam.number(stream(seam, device)))
    if interface is not None:
        writable = not interface["data"][1]  # older capsules do not say
    else:
        writable = type(value).__module__.split(".")[0] not in _IMMUTABLE
    layout = Layout(export.pointer, export.dtype, export.shape, export.strides, device)
    return DeviceWords(seam, layout, (value, capsule), writable and export.writable, region)


def _interface(value: Any) -> dict[str, Any] | None:
    try:
        found = value.__cuda_array_interface__
    except (AttributeError, TypeError, KeyError):  # also: a dtype that has no typestr
        return None
    return found if isinstance(found, dict) else None


def _dlpack_device(value: Any) -> int | None:
    """Return the number of the CUDA device that DLPack says a value is on.

    Raises `Refused` (``format``) for one that DLPack cannot speak of, as it lies on several.
    """
    ask = getattr(value, "__dlpack_device__", None)
    if ask is None:
        return None
    try:
        kind, device = ask()
    except BufferError as error:
        raise Refused(
            "an array that does not lie on one device: give its parts, each as a piece of its own",
            code="format",
            expected="an array on one device",
            found=str(error)[:200],
        ) from error
    return int(device) if int(kind) in _CUDA else None
