"""The seam by CuPy, on a CuPy that is not there: which calls it makes, on which device, in which thread."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_cupy import CUDARuntimeError, Gpus

from alpha_mpi.devices import presence
from alpha_mpi.devices import runtime as seam
from alpha_mpi.devices.identity import Identity
from alpha_mpi.devices.words import device_words
from alpha_mpi.digest import CHUNK
from alpha_mpi.errors import PeerFailed, Refused

WORDS = CHUNK // 4 + 77


class Given:
    """An array as Numba has it: an address, and a stream if it likes."""

    def __init__(self, pointer: int, shape: Any, strides: Any = None, **more: Any) -> None:
        found = {"shape": shape, "typestr": "<f4", "version": 3, "data": (pointer, False), "strides": strides}
        self.__cuda_array_interface__ = {**found, **more}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    """Two devices, seen by a `Cuda` of a fresh module."""
    found = Gpus()
    monkeypatch.setitem(sys.modules, "cupy", found.cupy)
    monkeypatch.delitem(sys.modules, "alpha_mpi.devices.cuda", raising=False)
    module: Any = importlib.import_module("alpha_mpi.devices.cuda")
    monkeypatch.setattr(module, "_driver", lambda: found)
    found.module = module  # type: ignore[attr-defined]
    with seam.replaced(module.Cuda()):
        yield found
    monkeypatch.delitem(sys.modules, "alpha_mpi.devices.cuda")


def cuda(gpus: Gpus) -> Any:
    return seam.runtime()


def in_thread(work: Any) -> Any:
    """Do something on a new thread, whose current device is 0 as it begins."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("stream", [1, 2, None, "absent"])
def test_words_of_another_device_on_another_thread(gpus: Gpus, stream: Any) -> None:
    """No context on device 0, which this process does not use: one there would take its memory."""
    values = np.arange(WORDS, dtype=np.float32)
    more = {} if stream == "absent" else {"stream": stream}
    gpus.local.device = 1
    words = device_words(Given(gpus.memory(1, values), (WORDS,), **more))
    assert words.layout.device == 1
    if stream != "absent":
        assert gpus.recorded == [(1, stream or 1)]
    data = in_thread(lambda: b"".join(bytes(view) for view in words.steps(0, values.nbytes)))
    assert data == values.tobytes()
    in_thread(lambda: words.fill(values[::-1]))
    assert words.fetch().tobytes() == values[::-1].tobytes()
    assert gpus.contexts == {1} and gpus.current() == 1


def test_the_current_device_stays_where_it_is_in_use(gpus: Gpus) -> None:
    gpus.contexts.add(0)
    device_words(Given(gpus.memory(1, np.zeros(5, "f4")), (5,), stream=1)).fetch()
    assert gpus.current() == 0


@pytest.mark.parametrize("what", ["memcpyAsync", "pinned", "synchronize", "eventRecord", "nvrtc"])
def test_the_current_device_is_restored_after_a_failure(gpus: Gpus, what: str) -> None:
    gpus.contexts.add(0)
    words = device_words(Given(gpus.memory(1, np.zeros(12, "f4")), (4, 3), (4, 16), stream=1))
    gpus.failing[what] = CUDARuntimeError(700)
    for work in (words.fetch, lambda: words.fill(np.ones((4, 3), "f4"))):
        with pytest.raises(PeerFailed, match="cudaError700"):
            work()
        assert gpus.current() == 0 and getattr(gpus.local, "stream", None) is None


def test_whose_memory_an_address_is(gpus: Gpus) -> None:
    """Asked where a context is: on a thread whose current device has none CUDA knows no address."""
    there = gpus.memory(1, np.zeros(5, "f4"))
    assert cuda(gpus).device_of(there) == 1 and gpus.contexts == {1}
    gpus.homes[there] = (20, -2, gpus.homes[there][2])  # memory of the host, that devices can read
    assert cuda(gpus).device_of(there) == gpus.current()
    with pytest.raises(CUDARuntimeError):
        cuda(gpus).device_of(12)
    with pytest.raises(PeerFailed, match="cudaError1"):
        device_words(Given(12, (5,), stream=1))


@pytest.mark.parametrize("shape", [(30, 70), (1,), ()])
def test_strided_words(gpus: Gpus, shape: Any) -> None:
    values = np.arange(2100, dtype=np.float32).reshape(30, 70)[tuple(slice(n) for n in shape) or (0, 0)]
    for view in (values.T, values[::-1]) if shape else (values,):
        view = np.asarray(view)
        first = gpus.memory(0, np.zeros(4200, "f4"))
        room = gpus.homes[first][2]
        at = sum(-s * (n - 1) for s, n in zip(view.strides, view.shape, strict=True) if s < 0)
        words = device_words(Given(first + at, view.shape, view.strides, stream=1))
        words.fill(view)
        assert words.fetch().tobytes() == view.tobytes()
        there = np.ndarray(view.shape, "f4", room.data, at, view.strides)
        assert there.tobytes() == view.tobytes()


@pytest.mark.parametrize("error", [ImportError("libnvrtc"), RuntimeError("CuPy failed to load libnvrtc")])
def test_no_compiler(gpus: Gpus, error: Exception) -> None:
    """CuPy's wheels bring none: contiguous words need none, and for others the cure is named."""
    first = gpus.memory(0, np.zeros(12, "f4"))
    gpus.failing["nvrtc"] = error
    assert device_words(Given(first, (3, 4), stream=1)).fetch().shape == (3, 4)
    strided = device_words(Given(first, (4, 3), (4, 16), stream=1), "w")
    for work in (strided.fetch, lambda: strided.fill(np.ones((4, 3), "f4"))):
        with pytest.raises(PeerFailed, match="CUDA_PATH") as told:
            work()
        assert told.value.code == "device-failed" and told.value.region == "w"
    gpus.failing["nvrtc"] = CUDARuntimeError(700)
    with pytest.raises(PeerFailed, match="cudaError700"):
        strided.fetch()


def test_how_many_devices(gpus: Gpus) -> None:
    assert cuda(gpus).count() == 2
    for status in (35, 100):  # no driver that fits, no device: CuPy 13 raises for one, 14 for neither
        gpus.failing["getDeviceCount"] = CUDARuntimeError(status)
        assert cuda(gpus).count() == 0
    gpus.driver = 11020  # one that is too old is there
    for status in (35, 802):  # 802: devices that are there, and not ready
        gpus.failing["getDeviceCount"] = CUDARuntimeError(status)
        with pytest.raises(CUDARuntimeError):
            cuda(gpus).count()


def test_presence(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert presence.gpus() == [f"Fake One, {1 << 30} bytes"] * 2
    found = presence.identities()
    assert found is not None and [one.product for one in found] == ["Fake One"] * 2
    gpus.failing["getDeviceCount"] = CUDARuntimeError(35)
    assert presence.gpus() == presence.identities() == []
    gpus.driver = 11020
    with pytest.raises(PeerFailed, match="cudaError35") as told:
        presence.identities()
    assert told.value.code == "device-failed"
    with pytest.raises(CUDARuntimeError):
        presence.gpus()


@pytest.mark.parametrize("name", [b"Fake One MIG 1g.10gb", "Fake One MIG 1g.10gb"])
def test_identities(gpus: Gpus, name: Any) -> None:
    gpus.names = name
    found = cuda(gpus).identity(1)
    assert found == Identity("Fake One MIG 1g.10gb", "MIG-aa000000-0000-0000-0000-000000000001", "1g.10gb")
    assert gpus.contexts == set(), "asking makes no context"
    with pytest.raises(PeerFailed, match="CUDA_ERROR_101"), seam.told(cuda(gpus)):
        cuda(gpus).identity(7)


def test_streams_of_other_libraries_have_their_numbers(gpus: Gpus) -> None:
    made = cuda(gpus).stream(1)
    assert cuda(gpus).number(made) == made.ptr and [cuda(gpus).number(n) for n in (1, 2, 77)] == [1, 2, 77]
    event = cuda(gpus).record(1, made)
    cuda(gpus).follow(1, made, event)
    in_thread(event.wait)
    cuda(gpus).finish(1)
    assert gpus.contexts == {1}


def test_cupy_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam, "_runtime", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "alpha_mpi.devices.cuda", raising=False)
    with pytest.raises(Refused, match="cannot be loaded") as told:
        seam.runtime()
    assert told.value.code == "missing-package" and "gpu-cuda12" in str(told.value.expected)


@pytest.mark.parametrize("pools", [True, False])
def test_rooms_and_copies_on_the_device(gpus: Gpus, pools: bool) -> None:
    gpus.pools, runtime = pools, cuda(gpus)
    values = np.arange(600, dtype=np.float64).reshape(20, 30)
    first = gpus.memory(1, values)
    stream = runtime.stream(1)
    assert runtime.free(1) == 1 << 30
    words = device_words(Given(first, (20, 30), stream=1))
    words.layout = words.layout._replace(dtype=np.dtype("f8"), strides=(240, 8))
    strided = words.layout._replace(shape=(30, 20), strides=(8, 240))
    for layout, expected in ((words.layout, values), (strided, values.T)):
        pointer, keep = runtime.room(1, values.nbytes, stream)
        assert runtime.device_of(pointer) == 1
        runtime.copy(pointer, layout, stream)
        assert gpus.homes[pointer][2].tobytes() == expected.tobytes()
        del keep
        assert pointer not in gpus.homes
    gpus.failing["malloc"] = CUDARuntimeError(2)
    with pytest.raises(runtime.errors):
        runtime.room(1, 8, None)
    gpus.failing["nvrtc"] = ImportError("libnvrtc")
    with pytest.raises(runtime.errors, match="CUDA_PATH"):
        runtime.copy(first, strided, stream)
    assert gpus.contexts == {1}
