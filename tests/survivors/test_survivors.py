"""Where the MPI lets the others live, each raises a typed error that names the lost role, and ends.

With Open MPI under ``--with-ft ulfm``; started by .ci/run, with that MPI. Elsewhere the launcher ends
every rank, and tests/gates judge what the next continuation finds.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from alpha_mpi.testing import launch

JOB = pathlib.Path(__file__).with_name("survivor_job.py")
pytestmark = pytest.mark.skipif(
    launch.family(launch.launcher()) != "openmpi", reason="this launcher ends all ranks when one dies"
)


def run(folder: pathlib.Path, ranks: int, hierarchy: str, victim: int) -> dict[int, dict]:
    """Run the job; return what each rank that ended by itself has reported."""
    reports = folder / f"reports-{victim}"
    reports.mkdir()
    first, *options = launch.mpiexec(ranks)
    job = [first, "--with-ft", "ulfm", *options, sys.executable, str(JOB)]
    job += [str(folder / "ckpt"), str(reports), hierarchy, str(victim)]
    # A survivor that waits for ever outlives this limit: far above the deadline of the job.
    subprocess.run(job, env=launch.environment(), stdin=subprocess.DEVNULL, timeout=90, check=False)
    return {int(path.stem): json.loads(path.read_text()) for path in reports.glob("*.json")}


@pytest.mark.parametrize(
    ("hierarchy", "victim"), [("tree", 0), ("tree", 1), ("tree", 3), ("star", 0), ("star", 2)]
)
def test_survivors_raise_and_end_by_themselves(tmp_path: pathlib.Path, hierarchy: str, victim: int) -> None:
    told = run(tmp_path, 4, hierarchy, victim)
    assert sorted(told) == [rank for rank in range(4) if rank != victim]
    for report in told.values():
        assert report["type"] == "PeerFailed" and report["role"] == victim, told
        assert "saved" not in report and f"role {victim}" in report["text"]
    assert len({report["text"] for report in told.values()}) == 1, told
    # The next continuation has what was acknowledged, on as many owners as are left.
    told = run(tmp_path, 3, hierarchy, -1)
    assert [told[rank] for rank in range(3)] == [{"resumed": 1, "words": [1.0], "saved": 3}] * 3
