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
