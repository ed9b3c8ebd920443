"""Scenarios of formats, memory layouts and names: R20, R21, R30.

Each test is named after its entry.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fill import fill, same_bits

import alpha_mpi as am
from alpha_mpi.model import formats
from alpha_mpi.store import names as store_names
from tests.mpi.scenario import (
    Words,
    open_,
    publish,
    refusal,
    refused_resume,
    restored,
    snapshot,
    team,
)

pytestmark = pytest.mark.mpi

# ------------------------------------------------ R20

FORMATS = {
    "bf": ((64, 3), ml_dtypes.bfloat16),
    "h": ((64, 3), np.float16),
    "e4": ((17,), ml_dtypes.float8_e4m3fn),
    "raw": ((64, 3), np.uint16),
}


def regions(**other: Any) -> list[tuple[str, tuple[int, ...], Any, Any]]:
    return [(name, shape, other.get(name, dtype), am.rows()) for name, (shape, dtype) in FORMATS.items()]


def test_r20_formats_come_back_by_name(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    path = mpi_tmp_path / "s"
    publish(path, Words(comm, *regions()), comm, 1)
    fresh = Words(comm, *regions())
    with open_(path, fresh.state(), comm) as ckpt:
        ckpt.resume()
    fresh.check(1)
    for name, (_, dtype) in FORMATS.items():
        assert fresh.arrays[name].dtype == np.dtype(dtype)
    two = {"bf": "bfloat16", "h": "float16", "raw": "uint16"}
    for name, saved in two.items():
        for wrong in (ml_dtypes.bfloat16, np.float16, np.uint16, np.int16):
            asked = formats.of_dtype(wrong).name
            if asked == saved:
                continue
            words = Words(comm, *regions(**{name: wrong}))
            told = refused_resume(comm, path, words.state())
            assert (told.code, told.region) == ("schema-differs", name)
            assert f"expected {asked}, found {saved}" in str(told)
            assert all(set(a.reshape(-1).view(np.uint8)) <= {0xA5} for a in words.arrays.values())
    words = Words(comm, *regions(e4=ml_dtypes.float8_e5m2))
    assert "expected float8_e5m2, found float8_e4m3fn" in str(refused_resume(comm, path, words.state()))


def test_r20_raw_two_byte_words_are_no_format(comm: Any) -> None:
    opaque = fill("h", 1, (4,), np.float16).view("V2")
    state = am.State()
    with pytest.raises(am.Refused) as caught:
        state.replicate("bf", opaque)
    assert caught.value.code == "format" and caught.value.region == "bf"
    with pytest.raises(am.Refused):
        state.replicate("bf", opaque, dtype=ml_dtypes.bfloat16)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Take ml_dtypes away when called, until the test ends."""

    def take() -> None:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        formats.by_name.cache_clear()
        formats._of_dtype.cache_clear()

    yield take
    monkeypatch.undo()
    formats.by_name.cache_clear()
    formats._of_dtype.cache_clear()


def test_r20_without_the_package_of_a_format(
    comm: Any, mpi_tmp_path: pathlib.Path, no_package: Callable[[], None]
) -> None:
    path = mpi_tmp_path / "s"
    publish(path, Words(comm, *regions()), comm, 1)
    plain = Words(comm, *[r for r in regions() if r[0] in ("h", "raw")])
    no_package()
    with pytest.raises(am.Refused) as caught:
        am.State().partition("bf", lambda: None, shape=(64, 3), layout=am.rows(), dtype="bfloat16")
    assert caught.value.code == "missing-package" and "ml_dtypes" in str(caught.value)
    told = refused_resume(comm, path, plain.state())
    assert (told.code, told.region) == ("missing-package", "bf")
    assert "ml_dtypes" in str(told) and "bfloat16" in str(told)
    from click.testing import CliRunner

    from alpha_mpi.cli import alpha_mpi

    # Every rank calls them, as under mpiexec.
    verify = CliRunner().invoke(alpha_mpi(), ["verify", str(path)])
    ls = CliRunner().invoke(alpha_mpi(), ["ls", str(path)])
    if comm.rank == 0:  # which speaks for all
        assert (verify.exit_code, ls.exit_code) == (1, 0), verify.output + ls.output
        assert "ml_dtypes" in verify.output + verify.stderr


# ------------------------------------------------ R21


def _of(base: np.ndarray, view: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    view[...] = values
    return base, view


def in_c_order(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    base = np.zeros(v.shape, v.dtype)
    return _of(base, base, v)


def in_fortran_order(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    base = np.zeros(v.shape, v.dtype, order="F")
    return _of(base, base, v)


def transposed(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axes = (1, 2, 0) if v.ndim == 3 else tuple(reversed(range(v.ndim)))
    base = np.zeros([v.shape[axis] for axis in axes], v.dtype)
    return _of(base, base.transpose(np.argsort(axes)), v)


def every_third_row(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    base = np.zeros((3 * v.shape[0], *v.shape[1:]), v.dtype)
    return _of(base, base[1::3], v)


def every_second_column(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    base = np.zeros((*v.shape[:-1], 2 * v.shape[-1]), v.dtype)
    return _of(base, base[..., ::2], v)


def backwards(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    base = np.zeros(v.shape, v.dtype)
    return _of(base, base[(slice(None, None, -1),) * v.ndim], v)


def big_endian(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if formats.of_dtype(v.dtype).name == "bfloat16":
        return in_c_order(v)  # NumPy has no other byte order of it
    base = np.zeros(v.shape, v.dtype.newbyteorder(">"))
    return _of(base, base, v)


def big_endian_fortran_strided(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if formats.of_dtype(v.dtype).name == "bfloat16":
        return every_third_row(v)
    base = np.zeros((2 * v.shape[0], *v.shape[1:]), v.dtype.newbyteorder(">"), order="F")
    return _of(base, base[::-2], v)


def unaligned(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    base = np.zeros(v.nbytes + 1, np.uint8)
    return _of(base, base[1:].view(v.dtype).reshape(v.shape), v)


MEMORY = [
    in_c_order,
    in_fortran_order,
    transposed,
    every_third_row,
    every_second_column,
    backwards,
    big_endian,
    big_endian_fortran_strided,
    unaligned,
]
#: Of the whole arrays; `f` to `be` are those of the report.
ARRAYS = {
    "f": ((100, 32), np.float32),
    "t": ((5, 4, 3), np.float32),
    "s": ((10, 8), np.int16),
    "r": ((301,), np.float64),
    "be": ((9, 7), np.float64),
    "half": ((9, 7), ml_dtypes.bfloat16),
    "z": ((6, 5), np.complex64),
}
RULES = {
    "whole": None,
    "one": am.on([1], am.rows()),
    "rows": am.rows(),
    "columns": am.rows(1),
    "flat": am.shares(),
}


def _states(comm: Any, memory: Callable[[Words, int], np.ndarray]) -> tuple[Words, am.State]:
    """Declare every array under every rule and every pair of memory layouts."""
    declared = []
    for name, (shape, dtype) in ARRAYS.items():
        for rule_name, rule in RULES.items():
            if rule_name == "columns" and len(shape) < 2:
                continue
            for source in MEMORY:
                for destination in MEMORY:
                    whole = f"{name}/{rule_name}/{source.__name__}/{destination.__name__}"
                    declared.append((whole, shape, dtype, rule))
    words = Words(comm, *declared)
    return words, words.state(**{n: memory(words, i) for i, (n, *_) in enumerate(declared)})


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("hierarchy", [am.Star(), am.Tree(2)], ids=["star", "tree2"])
def test_r21_memory_layouts(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    with team(comm, 3) as three:
        if three is not None:
            _memory_layouts(three, mpi_tmp_path / "s", hierarchy)


def _memory_layouts(comm: Any, path: pathlib.Path, hierarchy: Any) -> None:
    bases: list[tuple[np.ndarray, bytes]] = []
    by_name = {f.__name__: f for f in MEMORY}

    def source(words: Words, i: int) -> np.ndarray:
        base, view = by_name[words.regions[i][0].split("/")[2]](words.words(i, 1))
        bases.append((base, base.tobytes("A")))
        return view

    _, state = _states(comm, source)
    with open_(path, state, comm, hierarchy=hierarchy) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    assert all(base.tobytes("A") == before for base, before in bases)

    views: list[np.ndarray] = []
    around: list[tuple[np.ndarray, np.ndarray]] = []

    def destination(words: Words, i: int) -> np.ndarray:
        zeros = np.zeros_like(words.words(i, 1))
        base, view = by_name[words.regions[i][0].split("/")[3]](zeros)
        views.append(view)
        around.append((base, view))
        return view

    words, state = _states(comm, destination)
    with open_(path, state, comm, hierarchy=hierarchy) as ckpt:
        assert ckpt.resume() == am.Moment(1, 1, 2)
    for i, view in enumerate(views):
        assert same_bits(view, words.words(i, 1)), words.regions[i][0]
    for base, view in around:
        view[...] = 0
        assert not base.reshape(-1).view(np.uint8).any()  # nothing was written beside the view


def test_r21_the_array_of_the_report_at_its_size(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    values = fill("f", 1, (1000, 32), np.float32)
    first, last = am.rows().bounds(1000, comm.size, comm.rank)
    array = np.asfortranarray(values)[first:last]
    state = am.State()
    state.partition("f", array, shape=(1000, 32), layout=am.rows())
    with open_(mpi_tmp_path / "s", state, comm) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    strided = np.zeros((3 * (last - first), 64), np.float32)
    state = am.State()
    state.partition("f", strided[::3, ::2], shape=(1000, 32), layout=am.rows())
    with open_(mpi_tmp_path / "s", state, comm) as ckpt:
        ckpt.resume()
    assert same_bits(strided[::3, ::2], values[first:last])
    assert np.count_nonzero(strided) == np.count_nonzero(strided[::3, ::2])


# ------------------------------------------------ R30

NAMES = [
    "n" * 400,
    "本" * 300,
    "a/b",
    "..",
    "../../../../tmp/escaped",
    "/etc/passwd",
    ".",
    "a;b",
    "a b",
    "a\nb",
    "\t",
    "\\n",
    "a'b\"c",
    "🚀" * 3,
    "right\u202eto left",
    "\u0000zero",
    "e\u0301",
    "\u00e9",  # looks like the one before and is another name
    "weights.pack",
    "store.json",
    "%s{0}$x",
]


def named(comm: Any) -> Words:
    return Words(comm, *[(name, (17,), np.float32, am.shares()) for name in NAMES])


def test_r30_names_of_every_kind(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    path = mpi_tmp_path / "s"
    publish(path, named(comm), comm, 1)
    assert restored(path, named(comm), comm).update == 1
    assert {name.name for name in mpi_tmp_path.iterdir()} == {"s"}
    for name in snapshot(comm, path):
        parts = pathlib.PurePath(name).parts
        assert parts[0] in ("store.json", "epochs", "published", "data"), name
        known = (store_names.parse_attempt, store_names.parse_group, store_names.parse_data)
        assert parts[0] != "data" or all(any(p(n) is not None for p in known) for n in parts[1:]), name
    if comm.rank == 0:
        from click.testing import CliRunner

        from alpha_mpi.cli import alpha_mpi

        told = CliRunner().invoke(alpha_mpi(), ["show", str(path), "--json"])
        assert [r["name"] for r in json.loads(told.stdout)["regions"]] == NAMES
        lines = CliRunner().invoke(alpha_mpi(), ["show", str(path)]).stdout.split("\n")
        assert all(line.isprintable() for line in lines)
        assert sum("float32" in line for line in lines) >= len(NAMES)


def test_r30_errors_quote_a_name_on_one_line(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    words = named(comm)
    arrays = dict(words.arrays)
    state = am.State()
    fault: list[str] = []

    def read(name: str) -> np.ndarray:
        if fault == [name]:
            raise ValueError("bad")
        return arrays[name]

    for name in NAMES:
        state.partition(name, lambda name=name: read(name), shape=(17,), layout=am.shares())
    with open_(mpi_tmp_path / "s", state, comm) as ckpt:
        ckpt.resume()
        words.at(1)
        for name in NAMES:
            fault[:] = [name] if comm.rank == comm.size - 1 else []
            told = refusal(comm, lambda: ckpt.save(1))
            assert (told.code, told.role, told.region) == ("user-code", comm.size - 1, name)
            assert str(told).isprintable() and repr(name) in str(told)
        fault.clear()
        ckpt.save(1)


def test_r30_names_refused_at_declaration(comm: Any) -> None:
    state = am.State()
    state.replicate("w", np.zeros(3))
    for name in ("", "w", "a\ud800b", "\udfff", "n" * 1025):
        with pytest.raises(am.Refused) as caught:
            state.replicate(name, np.zeros(3))
        assert caught.value.code == "name" and str(caught.value).isprintable()
        assert len(str(caught.value)) < 2000
    state.replicate("n" * 1024, np.zeros(3))


def test_r30_a_store_path_near_the_limit(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    top = mpi_tmp_path / "deep"
    path = str(top)
    while len(path) < 4000 - 120:
        path = os.path.join(path, "d" * min(255, 4000 - 20 - len(path)))
    path = os.path.join(path, "s" * (4060 - len(path) - 1))  # PATH_MAX is 4096 with the end
    try:
        publish(path, Words(comm, ("w", (40,), np.float32, am.shares())), comm, 1, 2)
        fresh = Words(comm, ("w", (40,), np.float32, am.shares()))
        assert restored(path, fresh, comm).update == 2
        told = refusal(comm, lambda: open_(path + "x" * 40, fresh.state(), comm))
        assert "…" in str(told) and len(str(told)) < 2000
    finally:
        comm.barrier()
        if comm.rank == 0:
            shutil.rmtree(top)
