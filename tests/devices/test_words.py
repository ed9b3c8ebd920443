"""Device words: read and filled through the ring, whoever made the array, in the order of streams."""

from __future__ import annotations

import math
import pathlib
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_device import CARD, OTHER, Array, Fake, FakeError, Jax, Numba, Torch, Unnamed, Versioned

import alpha_mpi as am
from alpha_mpi.devices import dlpack
from alpha_mpi.devices import ring as rings
from alpha_mpi.devices import runtime as seam
from alpha_mpi.devices.words import _boxes, device_words, is_device_array
from alpha_mpi.digest import CHUNK
from alpha_mpi.errors import PeerFailed, Refused

WORDS = 3 * CHUNK // 4 + 1001  # of float32: not quite three chunks


class Legacy(Unnamed):
    """CUDA's number 1: the legacy default stream, by name."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(super().__cuda_array_interface__, stream=1)


class PerThread(Array):
    """CUDA's number 2: the default stream of the thread that asks, as CuPy has it on request."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return dict(super().__cuda_array_interface__, stream=2)


def read(words: Any) -> bytes:
    return b"".join(bytes(view) for view in words.steps(0, words.size * words.dtype.itemsize))


@pytest.mark.parametrize("kind", [Array, Unnamed, Legacy, PerThread, Numba, Torch, Versioned, Jax])
@pytest.mark.parametrize("device", [0, 1])
def test_read_after_what_the_producer_has_begun(fake: Fake, kind: Any, device: int) -> None:
    old, new = np.zeros(WORDS, np.float32), np.arange(WORDS, dtype=np.float32)
    array = fake.array(old, device, kind)
    (array._array if kind is Jax else array).later(new)
    words = device_words(array)
    assert read(words) == new.tobytes() and words.identity == (CARD, OTHER)[device]
    assert words.writable == (kind is not Jax) and fake.current() == 0
    assert bytes(words.copy(5, 4 * WORDS - 3)) == new.tobytes()[5:-3]


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "c8", "c16"])
def test_strided_words_are_packed_on_the_device(fake: Fake, dtype: str) -> None:
    whole = (np.arange(40 * 30 * 50 * 4) % 251).astype(dtype)
    array = fake.array(whole.reshape(40, 30, 50, 4))
    for view in (array.T, array[::2, 1:], array[:, ::-1], array[..., 1], array[7:8, 3], array[0, 0, 0, 0]):
        words = device_words(view)
        assert read(words) == view.data.tobytes()
        target = device_words(fake.array(np.zeros(view.data.shape, dtype).T).T)
        target.fill(view.data)
        assert read(target) == view.data.tobytes()
    assert rings.ring(fake)._made <= rings.BUFFERS


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (4, 1, 2, 3)])
def test_boxes_are_the_words_of_an_interval(shape: tuple[int, ...]) -> None:
    numbers = np.arange(math.prod(shape)).reshape(shape)
    for start in range(numbers.size):
        for stop in range(start + 1, numbers.size + 1):
            found: list[int] = []
            boxes = list(_boxes(shape, start, stop))
            for at, extent in boxes:
                found += (
                    numbers[tuple(slice(a, a + n) for a, n in zip(at, extent, strict=True))].ravel().tolist()
                )
            assert found == list(range(start, stop)) and len(boxes) <= max(1, 2 * len(shape) - 1)


def test_the_ring_is_bounded_and_kept(fake: Fake) -> None:
    array = fake.array(np.arange(20 * CHUNK, dtype=np.uint8))
    for _ in range(2):
        assert read(device_words(array)) == array.data.tobytes()
        device_words(array).fill(array.data[::-1])
    lent = rings.ring(fake)
    assert fake.pinned_bytes <= rings.BUFFERS * CHUNK and len(lent._free) + len(lent._busy) == lent._made


def test_copies_run_ahead_of_the_reader() -> None:
    """While the first chunk is looked at, the next ones are under way already."""
    with seam.replaced(Fake()) as _:
        fake = seam.runtime()
        assert isinstance(fake, Fake)
        steps = device_words(fake.array(np.zeros(20 * CHUNK, np.uint8))).steps(0, 20 * CHUNK)
        next(steps)
        assert fake.calls.count("to_host") == rings.DEPTH
        assert fake.calls.count("copy") == 1, "the others are not waited for"
        steps.close()  # type: ignore[attr-defined]


def test_a_read_before_its_event_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fake is for: without the wait, without the order, and with a buffer used too soon."""
    new = np.arange(WORDS, dtype=np.float32)
    for broken, early in (("wait", False), ("follow", False), ("follow", True)):
        fake = Fake(early=early)
        with seam.replaced(fake), monkeypatch.context() as patch:
            array = fake.array(np.zeros(WORDS, np.float32))
            array.later(new)
            if broken == "wait":
                patch.setattr("fake_device.Event.wait", lambda self: None)
            else:
                patch.setattr(fake, "follow", lambda device, stream, event: None)
            assert read(device_words(array)) != new.tobytes(), broken
    fake = Fake()
    with seam.replaced(fake), monkeypatch.context() as patch:
        give_back = rings.Ring.give_back
        patch.setattr(rings.Ring, "give_back", lambda self, buffer, *_: give_back(self, buffer))
        array = fake.array(np.zeros(WORDS, np.float32))
        device_words(array).fill(new)
        assert array.data.tobytes() != new.tobytes()


@pytest.mark.parametrize("what", ["pinned", "stream", "record", "to_host", "copy", "wait", "follow"])
def test_a_device_that_fails(what: str) -> None:
    """A typed error, whatever fails; no buffer is lost, and the next attempt is right."""
    fake = Fake()
    with seam.replaced(fake):
        values = np.arange(WORDS, dtype=np.float32)
        array = fake.array(values)
        fake.fail(what)
        with pytest.raises(PeerFailed, match=f"{what} failed") as told:
            read(device_words(array, "w"))
        assert told.value.code == "device-failed" and told.value.region == "w"
        assert isinstance(told.value.__cause__, FakeError)
        assert read(device_words(array)) == values.tobytes()
        for broken in ("to_device", "copy"):
            fake.fail(broken)
            with pytest.raises(PeerFailed, match="failed"):
                device_words(array).fill(values)
            device_words(array).fill(values + 1)
            assert array.data.tobytes() == (values + 1).tobytes()
        lent = rings.ring(fake)
        assert len(lent._free) + len(lent._busy) == lent._made <= rings.BUFFERS


def test_a_buffer_that_a_device_may_still_write_to_is_lent_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first box of a chunk is under way when the second one fails."""
    fake = Fake()
    with seam.replaced(fake):
        words = device_words(fake.array(np.zeros((700, 900), np.float32)).T)
        lent, made = rings.ring(fake), []
        monkeypatch.setattr(
            fake, "pinned", lambda n, d, pinned=fake.pinned: made.append(pinned(n, d)) or made[-1]
        )
        fake.fail("to_host", after=1)
        with pytest.raises(PeerFailed, match="to_host failed"):
            words.fetch()
        ((_, buffer, _),) = lent._busy
        assert buffer is made[0] and lent._made == 1 and not lent._free
        fake.fail("to_host", after=1)
        monkeypatch.setattr(fake, "record", lambda *_: fake.fail("record") or fake.step("record"))
        with pytest.raises(PeerFailed, match="to_host failed"):
            words.fetch()
        assert lent._dropped == [made[-1]] and lent._made == len(lent._busy) == 1, (
            "kept, and no part of the ring any more"
        )
        monkeypatch.undo()
        assert words.fetch().shape == (900, 700)


def test_nothing_reads_an_array_that_nobody_reads_any_more(fake: Fake) -> None:
    """A reader that ends early leaves no copy under way: the array may be freed then."""
    array = fake.array(np.zeros(20 * CHUNK, np.uint8))
    steps = device_words(array).steps(0, 20 * CHUNK)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    queue = rings.stream(fake, 0)
    assert queue.done == len(queue.work) >= rings.DEPTH


def test_what_cannot_be_words() -> None:
    with seam.replaced(Fake()):
        fake = seam.runtime()
        assert isinstance(fake, Fake)
        for dtype in (">f4",):
            with pytest.raises(Refused) as told:
                device_words(fake.array(np.zeros(3, dtype)), "w")
            assert told.value.code == "format" and told.value.region == "w"
        read_only = fake.array(np.zeros(3))
        read_only.writable = False
        assert not device_words(read_only).writable
        same = fake.array(np.zeros((3, 1)))
        same.data = np.broadcast_to(same.data, (3, 4))
        assert not device_words(same).writable, "one word that stands at many places"
        assert read(device_words(fake.array(np.zeros((0, 3))))) == b""


def test_what_is_a_device_array() -> None:
    fake = Fake()
    for value in (np.zeros(2), np.float32(1), 1.0, None, [1], Array, memoryview(b"")):
        assert not is_device_array(value)
    assert all(is_device_array(fake.array([1.0], 0, kind)) for kind in (Array, Numba, Torch, Jax))


def test_without_cupy_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["cupy"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "cupy" else found(name, *a)
import alpha_mpi as am

class Gpu:
    __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (64, False), "version": 3}

state = am.State()
state.replicate("w", Gpu())
try:
    am.Checkpointer(sys.argv[1], state)
except am.Refused as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, "x"], capture_output=True, text=True, timeout=60)
    assert "alpha-mpi[gpu-cuda12]" in done.stdout and "[missing-package]" in done.stdout, done
    assert "region 'w'" in done.stdout


@pytest.mark.parametrize("kind", [Torch, Versioned])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "u8", "c8"])
def test_every_dtype_comes_by_dlpack(fake: Fake, kind: Any, dtype: str) -> None:
    """Those NumPy does not know have no typestr, and CuPy knows few of them: the capsule says what it is."""
    made = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.arange(3 * 40 * 5).reshape(3, 40, 5).astype("u1").astype(made)
    array = fake.array(np.zeros_like(values), 1, kind)
    array.later(values)
    for view in (array, array.T, array[::2, :, ::-1]):
        words = device_words(view)
        assert words.dtype == made and words.writable
        assert read(words) == view.data.tobytes() == words.fetch().tobytes()
        words.fill(view.data)
    assert fake.capsules == 1 and fake.calls.count("dlpack") == 3, "each is given back with its words"
    del words
    assert fake.capsules == 0


def test_an_interface_of_a_dtype_without_a_name(fake: Fake) -> None:
    """CuPy's bfloat16 has the typestr of two bytes without a meaning, and DLPack beside it."""

    class Both(Versioned):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return dict(Array.__cuda_array_interface__.fget(self), typestr="<V2")  # type: ignore[attr-defined]

    array = fake.array(np.zeros(9, ml_dtypes.bfloat16), 0, Both)
    array.later(np.arange(9))
    assert device_words(array).dtype == ml_dtypes.bfloat16
    assert device_words(array).fetch().tolist() == list(range(9))


def test_capsules_that_say_more(fake: Fake) -> None:
    array = fake.array(np.zeros(3), 0, Versioned)
    for flags, writable in ((0, True), (1, False), (2, False), (4, True)):  # 1: read-only, 2: a copy
        array.flags = flags
        assert device_words(array).writable == writable
    array.version = (2, 0)
    with pytest.raises(Refused, match="newer DLPack") as told:
        device_words(array)
    assert told.value.code == "format" and told.value.found == "version 2.0"
    array.version, array.data = (1, 0), np.zeros(3, ml_dtypes.float4_e2m1fn)
    with pytest.raises(Refused, match="none of ours"):
        device_words(array)
    array.__dlpack__ = lambda **_: (array, 1)  # type: ignore[method-assign]
    with pytest.raises(Refused, match="not a DLPack capsule"):
        device_words(array)
    with pytest.raises(Refused, match="or one that was used"):
        dlpack.contents(used())


def used() -> Any:
    """Return a capsule that NumPy has taken."""
    capsule = np.arange(3).__dlpack__()

    class Once:
        __dlpack_device__ = np.arange(3).__dlpack_device__

        def __dlpack__(self, **_: Any) -> Any:
            return capsule

    np.from_dlpack(Once())
    return capsule


class Sharded:
    """As an array of JAX that lies on several devices."""

    shape, dtype = (4,), np.dtype(np.float32)

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError("only supported for unsharded arrays")


@pytest.mark.parametrize("source", [Sharded(), Sharded], ids=["array", "getter"])
def test_an_array_on_several_devices_is_refused_by_name(tmp_path: pathlib.Path, source: Any) -> None:
    state = am.State()
    state.partition("w", source, shape=(4,), layout=am.rows(), dtype=np.float32)
    with (
        pytest.raises(Refused, match="region 'w': an array that does not lie on one device") as told,
        am.Checkpointer(tmp_path / "s", state, None) as ckpt,
    ):
        ckpt.resume()
    assert told.value.code == "format"


def test_capsules_of_numpy() -> None:
    """Capsules that we did not make."""
    values = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    for view in (values, values.T, values[::-1, 1:], values[..., :0]):
        for more in ({}, {"max_version": (1, 0)}):
            try:
                found = dlpack.contents(view.__dlpack__(**more))
            except TypeError:  # NumPy before 2.1 knows no versions
                continue
            assert found.pointer == view.ctypes.data and found.dtype == view.dtype
            assert (found.shape, found.writable) == (view.shape, True)
            assert found.strides == view.strides or not view.size
