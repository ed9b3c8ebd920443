"""Gate: R09. Another process removes the same retired files as retention, and nobody minds."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from click.testing import CliRunner

import shim
from alpha_mpi.cli import alpha_mpi
from alpha_mpi.testing import launch

JOB = str(pathlib.Path(__file__).with_name("r09_job.py"))


def train(store: pathlib.Path, kind: str, updates: range, extra: dict[str, str]) -> str:
    """Run one job of 6 owners; return what it says."""
    command = [*launch.mpiexec(6), sys.executable, JOB, "train", str(store), kind, *map(str, updates)]
    told = subprocess.run(
        command, env=launch.environment(extra), capture_output=True, text=True, timeout=120, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout.strip()


def held(store: pathlib.Path) -> tuple[list[str], list[str]]:
    """Return the attempts whose files are there, and the entries that are roots and not removed."""
    attempts = sorted(p.name for p in (store / "data").iterdir())
    marked = {p.stem for p in (store / "published").glob("*.removed")}
    roots = [
        p for p in sorted((store / "published").glob("*.json")) if b'"kind":"manifest"' in p.read_bytes()
    ]
    return attempts, [p.stem for p in roots if p.stem not in marked]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["star", "tree"])
def test_r09_retired_files_vanish_under_retention(tmp_path: pathlib.Path, kind: str) -> None:
    store, stop = tmp_path / "s", tmp_path / "stop"
    spoiler = subprocess.Popen(
        [sys.executable, JOB, "spoil", str(store), str(stop)], stdout=subprocess.PIPE, text=True
    )
    try:
        # Retention takes its time, so that the other process gets at its files first.
        wait = 0.2 if kind == "star" else 0.02  # one file in a generation, or twelve
        delay = f"unlinkat:0:{wait}:.pack;unlinkat:0:{wait}:.manifest"
        slow = shim.env(store, rank=0, delay=delay)
        assert train(store, kind, range(1, 13), slow) == "resumed 0"
    finally:
        stop.touch()
        removed = int(spoiler.communicate(timeout=30)[0])
    assert removed >= 3  # else nothing was tried
    assert held(store) == (["e000001-000012"], ["e000001-000012"])
    found = CliRunner().invoke(alpha_mpi(), ["verify", str(store)])
    assert found.exit_code == 0, found.output

    # Once more, by a job of the next epoch: it prunes what the older one had to leave occupied.
    assert train(store, kind, range(13, 15), {}) == "resumed 12"
    assert held(store) == (["e000002-000002"], ["e000002-000002"])
    found = CliRunner().invoke(alpha_mpi(), ["ls", str(store)])
    assert found.exit_code == 0 and "unfinished" not in found.output, found.output
    assert train(store, kind, range(0), {}) == "resumed 14"
