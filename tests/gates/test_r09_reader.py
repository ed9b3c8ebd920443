"""Gate: R09 with a reader. While retention removes, a reader gets exact words, or is told "gone"."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from alpha_mpi.store.store import Store
from alpha_mpi.testing import launch

JOB = str(pathlib.Path(__file__).with_name("reader_job.py"))
UPDATES = 60


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, JOB, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=launch.environment(),
    )


@pytest.mark.timeout(300)
def test_r09_a_reader_beside_retention(tmp_path: pathlib.Path) -> None:
    store, stop = tmp_path / "s", tmp_path / "stop"
    Store.create_or_open(store).close()
    readers = [start("read", str(store), str(stop)) for _ in range(2)]
    verifier = _verify_until(store, stop)
    try:
        job = start("train", str(store), str(UPDATES))
        told, said = job.communicate(timeout=240)
        assert job.returncode == 0, told + said
    finally:
        stop.touch()
        ends = [reader.communicate(timeout=60) for reader in readers]
        checked = verifier.communicate(timeout=60)
    assert [reader.returncode for reader in readers] == [0, 0], ends
    counts = [json.loads(out) for out, _ in ends]
    assert sum(count["exact"] for count in counts) >= 5, counts
    assert sum(count["updates"] for count in counts) >= 3, counts
    assert verifier.returncode == 0, checked
    assert sorted(p.name for p in (store / "data").iterdir()) == [f"e{UPDATES // 10:06d}-000010"]


def _verify_until(store: pathlib.Path, stop: pathlib.Path) -> subprocess.Popen[str]:
    """Run `verify --all` again and again: retention is never damage."""
    program = f"""
import os, sys
from click.testing import CliRunner
from alpha_mpi.cli import alpha_mpi
while not os.path.exists({str(stop)!r}):
    for words in (["verify", {str(store)!r}, "--all"], ["ls", {str(store)!r}], ["why", {str(store)!r}]):
        end = CliRunner().invoke(alpha_mpi(), words)
        assert end.exit_code == 0 or "no-generation" in end.stderr, (words, end.output, end.stderr)
"""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=launch.environment({"PYTHONPATH": str(pathlib.Path(JOB).parents[2])}),
    )
