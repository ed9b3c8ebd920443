"""Repartition: a generation resumes on any other placement, bit for bit, or is refused by name.

A *team* of a ranks saves and a team of b ranks resumes, within one launch.
"""

from __future__ import annotations

import itertools
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fill import fill, same_bits

import alpha_mpi as am
from alpha_mpi.model.layout import Irregular, Replicated
from alpha_mpi.model.pieces import local_shape
from tests.mpi.scenario import open_, team

pytestmark = pytest.mark.mpi

HIERARCHIES = [am.Star(), am.Tree(2), am.Tree(3)]


def whole(name: str, update: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return fill(name, update, shape, dtype)


def cut(array: np.ndarray, piece: Any) -> np.ndarray:
    """The words of a piece of an array, in the piece's own shape."""
    if isinstance(piece, am.Interval):
        return array.reshape(-1)[piece.start : piece.stop].copy()
    return array[tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))].copy()


def factors(n: int) -> tuple[int, int]:
    """The most square grid of n owners."""
    a = next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)
    return a, n // a


def odd_pieces(shape: tuple[int, ...], n: int, k: int, seed: int) -> list[am.Interval]:
    """Irregular pieces: the flattened words cut at random and dealt at random."""
    rng = np.random.default_rng([seed, n])
    size = math.prod(shape)
    cuts = sorted({0, size, *rng.integers(0, size + 1, 2 * n).tolist()})
    owners = rng.integers(0, n, len(cuts)).tolist()
    return [am.Interval(a, b) for (a, b), o in zip(itertools.pairwise(cuts), owners, strict=False) if o == k]


#: Ways to lay out a two-dimensional region on n owners.
LAYOUTS: dict[str, Any] = {
    "rows": lambda n: am.rows(),
    "columns": lambda n: am.rows(1),
    "shares": lambda n: am.shares(),
    "grid": lambda n: am.grid(factors(n)),
    "mesh": lambda n: am.mesh({"data": factors(n)[0], "model": factors(n)[1]}, ("model",)),
    "mesh2": lambda n: am.mesh({"data": factors(n)[1], "model": factors(n)[0]}, (None, "model")),
    "some": lambda n: am.on(range(n - 1, -1, -2), am.shares()),
    "replicated": lambda n: am.replicated(),
    "irregular": lambda n: "irregular",
}


class Job:
    """One owner's state: regions of `fill`, each laid out by name."""

    def __init__(
        self, comm: Any, layouts: dict[str, tuple[tuple[int, ...], Any, str]], setters: bool = False
    ):
        self.rank, self.size = comm.rank, comm.size
        self.layouts, self.setters = layouts, setters
        self.arrays: dict[str, list[np.ndarray]] = {}
        self.pieces: dict[str, list[Any]] = {}
        self.document: Any = None
        self.state = am.State()
        for name, (shape, dtype, layout) in layouts.items():
            self._declare(name, shape, np.dtype(dtype), layout)
        self.state.document("note", lambda: self.document, self._take)

    def _take(self, value: Any) -> None:
        self.document = value

    def _declare(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], layout: str) -> None:
        rule = LAYOUTS[layout](self.size)
        if rule == "irregular":
            pieces: list[Any] = odd_pieces(shape, self.size, self.rank, len(name))
            rule = am.irregular(pieces)
        else:
            pieces = list(rule.pieces(shape, self.size, self.rank))
        self.pieces[name] = pieces
        local = [shape if isinstance(rule, Replicated) else local_shape(p) for p in pieces]
        arrays = self.arrays[name] = [np.full(s, 7, dtype) for s in local]
        if isinstance(rule, Irregular):
            self.state.partition(name, arrays, shape=shape, layout=rule, dtype=dtype)
            return
        empty = np.zeros(shape, dtype)
        more: dict[str, Any] = {}
        source: Any = lambda: arrays[0] if arrays else empty  # noqa: E731
        if self.setters:
            source = lambda: arrays[0].copy() if arrays else empty  # noqa: E731
            more = {"write": lambda value: arrays.__setitem__(0, value)}
        if isinstance(rule, Replicated):
            self.state.replicate(name, source, **more)
        else:
            self.state.partition(name, source, shape=shape, layout=rule, dtype=dtype, **more)

    def at(self, update: int) -> None:
        self.document = {"update": update}
        for name, (shape, dtype, _) in self.layouts.items():
            everything = whole(name, update, shape, dtype)
            for array, piece in zip(self.arrays[name], self.pieces[name], strict=True):
                array[...] = cut(everything, piece).reshape(array.shape)

    def check(self, update: int) -> None:
        assert self.document == {"update": update}
        for name, (shape, dtype, _) in self.layouts.items():
            everything = whole(name, update, shape, dtype)
            for array, piece in zip(self.arrays[name], self.pieces[name], strict=False):
                assert same_bits(array, cut(everything, piece).reshape(array.shape)), name


SHAPES = {
    "a": ((29, 17), np.float32),
    "b": ((7, 40), ml_dtypes.bfloat16),
    "c": ((5, 3), np.int64),
    "large": ((300, 1000), np.float64),
    "empty": ((0, 3), np.float32),
    "e4": ((13, 11), ml_dtypes.float8_e4m3fn),
}


def laid_out(*names: str) -> dict[str, tuple[tuple[int, ...], Any, str]]:
    """The regions, with these layouts in turn."""
    turn = itertools.cycle(names)
    return {name: (shape, dtype, next(turn)) for name, (shape, dtype) in SHAPES.items()}


def save(comm: Any, path: pathlib.Path, owners: int, layouts: Any, update: int, **more: Any) -> None:
    with team(comm, owners) as part:
        if part is not None:
            job = Job(part, layouts)
            with open_(path, job.state, part, **more) as ckpt:
                ckpt.resume()
                job.at(update)
                ckpt.save(update)
    comm.Barrier()


def resume(comm: Any, path: pathlib.Path, owners: int, layouts: Any, update: int, **more: Any) -> None:
    setters = more.pop("setters", False)
    with team(comm, owners) as part:
        if part is not None:
            job = Job(part, layouts, setters)
            with open_(path, job.state, part, **more) as ckpt:
                moment = ckpt.resume()
                assert moment.update == update
            job.check(update)
    comm.Barrier()


def pairs() -> Iterator[tuple[int, int]]:
    return itertools.product((1, 2, 3, 4, 7), repeat=2)


def test_every_count_on_every_other(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    # Layouts and hierarchies change along with the counts.
    layouts = list(LAYOUTS)
    for i, (a, b) in enumerate(pairs()):
        if max(a, b) > comm.size:
            continue
        path = mpi_tmp_path / f"{a}-{b}"
        before = laid_out(*layouts[i % 9 :], *layouts[: i % 9])
        after = laid_out(*layouts[(i * 2 + 3) % 9 :], *layouts[: (i * 2 + 3) % 9])
        save(comm, path, a, before, 3, hierarchy=HIERARCHIES[i % 3])
        resume(
            comm,
            path,
            b,
            after,
            3,
            hierarchy=HIERARCHIES[(i // 3) % 3],
            staging=(1 << 30, 1 << 20, 0)[i % 3],
            setters=i % 2 == 1,
        )


@pytest.mark.parametrize("after", list(LAYOUTS))
@pytest.mark.parametrize("before", list(LAYOUTS))
def test_every_layout_from_every_other(
    comm: Any, mpi_tmp_path: pathlib.Path, before: str, after: str
) -> None:
    a = min(4, comm.size)
    b = min(3, comm.size)
    which = (list(LAYOUTS).index(before) + list(LAYOUTS).index(after)) % 3
    save(comm, mpi_tmp_path / "s", a, laid_out(before), 5, hierarchy=HIERARCHIES[which])
    resume(comm, mpi_tmp_path / "s", b, laid_out(after), 5, hierarchy=HIERARCHIES[which - 1])
