"""A signed store on many ranks: owner 0 alone reads the key, signs and checks."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from tests.mpi.scenario import HIERARCHIES, Words, name_of, open_, publish, refusal, refused_resume, restored

pytestmark = pytest.mark.mpi

REGIONS = (("w", (41, 5), np.float32, am.rows()), ("bias", (7,), np.float64, None))


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_a_signed_store(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    path, key, other = mpi_tmp_path / "s", mpi_tmp_path / "key", mpi_tmp_path / "other"
    if comm.rank == 0:
        for file in (key, other):
            file.write_bytes(file.name.encode() * 20)
            file.chmod(0o600)
        other.chmod(0o400)
    comm.barrier()
    # No other rank has the file.
    mine = key if comm.rank == 0 else mpi_tmp_path / "nowhere"
    publish(path, Words(comm, *REGIONS), comm, 1, 2, hierarchy=hierarchy, key=mine)
    assert restored(path, Words(comm, *REGIONS), comm, hierarchy=hierarchy, key=mine) == am.Moment(2, 2, 2)
    words = Words(comm, *REGIONS)
    refused = refused_resume(comm, path, words.state(), hierarchy=hierarchy)
    assert (refused.code, refused.role) == ("unsigned", 0)
    with open_(path, words.state(), comm, hierarchy=hierarchy, key=mpi_tmp_path / "other") as ckpt:
        assert refusal(comm, ckpt.resume).code == "forged-signature"
    told = refusal(comm, lambda: open_(path, words.state(), comm, key=mpi_tmp_path / "nowhere"))
    assert (told.code, told.role) == ("key-file", 0)
    if comm.size > 1:
        part = None if comm.rank == comm.size - 1 else mine
        told = refusal(comm, lambda: open_(path, words.state(), comm, key=part))
        assert (told.code, told.role) == ("argument-differs", comm.size - 1)
    assert am.load(path, comm, key=mine).keys() == {"w", "bias"}
