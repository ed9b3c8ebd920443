"""Gates: R13, writes that move less than was asked; and R16, memory bounded by the own data and slices."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

import shim
from alpha_mpi.cli import alpha_mpi
from alpha_mpi.testing import launch

JOB = str(pathlib.Path(__file__).with_name("large_job.py"))
MIB = 1 << 20
#: Of a resume: bytes of validated words kept, by default.
STAGING = 1 << 30
#: Slices of a star in flight: two being gathered, one being written.
SLICES = 3 * (64 << 20)


def job(
    store: pathlib.Path,
    kind: str,
    size: int | str,
    work: str,
    *more: object,
    ranks: int = 1,
    limit: float = 120,
    extra: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Run large_job.py; return what each rank says. ``alone``: one process without a launcher."""
    words = [sys.executable, JOB, str(store), kind, str(size), work, *map(str, more)]
    command = words if kind == "alone" else [*launch.mpiexec(ranks), *words]
    told = subprocess.run(
        command, env=launch.environment(extra), capture_output=True, text=True, timeout=limit, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return json.loads(told.stdout)  # type: ignore[no-any-return]


def verified(store: pathlib.Path) -> None:
    """Verify the newest generation by command."""
    found = CliRunner().invoke(alpha_mpi(), ["verify", str(store)])
    assert found.exit_code == 0, found.output


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "ranks"), [("alone", 1), ("star", 2), ("tree", 2)])
def test_r13_short_writes(tmp_path: pathlib.Path, kind: str, ranks: int) -> None:
    store, trace = tmp_path / "s", tmp_path / "trace"
    size = 3_000_000
    job(store, kind, size, "publish", ranks=ranks, extra=shim.env(store, trace=trace, short=4095))
    calls = [c for c in shim.read_trace(trace) if "write" in c.op and ".pack" in c.path]
    moved = [c.result for c in calls]
    assert sum(moved) > size and max(moved) <= 4095 and len(moved) > 700
    job(store, kind, size, "restore", ranks=ranks)
    verified(store)


def test_r13_writes_that_never_move_end_in_an_error(tmp_path: pathlib.Path) -> None:
    store, arm = tmp_path / "s", tmp_path / "arm"
    job(store, "alone", 3_000_000, "publish")
    (told,) = job(
        store, "alone", 3_000_000, "publish", arm, extra=shim.env(store, short=0, arm=arm), limit=60
    )
    assert told["error"] is not None and told["error"]["stage"] == "write"
    assert ".pack" in told["error"]["file"]
    (told,) = job(store, "alone", 3_000_000, "restore")  # the one before stays
    assert told["update"] == 1
    verified(store)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_r13_a_region_beyond_one_write_call(tmp_path: pathlib.Path) -> None:
    store, size = tmp_path / "s", 2_200_000_000
    (told,) = job(store, "alone", size, "publish", limit=500)
    assert told["after"] < size + told["before"] - told["own"] + 64 * MIB, told
    (told,) = job(store, "alone", size, "restore", limit=500)
    assert told["after"] < size + STAGING + told["before"] - told["own"] + 64 * MIB, told
    verified(store)
    for pack in store.rglob("*.pack"):
        pack.unlink()  # two gigabytes need not stay until pytest forgets them


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_r16_owner_0_of_a_star_holds_its_own_and_slices(tmp_path: pathlib.Path) -> None:
    store, size = tmp_path / "s", 900_000_000
    for work, more in (("publish", SLICES), ("restore", min(STAGING, size // 3))):
        told = job(store, "star", size, work, ranks=3, limit=400)
        for line in told:
            grown = line["after"] - line["before"]
            print(work, line["rank"], "grew by", grown // MIB, "MiB")
            assert grown < more + 64 * MIB, told
    verified(store)
    for pack in store.rglob("*.pack"):
        pack.unlink()


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_r16_a_piece_beyond_the_counts_of_mpi(tmp_path: pathlib.Path) -> None:
    store, size = tmp_path / "s", 2_400_000_000  # beyond 2 GiB, on owner 1
    told = job(store, "star", f"5,{size}", "publish", ranks=2, limit=400)
    assert told[0]["after"] - told[0]["before"] < SLICES + 64 * MIB, told
    told = job(store, "star", f"5,{size}", "restore", ranks=2, limit=400)
    assert told[0]["after"] - told[0]["before"] < 64 * MIB, told
    assert told[1]["after"] - told[1]["before"] < STAGING + 64 * MIB, told
    verified(store)
    for pack in store.rglob("*.pack"):
        pack.unlink()
