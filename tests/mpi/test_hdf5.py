"""Copies written, and files imported, by many owners: exact, whoever holds nothing (R18)."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest
from fill import fill, same_bits

import alpha_mpi as am
from alpha_mpi.exporting import export_copy
from alpha_mpi.importing import import_hdf5
from alpha_mpi.interop import hdf5
from alpha_mpi.interop.hdf5 import copy as room
from tests.mpi.scenario import refusal

SPECS = {
    "t": ((2, 10), np.float64, am.rows()),
    "w": ((64, 33), np.float32, am.rows(1)),
    "flat": ((7, 5, 3), np.int16, am.shares()),
}


@pytest.fixture
def folder(comm: Any, mpi_tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    yield mpi_tmp_path


def part(name: str, comm: Any) -> np.ndarray:
    shape, dtype, rule = SPECS[name]
    whole = fill(name, 1, shape, dtype)
    pieces = rule.pieces(shape, comm.size, comm.rank)
    if not pieces:
        return whole.reshape(-1)[:0]
    if isinstance(pieces[0], am.Interval):
        return whole.reshape(-1)[pieces[0].start : pieces[0].stop]
    return whole[tuple(slice(a, b) for a, b in zip(pieces[0].starts, pieces[0].stops, strict=True))]


def save(store: pathlib.Path, comm: Any, own: bool = True) -> None:
    tree: dict[str, Any] = {name: part(name, comm) for name in SPECS} | {"s": np.float64(2.5), "d": [1, "x"]}
    layouts: dict[str, Any] = {name: (rule, shape, dtype) for name, (shape, dtype, rule) in SPECS.items()}
    if own:
        tree["own"], layouts["own"] = fill(f"own{comm.rank}", 1, (3,), np.uint8), am.per_owner()
    am.save(store, tree, comm, layouts=layouts, deadline=30)


def check(reader: Any) -> None:
    for name, (shape, dtype, _) in SPECS.items():
        assert same_bits(np.asarray(reader[name][...]), fill(name, 1, shape, dtype)), name


@pytest.mark.mpi
@pytest.mark.parametrize("compress", [False, True])
def test_a_copy_written_together(
    comm: Any, folder: pathlib.Path, compress: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "STEP", 256)  # many steps: every owner has some, and none of small regions
    save(folder / "ckpt", comm)
    done = export_copy(folder / "ckpt", (1, 1), folder / "c.h5", comm, compress=compress, deadline=30)
    assert done.path == str((folder / "c.h5").resolve())
    with h5py.File(folder / "c.h5") as file:
        check(file)
        assert file["s"][()] == 2.5 and file["own"].shape == (comm.size, 3)
    told = refusal(comm, lambda: export_copy(folder / "ckpt", (1, 1), folder / "c.h5", comm, deadline=30))
    assert told.code == "file-exists"
    comm.Barrier()
    assert sorted(p.name for p in folder.iterdir()) == ["c.h5", "ckpt"]


@pytest.mark.mpi
def test_damage_that_one_owner_meets_leaves_no_copy(comm: Any, folder: pathlib.Path) -> None:
    save(folder / "ckpt", comm)
    if comm.rank == 0:
        pack = max(folder.rglob("*.pack"), key=lambda p: p.stat().st_size)
        data = bytearray(pack.read_bytes())
        data[130] ^= 1
        pack.write_bytes(data)
    comm.Barrier()
    told = refusal(comm, lambda: export_copy(folder / "ckpt", (1, 1), folder / "c.h5", comm, deadline=30))
    assert told.code == "corrupt-shard"
    comm.Barrier()
    assert [p.name for p in folder.iterdir()] == ["ckpt"]


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["copy", "view"])
def test_what_many_owners_import(comm: Any, folder: pathlib.Path, kind: str) -> None:
    save(folder / "ckpt", comm)
    if kind == "copy":
        export_copy(folder / "ckpt", (1, 1), folder / "f.h5", comm, deadline=30)
    elif comm.rank == 0:
        with am.open(folder / "ckpt") as reader:
            hdf5.write_view(reader.latest()._generation, folder / "f.h5", verified=True)
    comm.Barrier()
    made = import_hdf5(folder / "f.h5", folder / "again", comm, deadline=30)
    assert made.moment.update == 1
    with am.open(folder / "again") as reader:
        found = reader.latest()
        check(found)
        assert found.owners == comm.size
        assert same_bits(found["own"][comm.rank], fill(f"own{comm.rank}", 1, (3,), np.uint8))
        assert found["w"].layout == {"axis": 1, "rule": "rows"}
    told = refusal(comm, lambda: import_hdf5(folder / "no.h5", folder / "again", comm, deadline=30))
    assert told.code in ("io-error", "user-code")
