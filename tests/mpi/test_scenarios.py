"""Scenarios that happened to others: owners without words, file times, other paths, another state.

Each test is named after its entry: R07 and so on.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from tests.mpi.scenario import (
    HIERARCHIES,
    Words,
    name_of,
    open_,
    publish,
    refusal,
    refused_resume,
    restored,
    snapshot,
    team,
)

pytestmark = pytest.mark.mpi


def command(comm: Any, *words: object) -> Any:
    """Run a command as mpiexec would, on every rank; return owner 0's answer on every owner."""
    from click.testing import CliRunner

    from alpha_mpi.cli import alpha_mpi

    result = CliRunner().invoke(alpha_mpi(), [*map(str, words), "--json"])
    told = (result.exit_code, json.loads(result.stdout)) if comm.rank == 0 else None
    code, data = comm.bcast(told, 0)
    assert code == 0, data
    return data


# ------------------------------------------------ R07


@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_r07_owners_without_words(comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    step = -(-6 // comm.size)  # 4 owners: 2, 2, 2, 0 words
    first, last = min(6, step * comm.rank), min(6, step * (comm.rank + 1))
    words = Words(
        comm,
        ("a", (6,), np.float32, am.irregular([am.Interval(first, last)])),
        ("b", (6,), np.float32, am.shares()),
        ("z", (0,), np.float32, am.shares()),
        ("zz", (3, 0, 5), np.int8, am.rows()),
        ("s", (), np.float64, None),
        ("t", (), np.float64, am.shares()),
        ("one", (1, 9, 4), np.float16, am.rows()),
        ("none", (0, 7), np.uint8, None),
        ("mine", (3, 0, 2), np.float32, "own"),
        ("last", (2, 3), np.int16, am.on([comm.size - 1], am.rows())),
    )
    publish(mpi_tmp_path / "s", words, comm, 1, 2, hierarchy=hierarchy)
    assert restored(mpi_tmp_path / "s", words, comm, hierarchy=hierarchy) == am.Moment(2, 2, 2)
    command(comm, "verify", mpi_tmp_path / "s")


def test_r07_a_state_without_any_word(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    words = Words(comm, ("z", (0,), np.float32, am.shares()), ("n", (0, 2), np.int8, None))
    with open_(mpi_tmp_path / "s", words.state(), comm) as ckpt:
        ckpt.resume()
        ckpt.save(1)
        ckpt.save(2, unchanged_ok=True)
    assert restored(mpi_tmp_path / "s", words, comm).update == 2


# ------------------------------------------------ R10


def _all_times(path: pathlib.Path, time_of: Any) -> None:
    for name in [path, *path.rglob("*")]:
        at = time_of(name)
        os.utime(name, (at, at), follow_symlinks=False)


@pytest.mark.parametrize("times", ["newest-looks-oldest", "all-equal", "copied"])
def test_r10_file_times_decide_nothing(comm: Any, mpi_tmp_path: pathlib.Path, times: str) -> None:
    path = mpi_tmp_path / "s"
    words = Words(comm, ("w", (40, 3), np.float32, am.rows()), ("mean", (7,), np.float64, None))
    *_, newest = publish(path, words, comm, 9, 10, 100, keep=2)
    if comm.rank == 0:
        if times == "copied":
            shutil.copytree(path, mpi_tmp_path / "copy", copy_function=shutil.copyfile)
        elif times == "all-equal":
            _all_times(path, lambda name: 1_000_000_000)
        else:
            new = ("e000001-000003",)
            _all_times(path, lambda name: 1 if any(n in str(name) for n in new) else 2_000_000_000)
    comm.barrier()
    if times == "copied":
        path = mpi_tmp_path / "copy"
    rows = command(comm, "ls", path)["generations"]
    assert [(r["update"], r["state"]) for r in rows] == [(10, "lineage"), (100, "newest")]
    fresh = Words(comm, *words.regions)
    with open_(path, fresh.state(), comm, keep=2) as ckpt:
        assert ckpt.resume() == am.Moment(100, 100, 2)
        fresh.check(100)
        fresh.at(101)
        again = ckpt.save(101)
    assert again.root != newest.root
    rows = command(comm, "ls", path)["generations"]
    assert [(r["update"], r["state"]) for r in rows] == [(100, "lineage"), (101, "newest")]
    assert restored(path, words, comm).update == 101
    for row in rows:
        command(comm, "verify", path, row["name"])


# ------------------------------------------------ R11, on one lineage


def test_r11_a_lower_number_is_refused_not_skipped(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    path = mpi_tmp_path / "s"
    words = Words(comm, ("w", (40,), np.float32, am.shares()))
    publish(path, words, comm, 1600, 1800, 1820)
    with open_(path, words.state(), comm) as ckpt:
        assert ckpt.resume().update == 1820
        before = snapshot(comm, path)
        for update in (1620, 1640):
            words.at(update)
            told = refusal(comm, lambda update=update: ckpt.save(update))  # type: ignore[misc]
            assert told.code == "stale-update" and "1820" in str(told) and str(update) in str(told)
        assert snapshot(comm, path) == before
        words.at(1840)
        ckpt.save(1840)
    assert restored(path, words, comm).update == 1840


# ------------------------------------------------ R02


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["fresh", "store", "missing"])
def test_r02_another_path_on_one_rank(comm: Any, mpi_tmp_path: pathlib.Path, kind: str) -> None:
    usual, other = mpi_tmp_path / "run-49", mpi_tmp_path / "run-50"
    odd = comm.size - 1
    words = Words(comm, ("w", (40,), np.float32, am.shares()))
    if comm.rank == 0:
        usual.mkdir()
        if kind != "missing":
            other.mkdir()
    comm.barrier()
    if kind == "store" and comm.rank == odd:
        from mpi4py import MPI

        publish(other, Words(MPI.COMM_SELF, *words.regions), MPI.COMM_SELF, 1)
    comm.barrier()
    before = snapshot(comm, other)
    path = other if comm.rank == odd else usual
    told = refusal(comm, lambda: open_(path, words.state(), comm))
    assert (told.code, told.role) == ("other-store", odd)
    assert str(usual) in str(told) and str(other) in str(told)
    assert snapshot(comm, other) == before
    assert not any("published/" in name for name in snapshot(comm, usual))
    # The same processes go on once the path is right.
    publish(usual, words, comm, 1)
    assert restored(usual, words, comm).update == 1


@pytest.mark.mpi(min_size=2)
def test_r02_two_paths_to_one_directory(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    usual = mpi_tmp_path / "run"
    words = Words(comm, ("w", (40,), np.float32, am.shares()))
    if comm.rank == 0:
        usual.mkdir()
        (mpi_tmp_path / "link").symlink_to("run")
        (mpi_tmp_path / "up").symlink_to(mpi_tmp_path)
    comm.barrier()
    spelt = [
        str(usual),
        str(usual) + "/",
        str(mpi_tmp_path / "link"),
        str(mpi_tmp_path / "up" / "." / "up" / "run") + "//",
        os.path.relpath(usual),
    ]
    for turn in range(len(spelt)):  # so that each of them is owner 0's once
        path = spelt[(comm.rank + turn) % len(spelt)]
        publish(path, words, comm, turn + 1)
    assert restored(usual, words, comm) == am.Moment(len(spelt), len(spelt), len(spelt) + 1)


# ------------------------------------------------ R23, R24


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=name_of)
def test_r23_what_each_owner_has_of_its_own(
    comm: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mpi_tmp_path / "s"
    regions = [("rng", (2500,), np.uint64, "own"), ("w", (40,), np.float32, am.shares())]
    for name in ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.setenv(name, str(comm.rank % 2))  # as on nodes of two ranks
    with team(comm, 4) as four:
        if four is not None:
            publish(path, Words(four, *regions), four, 1, hierarchy=hierarchy)
            assert restored(path, Words(four, *regions), four, hierarchy=hierarchy).update == 1
    comm.barrier()
    with team(comm, 2) as two:
        if two is not None:
            words = Words(two, *regions)
            told = refused_resume(two, path, words.state(), hierarchy=hierarchy)
            assert (told.code, told.region) == ("per-owner-state", "rng")
            assert "4 owners" in str(told) and "2 owners" in str(told)
            assert all(set(a.view(np.uint8)) == {0xA5} for a in words.arrays.values())


def test_r24_a_cursor_set_back_is_refused(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    words = Words(comm, ("w", (40,), np.float32, am.shares()))
    learner = am.Learner("passes", inputs="12 samples")
    with open_(mpi_tmp_path / "s", words.state(), comm, learner=learner) as ckpt:
        ckpt.resume()
        for update, cursor in ((1, 4), (2, 8), (3, 12)):
            words.at(update)
            for wrong in (0, cursor - 4 - 1):
                if wrong >= 0:
                    told = refusal(comm, lambda: ckpt.save(update, cursor=wrong))  # noqa: B023
                    assert told.code == "reset-cursor"
            ckpt.save(update, cursor=cursor)
    with open_(mpi_tmp_path / "s", words.state(), comm, learner=learner) as ckpt:
        assert ckpt.resume() == am.Moment(3, 12, 2)


@pytest.mark.mpi(min_size=4)
def test_r24_every_sample_twice_in_two_passes(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    learner = am.Learner("passes", inputs="12 samples")

    def train(path: pathlib.Path, hierarchy: Any, owners: int, saves: int, until: int) -> list[int]:
        """Resume; save so many updates and go on to so many samples, one per owner and update."""
        used: list[int] = []
        with team(comm, owners) as part:
            if part is not None:
                words = Words(part, ("w", (40,), np.float32, am.shares()))
                with open_(path, words.state(), part, learner=learner, hierarchy=hierarchy) as ckpt:
                    moment = ckpt.resume()
                    update, cursor = moment.update, moment.cursor
                    while update < saves or cursor < until:
                        used += part.allgather((cursor + part.rank) % 12)
                        update, cursor = update + 1, cursor + owners
                        words.at(update)
                        if update <= saves:
                            ckpt.save(update, cursor=cursor)
        return comm.bcast(used, 0)  # type: ignore[no-any-return]

    for updates in (1, 2, 3):
        for owners in (4, 3, 2):
            path, hierarchy = mpi_tmp_path / f"{updates}-{owners}", HIERARCHIES[(updates + owners) % 2]
            used = train(path, hierarchy, 4, updates, 0)
            assert len(used) == 4 * updates
            used += train(path, hierarchy, owners, 0, 24)
            assert used[:24] == [*range(12), *range(12)]


# ------------------------------------------------ R28, strict


def _array(name: str, shape: tuple[int, ...] = (12,), dtype: Any = np.float32) -> Any:
    return (name, shape, dtype, am.shares())


#: What a program declares where `a`, `b`, `c` were saved (a:13 has 13 words, a:f8 is float64), and
#: what it is told.
DIFFERENCES = {
    "a b d": ["'d' is missing", "'c' is additional"],
    "a B c": ["'B' is missing", "'b' is additional"],
    "a:13 b c": ["'a' has another shape"],
    "a b:f8 c": ["'b' has another format: expected float64, found float32"],
    "b a c": ["another order"],
    "d c:13 b:f8": [
        *("'d' is missing", "'a' is additional", "'c' has another shape: expected (13,), found (12,)"),
        *("'b' has another format: expected float64, found float32", "another order"),
    ],
    "a b": ["'c' is additional"],
    "a b c d e": ["'d' is missing", "'e' is missing"],
}


def test_r28_every_difference_at_once(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    path = mpi_tmp_path / "s"
    publish(path, Words(comm, _array("a"), _array("b"), _array("c")), comm, 1)
    for declared, told in DIFFERENCES.items():
        regions = []
        for word in declared.split():
            name, _, change = word.partition(":")
            shape, dtype = (13,) if change == "13" else (12,), np.float64 if change == "f8" else np.float32
            regions.append(_array(name, shape, dtype))
        words = Words(comm, *regions)
        error = refused_resume(comm, path, words.state())
        assert error.code == "schema-differs" and error.region is not None
        assert all(line in str(error) for line in told), str(error)
        assert error.message.count(";") == len(told) - 1, str(error)
        assert all(set(a.view(np.uint8)) <= {0xA5} for a in words.arrays.values())
    assert restored(path, Words(comm, _array("a"), _array("b"), _array("c")), comm).update == 1
