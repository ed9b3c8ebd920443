"""Long HDF5 work says how far it is: bytes done, up to all of them."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import alpha_mpi
from alpha_mpi.importing import import_hdf5
from alpha_mpi.interop import hdf5
from alpha_mpi.restore.generation import Generation
from alpha_mpi.store.store import Store


@pytest.mark.parametrize("compress", [False, True])
def test_a_copy_and_an_import_tell_their_bytes(tmp_path: pathlib.Path, compress: bool) -> None:
    arrays = {"a": np.arange(300_000, dtype=np.float64), "b": np.ones((7, 3), np.float32)}
    alpha_mpi.save(tmp_path / "s", arrays)
    nbytes = sum(a.nbytes for a in arrays.values())
    told: list[tuple[int, int]] = []
    with Store.open(tmp_path / "s") as store:
        generation = Generation.open(store, 1, 1)
        hdf5.write_copy(
            generation, tmp_path / "c.h5", compress=compress, progress=lambda *now: told.append(now)
        )
    assert told == sorted(told) and {total for _, total in told} == {nbytes}
    assert told[-1] == (nbytes, nbytes)
    told.clear()
    import_hdf5(tmp_path / "c.h5", tmp_path / "t", progress=lambda *now: told.append(now))
    assert told == sorted(told) and len(told) == 2
    with alpha_mpi.open(tmp_path / "t") as reader:
        again = reader.latest()
        assert np.array_equal(np.asarray(again["a"]), arrays["a"])
