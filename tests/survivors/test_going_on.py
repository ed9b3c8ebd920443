"""Survivors shrink their communicator, resume on fewer owners, and train to the end.

With Open MPI under ``--with-ft ulfm``; started by .ci/run, with that MPI.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from alpha_mpi.testing import launch

JOB = pathlib.Path(__file__).with_name("going_on_job.py")
pytestmark = pytest.mark.skipif(
    launch.family(launch.launcher()) != "openmpi", reason="this launcher ends all ranks when one dies"
)


@pytest.mark.parametrize(
    ("hierarchy", "victim", "where", "windows"),
    [
        ("star", 2, "training", "windows"),
        ("star", 0, "save", "windows"),
        ("tree", 0, "training", "windows"),
        ("tree", 3, "save", "windows"),
        ("tree", 1, "save", "messages"),
    ],
)
def test_the_others_train_to_the_end(
    tmp_path: pathlib.Path, hierarchy: str, victim: int, where: str, windows: str
) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    first, *options = launch.mpiexec(4)
    job = [first, "--with-ft", "ulfm", *options, sys.executable, str(JOB)]
    job += [str(tmp_path / "ckpt"), str(reports), hierarchy, str(victim), where]
    more = {"ALPHA_MPI_ONE_SIDED": "no"} if windows == "messages" else {}
    environment = {**launch.environment(), **more}
    # The launcher's status tells of the killed rank; the reports tell of the others.
    subprocess.run(job, env=environment, stdin=subprocess.DEVNULL, timeout=90, check=False)
    told = {int(path.stem): json.loads(path.read_text()) for path in reports.glob("*.json")}
    assert sorted(told) == [rank for rank in range(4) if rank != victim]
    for began, error, resumed, ended in told.values():
        assert began == {"owners": 4, "update": 0, "words": [0.0]}
        assert error == ["lost", victim], told
        assert resumed == {"owners": 3, "update": 2, "words": [3.0]}
        assert ended == {"owners": 3, "update": 6, "words": [21.0]}
