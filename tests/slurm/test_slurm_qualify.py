"""alpha-mpi qualify with the ranks that srun started; and what scancel leaves of it."""

import os
import sys

import pytest

from .cluster import until

pytestmark = pytest.mark.slurm
QUALIFY = [sys.executable, "-m", "alpha_mpi.cli", "qualify"]


def test_qualify_under_srun(cluster, tmp_path):
    place = str(tmp_path / "new" / "place")
    command = ["srun", "-N3", "-n5", "--mpi=pmi2", "--kill-on-bad-exit=1", *QUALIFY, place, "--quick"]
    told = cluster.run(command, seconds=240)
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count("Qualification of") == 1 and "5 ranks on 1 node" in told.stdout
    assert "by srun" in told.stdout and " srun -n 5 alpha-mpi qualify " in told.stdout
    # All its nodes are this one machine, and the report does not take that for several.
    assert (
        "qualifies nothing, but not covered: a fresh name is seen from other nodes (not tried)" in told.stdout
    )
    assert not list(tmp_path.iterdir())


def test_scancel_ends_it_cleanly(cluster, tmp_path):
    script = tmp_path / "job"
    store = tmp_path / "store"
    store.mkdir()
    script.write_text(f"#!/bin/bash\nexec srun --mpi=pmi2 {' '.join(QUALIFY)} {store}\n")
    job = cluster.submit(script, "--nodes=2", "--ntasks=3", f"--output={tmp_path}/log")
    until(lambda: list(store.glob("qualify-*/race/race-*")), 120, "the race has begun")
    cluster.run(["scancel", "--signal=TERM", job])
    until(lambda: not list(store.iterdir()), 60, "the scratch is gone")
    assert os.path.isdir(store)
