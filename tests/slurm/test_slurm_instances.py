"""Two jobs on one store: one trains, the other ends with a code that no job script requeues."""

import os
import signal
import time

import pytest

import alpha_mpi as am
from alpha_mpi.testing import launch

from .cluster import until

pytestmark = pytest.mark.slurm


def test_two_array_tasks_at_once(run, cluster):
    """Each task is a job; only one may have the store."""
    job = run.submit("--updates", 80, "--pause", 0.1, options=("--array=1-2", "--ntasks=2"))
    names = [f"{job}_{task}" for task in (1, 2)]
    found = [cluster.wait(name) for name in names]
    logs = [run.log(f"{job}-{task}") for task in (1, 2)]
    assert sorted(f["JobState"] for f in found) == ["COMPLETED", "FAILED"], (found, logs)
    lost = [f["JobState"] for f in found].index("FAILED")
    code, restarts = found[lost]["ExitCode"], found[lost]["Restarts"]
    assert (code, restarts) in (("55:0", "0"), ("51:0", "0")), (found[lost], logs[lost])
    assert "[held]" in logs[lost] or "[superseded]" in logs[lost], logs[lost]
    run.check(80)


def test_the_same_script_twice(run, cluster):
    """The second is told by name who has the store, and stays away; then it takes it, if it insists."""
    first = run.submit("--updates", 500, "--pause", 0.2, ranks=2)
    run.trains(12)
    second = run.submit("--updates", 500, ranks=2)
    found = cluster.wait(second, "FAILED")
    assert (found["ExitCode"], found["Restarts"]) == ("55:0", "0")
    assert f"job {first} " in run.log(second) and "[held]" in run.log(second), run.log(second)
    assert cluster.state(first) == "RUNNING"

    third = run.submit("--updates", 500, "--takeover", ranks=3)
    found = cluster.wait(first, "FAILED")
    assert (found["ExitCode"], found["Restarts"]) == ("51:0", "0")
    assert f"{third} on node" in (run.folder / f"superseded-{first}-0").read_text()
    run.finished(third)
    run.check(500)


def test_requeued_while_the_old_processes_live(run, cluster):
    """The node falls silent, Slurm starts the job elsewhere, and the old ranks go on: the epochs decide."""
    # Not by srun: MPICH names its shared memory by job and step, and here all nodes are one machine.
    mpiexec = f"{launch.launcher()} -launcher fork -n 2"
    words = ("--updates", 1500, "--pause", 0.1, "--deaf")
    job = run.submit(*words, ranks=2, launch=mpiexec, options=("--nodes=1",))
    run.trains(12)
    old, node = run.pids(job), cluster.job(job)["NodeList"]
    cluster.freeze_node(node)
    try:
        until(lambda: (run.folder / f"pids-{job}-1").exists(), 120, "the job has started again")
        assert all(alive(pid) for pid in old)
        until((run.folder / f"superseded-{job}-0").exists, 60, "the old ranks are told")
        assert f"{job} on node" in (run.folder / f"superseded-{job}-0").read_text()
        assert cluster.job(job)["NodeList"] != node
    finally:
        cluster.thaw_node(node)
    run.finished(job)
    run.check(1500)


@pytest.mark.parametrize("where", ["in training", "in a save"])
def test_stopped_while_another_job_goes_on(run, cluster, where):
    """R26: job A sleeps before it publishes 20, B takes over and publishes 20; A wakes, for nothing."""
    words = ("--updates", 500, "--every", 10, "--pause", 0.2, "--deaf", "--deadline", 10)
    more = ("--slow-save", 20) if where == "in a save" else ()
    a = run.submit(*words, *more, ranks=4, options=("--nodes=2",))
    if more:
        run.within((run.folder / "inside").exists, 120, "inside the save of update 20")
    else:
        run.trains(12)
    sleeping, began = run.pids(a), time.monotonic()
    for pid in sleeping:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert run.progress() <= 20
        b = run.submit("--updates", 20, "--every", 5, "--takeover", ranks=3)
        run.finished(b)
        assert run.starts(b) == [10] and cluster.state(a) == "RUNNING"
        run.check(20)
        before = published(run)
        # Longer than the deadline: its own sleep is not the silence of the others.
        time.sleep(max(0.0, began + 25 - time.monotonic()))
    finally:
        (run.folder / "go").touch()
        for pid in sleeping:
            os.kill(pid, signal.SIGCONT)
    found = cluster.wait(a)
    assert (found["ExitCode"], found["Restarts"]) == ("51:0", "0"), run.log(a)
    told = (run.folder / f"superseded-{a}-0").read_text()
    assert "continued as epoch 2" in told and f"{b} on node" in told
    # Nothing of it came to be, and C goes on from B.
    assert published(run) == before and before[-2:] == ["e000002-000001", "e000002-000002"]
    c = run.submit("--updates", 40)
    run.finished(c)
    assert run.starts(c) == [20]
    run.check(40)


def published(run):
    """The names of the generations that a reader finds, in order."""
    with am.open(run.folder / "ckpt") as opened:
        return sorted(generation.name for generation in opened)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
