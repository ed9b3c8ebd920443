"""The real devices, by CuPy: what the fake stands for. Run wherever there is a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.devices.presence import identities
from alpha_mpi.devices.runtime import runtime
from alpha_mpi.devices.words import device_words
from alpha_mpi.digest import CHUNK

pytestmark = pytest.mark.gpu

ROOT = pathlib.Path(__file__).resolve().parents[2]
LARGE = 9 * CHUNK // 4 + 77
LIBRARIES = [name for name in ("cupy", "torch", "jax", "numba") if importlib.util.find_spec(name)]


def made(library: str, values: Any, device: int = 0) -> Any:
    """Return an array of a library on a device."""
    if library == "torch":
        import torch

        return torch.from_numpy(np.ascontiguousarray(values)).to(f"cuda:{device}")
    if library == "jax":
        import jax

        return jax.device_put(values, jax.devices("gpu")[device])
    if library == "numba":
        from numba import cuda

        with cuda.gpus[device]:
            return cuda.to_device(np.ascontiguousarray(values))
    import cupy

    with cupy.cuda.Device(device):
        return cupy.asarray(values)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "c8", "c16"])
def test_words_of_every_library(library: str, dtype: str) -> None:
    values = (np.arange(LARGE) % 251).astype(dtype)
    for device in range(runtime().count()):
        before = runtime().current()
        words = device_words(made(library, values, device))
        assert words.layout.device == device and words.shape == values.shape
        assert b"".join(bytes(v) for v in words.steps(0, values.nbytes)) == values.tobytes()
        if words.writable:
            words.fill(values[::-1])
            assert words.fetch().tobytes() == values[::-1].tobytes()
        assert runtime().current() == before


def test_strided_words() -> None:
    import cupy

    whole = (np.arange(300 * 70 * 11) % 65521).astype(np.float32).reshape(300, 70, 11)
    array = cupy.asarray(whole)
    for index in (np.s_[::2, 1:], np.s_[:, ::-1], np.s_[..., 1], np.s_[7:8, 3]):
        words = device_words(array[index])
        assert words.fetch().tobytes() == np.ascontiguousarray(whole[index]).tobytes()
        words.fill(whole[index] + 1)
        assert cupy.asnumpy(array[index]).tobytes() == np.ascontiguousarray(whole[index] + 1).tobytes()
        words.fill(whole[index])
    assert device_words(array.T).fetch().tobytes() == np.ascontiguousarray(whole.T).tobytes()


def test_after_what_the_producer_has_begun() -> None:
    """Long work on a stream of the user's, and the words read at once: twenty times."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    for attempt in range(20):
        with stream:
            array = cupy.zeros(LARGE, cupy.float32)
            for _ in range(200):
                array += 1
            array += attempt
            words = device_words(array)
        assert (words.fetch() == 200 + attempt).all()


def test_saved_and_resumed(tmp_path: pathlib.Path) -> None:
    import cupy

    rng = np.random.default_rng(7)
    for hierarchy in (am.Star(), am.Tree(2)):
        path = tmp_path / type(hierarchy).__name__
        values = rng.random(LARGE).astype(np.float32)

        def state(w: Any, s: Any) -> am.State:
            found = am.State()
            found.partition("w", w, shape=(LARGE,), layout=am.shares())
            found.replicate("strided", s)
            return found

        w, s = cupy.asarray(values), cupy.asarray(values[:6000].reshape(60, 100)).T
        with am.Checkpointer(path, state(w, s), hierarchy=hierarchy) as ckpt:
            ckpt.resume()
            ckpt.save(1)
        again, turned = cupy.zeros_like(w), cupy.zeros((60, 100), cupy.float32).T
        with am.Checkpointer(path, state(again, turned), hierarchy=hierarchy) as ckpt:
            assert ckpt.resume().update == 1
        assert cupy.asnumpy(again).tobytes() == values.tobytes()
        assert (cupy.asnumpy(turned) == values[:6000].reshape(60, 100).T).all()
        with am.open(path) as store:
            found = identities()
            assert found is not None and store.latest().contract.product == found[0].product


def test_identities_do_not_depend_on_the_spelling() -> None:
    """The first device, seen by number, by UUID and by the beginning of it."""
    found = identities()
    assert found
    first = found[0]
    code = "import json; from alpha_mpi.devices.presence import identities; print(json.dumps(identities()))"
    outer = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    for spelt in (outer, first.uuid, first.uuid[:12]):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": spelt, "PYTHONPATH": str(ROOT)}
        told = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
        )
        assert json.loads(told.stdout) == [list(first)], spelt


def test_snapshots_and_direct_writes(tmp_path: pathlib.Path) -> None:
    """The same packs, each way; while the arrays are written to as soon as a snapshot is ordered."""
    import cupy

    from alpha_mpi.devices.snapshot import Snapshot, snapshot

    values = np.random.default_rng(5).random(LARGE).astype(np.float32)
    arrays = [cupy.asarray(values), cupy.asarray(values[:6000].reshape(60, 100)).T, cupy.asarray(values[:1])]
    free = runtime().free(0)
    for _ in range(20):
        found = snapshot([device_words(array) for array in arrays])
        for array in arrays:
            array *= -1
        assert isinstance(found, Snapshot)
        seen = [words.fetch() for words in found.words]
        found.release()
        assert all((-cupy.asnumpy(a) == b).all() for a, b in zip(arrays, seen, strict=True))
    runtime().finish(0)
    assert runtime().free(0) > free - (64 << 20), "the memory is given back"
    packs = []
    ways: tuple[dict[str, Any], ...] = ({}, {"snapshot": "device"}, {"gpu_direct": "auto"})
    for i, more in enumerate(ways):
        state = am.State()
        for number, array in enumerate(arrays):
            state.replicate(f"w{number}", array)
        with am.Checkpointer(tmp_path / f"{i}", state, **more) as ckpt:
            ckpt.resume()
            ckpt.save(1)
        (pack,) = (tmp_path / f"{i}").rglob("*.pack")
        packs.append(pack.read_bytes())
    assert packs[0] == packs[1] == packs[2]


def test_many_small_arrays() -> None:
    import cupy

    from alpha_mpi.devices.words import in_convoy

    arrays = [cupy.full((300,), i, cupy.float32) for i in range(2000)]
    words = [device_words(array) for array in arrays]
    convoy = in_convoy(words)
    assert convoy is not None
    for i, one in enumerate(words):
        assert (one.fetch() == i).all()
        one.put(memoryview(np.full(300, -i, np.float32).view(np.uint8).data), 0)
    convoy.close()
    for one in words:
        one.settle()
    assert all(float(array[7]) == -i for i, array in enumerate(arrays))


@pytest.mark.parametrize("library", [name for name in LIBRARIES if name == "torch"])
def test_bfloat16_by_dlpack(library: str) -> None:
    torch = importlib.import_module(library)
    tensor = torch.arange(1000, dtype=torch.bfloat16, device="cuda").reshape(10, 100).T
    words = device_words(tensor)
    assert words.dtype.name == "bfloat16"
    assert (words.fetch().astype(np.float32) == tensor.float().cpu().numpy()).all()
