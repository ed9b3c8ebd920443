"""Ranks, nodes and jobs are lost, in training and in a save; the next start arrives bit for bit."""

import os
import signal

import pytest

from .cluster import until

pytestmark = pytest.mark.slurm

UPDATES = 60


def test_a_rank_killed_in_training(run):
    job = run.submit("--updates", UPDATES, "--pause", 0.1, ranks=4, options=("--nodes=2",))
    run.trains(25)
    os.kill(run.pids(job)[2], signal.SIGKILL)
    run.finished(job)
    assert "ended with 137" in run.log(job)
    assert run.starts(job)[0] == 0 and run.starts(job)[1] in (20, 30)
    run.check(UPDATES)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_killed_inside_a_save(run, rank):
    job = run.submit("--updates", UPDATES, "--slow-save", 30, "--fan-out", 2, ranks=4, options=("--nodes=2",))
    until((run.folder / "inside").exists, 60, "inside the save of update 30")
    os.kill(run.pids(job)[rank], signal.SIGKILL)
    run.finished(job)
    assert "ended with 137" in run.log(job)
    assert run.starts(job) == [0, 20]
    run.check(UPDATES)


@pytest.mark.parametrize("which", [0, 1])
def test_a_node_lost_with_its_tasks(run, cluster, which):
    """The first node runs the job script, and owner 0."""
    job = run.submit("--updates", 200, "--pause", 0.1, options=("--nodes=2",))
    run.trains(25)
    node = cluster.nodes_of(job)[which]
    cluster.kill_node(node)
    try:
        found = run.finished(job, 120)
        assert found["Restarts"] == "1" and node not in cluster.nodes_of(job)
        assert run.starts(job)[0] == 0 and run.starts(job)[1] >= 20
        run.check(200)
    finally:
        cluster.start_node(node)


def test_scancel(run, cluster):
    first = run.submit("--updates", 200, "--pause", 0.1, "--every", 1000)
    run.trains(15)
    cluster.ask("scancel", str(first))
    assert cluster.wait(first, "CANCELLED")["Restarts"] == "0"
    until(lambda: not cluster.queued_job(first), 30, "the cancelled job is gone")
    # Its ranks had time to save, and it did not put itself back.
    stopped = [line for line in run.log(first).splitlines() if line.startswith("stopped after update ")]
    assert len(stopped) == 1 and "SIGTERM on rank" in stopped[0], run.log(first)
    update = int(stopped[0].split()[3].rstrip(":"))
    assert cluster.state(first) == "CANCELLED"
    second = run.submit("--updates", update + 20)
    run.finished(second)
    assert run.starts(second) == [update]
    run.check(update + 20)
