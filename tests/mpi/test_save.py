"""Save and resume on star and tree, at any number of ranks: exact, or refused alike everywhere."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fill import fill, same_bits

import alpha_mpi as am

HIERARCHIES = [am.Star(), am.Tree(1), am.Tree(2), am.Tree(3)]


def names(h: Any) -> str:
    return "star" if isinstance(h, am.Star) else f"tree{h.fan_out}"


@pytest.fixture
def store(comm: Any, mpi_tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    yield mpi_tmp_path / "ckpt"


class Model:
    """A state of every kind of layout, with the words of `fill`."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.arrays: dict[str, np.ndarray] = {}
        self.power = 1.0
        self.count = 0
        self.schedule: dict[str, Any] = {}
        self.generator = np.random.Generator(np.random.PCG64(rank))
        self.specs: dict[str, tuple[tuple[int, ...], Any, Any]] = {
            "rows": ((65, 7), np.float32, am.rows()),
            "columns": ((3, 17), np.float64, am.rows(1)),
            "flat": ((1003,), np.float32, am.shares()),
            "short": ((2,), np.int64, am.shares()),
            "empty": ((0,), np.float32, am.shares()),
            "half": ((33, 3), ml_dtypes.bfloat16, am.rows()),
            "mask": ((19,), np.bool_, am.shares()),
            "ring": ((12, 5), np.complex64, am.mesh({"d": size, "m": 1}, (None, "m"))),
            "some": ((9, 2), np.float32, am.on([size - 1], am.rows())),
        }
        for name, (shape, dtype, _) in self.specs.items():
            self.arrays[name] = np.zeros(self.local(name, fill(name, 0, shape, dtype)).shape, dtype)
        self.mean = np.zeros(257, np.float32)
        self.mine = np.zeros(5, np.uint64)

    def local(self, name: str, whole: np.ndarray) -> np.ndarray:
        shape, _, rule = self.specs[name]
        pieces = rule.pieces(shape, self.size, self.rank)
        if not pieces:
            return whole.reshape(-1)[:0].copy()
        (piece,) = pieces
        if isinstance(piece, am.Interval):
            return whole.reshape(-1)[piece.start : piece.stop].copy()
        index = tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))
        return whole[index].copy()

    def at(self, update: int) -> None:
        for name, (shape, dtype, _) in self.specs.items():
            self.arrays[name][...] = self.local(name, fill(name, update, shape, dtype))
        self.mean[...] = fill("mean", update, (257,), np.float32)
        self.mine[...] = fill(f"mine{self.rank}", update, (5,), np.uint64)
        self.power = 0.9**update
        self.count = update
        self.schedule = {"rate": 0.1 / (update + 1), "names": ["a", "$b"], "big": 2**70}
        fresh = np.random.PCG64(self.rank)
        np.random.Generator(fresh).random(update)
        self.generator.bit_generator.state = fresh.state  # the declared generator, never a new one

    def state(self) -> am.State:
        state = am.State()
        for name, (shape, dtype, rule) in self.specs.items():
            state.partition(name, self.arrays[name], shape=shape, layout=rule, dtype=dtype)
        state.replicate("mean", lambda: self.mean)
        state.replicate("power", self, "power")
        state.replicate("count", self, "count")
        state.document("schedule", lambda: self.schedule, lambda v: setattr(self, "schedule", v))
        state.per_owner("mine", self.mine)
        state.per_owner("rng", am.rng(self.generator))
        return state

    def check(self, update: int) -> None:
        other = Model(self.rank, self.size)
        other.at(update)
        for name, array in other.arrays.items():
            assert same_bits(self.arrays[name], array), name
        assert same_bits(self.mean, other.mean)
        assert same_bits(self.mine, other.mine)
        assert (self.power, self.count) == (other.power, other.count)
        assert type(self.power) is float and type(self.count) is int
        assert self.schedule == other.schedule
        assert self.generator.bit_generator.state == other.generator.bit_generator.state


@pytest.mark.mpi
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_a_saved_state_comes_back_exactly(comm: Any, store: pathlib.Path, hierarchy: Any) -> None:
    model = Model(comm.rank, comm.size)
    model.at(0)
    with am.Checkpointer(store, model.state(), comm, hierarchy=hierarchy, deadline=30) as ckpt:
        assert ckpt.resume() == am.Moment(0, 0, 1)
        for update in (1, 2, 3):
            model.at(update)
            generation = ckpt.save(update)
            assert generation.moment == am.Moment(update, update, 1)
    again = Model(comm.rank, comm.size)
    with am.Checkpointer(store, again.state(), comm, hierarchy=hierarchy, deadline=30) as ckpt:
        moment = ckpt.resume()
        assert (moment.update, moment.cursor, moment.epoch) == (3, 3, 2)
        again.check(3)
        again.at(4)
        ckpt.save(4)


class Scattered:
    """An irregular region: every owner holds every n-th block of three rows, and moves them along."""

    shape = (24, 5)

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.turn = 0
        self.blocks = [np.zeros((3, 5), np.float32) for _ in self.pieces()]

    def pieces(self) -> list[am.Box]:
        mine = range((self.rank + self.turn) % self.size, 8, self.size)
        return [am.Box((3 * i, 0), (3 * i + 3, 5)) for i in reversed(mine)]

    def at(self, update: int, turn: int) -> None:
        self.turn = turn
        whole = fill("scattered", update, self.shape, np.float32)
        self.blocks = [whole[p.starts[0] : p.stops[0]].copy() for p in self.pieces()]

    def state(self) -> am.State:
        state = am.State()
        state.partition(
            "w", lambda: self.blocks, shape=self.shape, layout=am.irregular(self.pieces), dtype=np.float32
        )
        return state


@pytest.mark.mpi
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_irregular_pieces_that_move_between_saves(comm: Any, store: pathlib.Path, hierarchy: Any) -> None:
    held = Scattered(comm.rank, comm.size)
    with am.Checkpointer(store, held.state(), comm, hierarchy=hierarchy, deadline=30) as ckpt:
        ckpt.resume()
        for update in (1, 2, 3):
            held.at(update, turn=update // 2)
            ckpt.save(update)
    again = Scattered(comm.rank, comm.size)
    again.at(0, turn=1)
    with am.Checkpointer(store, again.state(), comm, hierarchy=hierarchy, deadline=30) as ckpt:
        assert ckpt.resume().update == 3
        for mine, theirs in zip(again.blocks, held.blocks, strict=True):
            assert same_bits(mine, theirs)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_irregular_pieces_that_overlap_are_refused_alike(
    comm: Any, store: pathlib.Path, hierarchy: Any
) -> None:
    held = Scattered(comm.rank, comm.size)
    with am.Checkpointer(store, held.state(), comm, hierarchy=hierarchy, deadline=30) as ckpt:
        ckpt.resume()
        held.at(1, turn=1 if comm.rank == 0 else 0)
        with pytest.raises(am.Refused) as caught:
            ckpt.save(1)
        assert caught.value.code in ("overlap", "incomplete-cover")
        assert caught.value.region == "w"
        held.at(1, turn=0)
        ckpt.save(1)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_replica_groups_write_once_and_are_compared(pairs: Any, store: pathlib.Path, hierarchy: Any) -> None:
    if pairs is None:
        return
    comm, n = pairs, pairs.size
    rule = am.mesh({"data": 2, "model": n // 2}, ("model",))
    held = am.on(range(0, n, 2), am.mesh({"data": n // 2}, (None,)))
    a, b = am.shares().bounds(1001, n // 2, comm.rank % (n // 2))
    whole = fill("w", 1, (1001, 3), np.float32)
    w = whole[a:b].copy()
    e = fill("e", 1, (7,), np.float64) if comm.rank % 2 == 0 else np.zeros(0)

    def state(w: np.ndarray, e: np.ndarray) -> am.State:
        state = am.State()
        state.partition("w", w, shape=(1001, 3), layout=rule)
        state.partition("e", e, shape=(7,), layout=held, dtype=np.float64)
        return state

    with am.Checkpointer(store, state(w, e), comm, hierarchy=hierarchy, deadline=30) as ckpt:
        ckpt.resume()
        if comm.rank == n - 1:
            w.view(np.uint32)[5, 1] ^= 1
        with pytest.raises(am.Refused) as caught:
            ckpt.save(1)
        assert (caught.value.code, caught.value.role, caught.value.region) == ("diverged-replica", n - 1, "w")
        if comm.rank == n - 1:
            w.view(np.uint32)[5, 1] ^= 1
        ckpt.save(1)
    files = list(store.rglob("*.pack"))
    assert sum(p.stat().st_size for p in files) < 1.5 * whole.nbytes + 8192 * n
    w2, e2 = np.zeros_like(w), np.zeros_like(e)
    with am.Checkpointer(store, state(w2, e2), comm, hierarchy=hierarchy, deadline=30) as ckpt:
        assert ckpt.resume().update == 1
    assert same_bits(w, w2) and same_bits(e, e2)
