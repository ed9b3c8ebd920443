"""An MPI that can make no window: manifests go by messages, and nothing else changes.

Open MPI without its one-sided components; started by .ci/run, with that MPI.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from alpha_mpi.testing import launch

JOB = pathlib.Path(__file__).with_name("no_windows_job.py")
pytestmark = pytest.mark.skipif(
    launch.family(launch.launcher()) != "openmpi", reason="this MPI always has windows"
)
#: All that Open MPI 5 has.
WITHOUT = {"OMPI_MCA_osc": "^rdma,sm,ucx,monitoring"}


def run(ranks: int, *words: str) -> str:
    job = [*launch.mpiexec(ranks), sys.executable, *words]
    told = subprocess.run(
        job,
        env={**launch.environment(), **WITHOUT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.mark.parametrize("hierarchy", ["star", "tree"])
def test_a_store_is_resumed_by_messages(tmp_path: pathlib.Path, hierarchy: str) -> None:
    words = np.arange(87, dtype=float).reshape(29, 3) / 7
    for update, ranks in enumerate((4, 4, 3)):
        report = tmp_path / f"{update}.json"
        run(ranks, str(JOB), str(tmp_path / "ckpt"), str(report), hierarchy)
        told = json.loads(report.read_text())
        assert told["update"] == update and told["table"] == [update] * 4
        assert told["words"] == sum([words] * update, np.zeros_like(words)).tolist()
        # (bytes, windows served, windows read): what there was to fetch came without a window.
        assert all(rank[1:] == [0, 0] for rank in told["fetched"])
        if update == 1:  # as many owners as saved it: everybody reads the path to its role
            assert all(rank[0] > 0 for rank in told["fetched"][1:])


def test_the_doctor_says_so() -> None:
    rows = {
        row["what"]: row for row in json.loads(run(3, "-m", "alpha_mpi.cli", "doctor", "--json"))["checks"]
    }
    assert rows["one-sided reads"]["verdict"] == "note"
    assert "by messages instead: no window can be made" in rows["one-sided reads"]["found"]
