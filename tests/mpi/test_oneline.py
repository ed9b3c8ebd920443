"""save and load on many owners: replicated and dealt arrays, other owner counts, one error for all."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fill import fill, same_bits

import alpha_mpi as am
from tests.mpi.scenario import refusal, team

SHAPE = (11, 3)


@pytest.fixture
def store(comm: Any, mpi_tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    yield mpi_tmp_path / "ckpt"


def part(whole: np.ndarray, rule: Any, comm: Any) -> np.ndarray:
    pieces = rule.pieces(whole.shape, comm.size, comm.rank)
    if not pieces:
        return whole[:0]
    if isinstance(pieces[0], am.Interval):
        return whole.reshape(-1)[pieces[0].start : pieces[0].stop]
    return whole[tuple(slice(a, b) for a, b in zip(pieces[0].starts, pieces[0].stops, strict=True))]


def given(comm: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tree and its layouts, for this owner."""
    whole = fill("w", 1, SHAPE, np.float32)
    tree = {
        "model": {"w": part(whole, am.rows(), comm), "flat": part(whole, am.shares(), comm)},
        "same": fill("s", 1, (4,), np.int32),
        "mine": fill(f"m{comm.rank}", 1, (2,), np.uint8),
        "rate": 0.5,
    }
    layouts = {"model/w": (am.rows(), SHAPE), "model/flat": (am.shares(), SHAPE), "mine": am.per_owner()}
    return tree, layouts


@pytest.mark.mpi
def test_each_owner_gets_its_part_back(comm: Any, store: pathlib.Path) -> None:
    tree, layouts = given(comm)
    am.save(store, tree, comm, layouts=layouts, deadline=30)
    found = am.load(store, comm, deadline=30)
    assert same_bits(found["same"], tree["same"]) and found["rate"] == 0.5
    assert same_bits(found["mine"], tree["mine"])
    for name in ("w", "flat"):
        assert same_bits(found["model"][name].reshape(-1), tree["model"][name].reshape(-1)), name


@pytest.mark.mpi
def test_another_number_of_owners_gets_what_the_rule_deals_now(comm: Any, store: pathlib.Path) -> None:
    tree, layouts = given(comm)
    del tree["mine"], layouts["mine"]
    am.save(store, tree, comm, layouts=layouts, deadline=30)
    whole = fill("w", 1, SHAPE, np.float32)
    with team(comm, max(1, comm.size - 1)) as some:
        if some is not None:
            found = am.load(store, some, deadline=30)
            expected = whole if some.size == 1 else part(whole, am.rows(), some)
            assert same_bits(found["model"]["w"], expected)
    comm.Barrier()


@pytest.mark.mpi
def test_what_is_wrong_on_one_owner_is_every_owners_error(comm: Any, store: pathlib.Path) -> None:
    last = comm.size - 1
    odd = {"x": {1, 2}} if comm.rank == last else {"x": 1}
    assert refusal(comm, lambda: am.save(store, odd, comm, deadline=30)).code == "document"
    if comm.size > 1:
        told = refusal(comm, lambda: am.save(store, {"x": np.full(3, comm.rank)}, comm, deadline=30))
        assert told.code == "diverged-replica"
    am.save(store, {"x": np.arange(300), "y": np.arange(2)}, comm, deadline=30)
    if comm.rank == 0:
        with contextlib.suppress(StopIteration):
            pack = next(store.rglob("*.pack"))
            data = bytearray(pack.read_bytes())
            data[300] ^= 1
            pack.write_bytes(data)
    comm.Barrier()
    told = refusal(comm, lambda: am.load(store, comm, deadline=30))
    assert told.code == "corrupt-shard"
    assert refusal(comm, lambda: am.load(store / "no", comm, deadline=30)).code == "no-store"


@pytest.mark.mpi
def test_what_each_owner_has_of_its_own_is_never_given_to_another(comm: Any, store: pathlib.Path) -> None:
    tree, layouts = given(comm)
    am.save(store, {"mine": tree["mine"]}, comm, layouts={"mine": layouts["mine"]}, deadline=30)
    if comm.size > 1:
        with team(comm, comm.size - 1) as some:
            if some is not None:
                told = refusal(some, lambda: am.load(store, some, deadline=30))
                assert told.code == "per-owner-state"
    comm.Barrier()
