"""Ranks are lost, in training and inside a save; the next start arrives bit for bit.

All jobs are hurt first and judged afterwards: they wait for Slurm's own times beside each other.
"""

import os
import signal

import pytest

from .cluster import until
from .conftest import Run

pytestmark = pytest.mark.slurm

UPDATES = 60
#: The save during which something happens is of this update, and the one before it is the last that is there.
SLOW, BEFORE = 30, 20
IN_A_SAVE = ("--slow-save", SLOW, "--fan-out", 2)


class Lost:
    """A job for each loss, on ranks of two nodes."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder, self.runs = cluster, folder, {}

    def submit(self, kind, *words, **how):
        """Start a training that will be hurt; `kind` tells the tests which."""
        folder = self.folder / kind.replace(" ", "-")
        folder.mkdir()
        run = Run(self.cluster, folder)
        options = ("--nodes=2", *how.pop("options", ()))
        job = run.submit("--updates", UPDATES, *words, options=options, **how)
        self.runs[kind] = run, job

    def submit_both(self, kind, *options, ranks=3):
        """Start one that is hurt in training, and one that is hurt inside a save."""
        self.submit(f"{kind} in training", "--pause", 0.5, ranks=ranks, options=options)
        self.submit(f"{kind} in a save", *IN_A_SAVE, ranks=ranks, options=options)

    def reached(self, kind):
        """Wait until the moment has come; return the run and its job."""
        run, job = self.runs[kind]
        if kind.endswith("in a save"):
            run.within((run.folder / "inside").exists, 120, f"inside the save of update {SLOW}")
        else:
            run.trains(BEFORE + 2)
        return run, job

    def judge(self, kind, seconds=180):
        """The job has come back, went on from where it must, and ended with the right state."""
        run, job = self.runs[kind]
        found = run.finished(job, seconds)
        starts = run.starts(job)
        assert starts[0] == 0 and len(starts) == 2 and found["Restarts"] == "1", run.log(job)
        # Nothing of a save that was cut short is there; in training other saves may have come after it.
        assert starts[1] == BEFORE if kind.endswith("in a save") else BEFORE <= starts[1] < UPDATES, starts
        run.check(UPDATES)
        return run, job


@pytest.fixture(scope="module")
def lost(cluster, tmp_path_factory):
    lost = Lost(cluster, tmp_path_factory.mktemp("lost"))
    lost.submit_both("killed")
    lost.submit("owner 0 killed in a save", *IN_A_SAVE, ranks=3)
    # As a rank that takes more memory than the job has: by then 700 MiB of a node are not enough.
    memory = "--mem=700"
    lost.submit("memory in training", "--hog", "training", ranks=3, options=(memory,))
    lost.submit("memory in a save", "--hog", "save", *IN_A_SAVE, ranks=3, options=(memory,))
    for kind, rank in (("killed in training", 2), ("killed in a save", 2), ("owner 0 killed in a save", 0)):
        run, job = lost.reached(kind)
        os.kill(run.pids(job)[rank], signal.SIGKILL)
    return lost


@pytest.mark.parametrize("kind", ["killed in training", "killed in a save", "owner 0 killed in a save"])
def test_a_rank_is_killed(lost, kind):
    run, job = lost.judge(kind)
    assert "ended with 137" in run.log(job)


@pytest.mark.parametrize("kind", ["memory in training", "memory in a save"])
def test_a_rank_takes_too_much_memory(lost, kind):
    """Slurm kills the step for it; there is no second time, and the job arrives."""
    run, job = lost.judge(kind)
    assert "exceeded memory limit" in run.log(job) and "ended with 137" in run.log(job)


@pytest.mark.parametrize("kind", ["in training", "in a save"])
def test_a_node_is_lost(losing_nodes, kind):
    """In one job its first node, which runs the job script and owner 0; in another its second."""
    for which in ("first", "second"):
        _, job = losing_nodes.judge(f"{which} node {kind}")
        assert losing_nodes.gone.isdisjoint(losing_nodes.cluster.nodes_of(job))


@pytest.fixture(scope="module")
def losing_nodes(cluster, tmp_path_factory, lost):
    """Two jobs lose their first node, two others their second; these nodes stay away."""
    for run, job in lost.runs.values():
        run.finished(job)
    losing = Lost(cluster, tmp_path_factory.mktemp("nodes"))
    losing.gone, used = set(), set()
    for which, place in ("first node", 0), ("second node", 1):
        others = (f"--exclude={','.join(sorted(used))}",) if used else ()
        losing.submit_both(which, *others)
        jobs = [losing.reached(f"{which} {when}")[1] for when in ("in training", "in a save")]
        nodes = [cluster.nodes_of(job) for job in jobs]
        used |= {node for both in nodes for node in both}
        for node in {both[place] for both in nodes}:
            cluster.kill_node(node)
            losing.gone.add(node)
    yield losing
    for node in losing.gone:
        cluster.start_node(node)
    until(lambda: all(cluster.state_of(node) == "idle" for node in losing.gone), 60, "the nodes are back")


def test_scancel_in_training(run, cluster):
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


def test_scancel_in_a_save(run, cluster):
    """The save takes longer than Slurm's patience: it is cut short, and the one before it stands."""
    first = run.submit("--updates", UPDATES, *IN_A_SAVE)
    run.within((run.folder / "inside").exists, 120, f"inside the save of update {SLOW}")
    cluster.ask("scancel", str(first))
    assert cluster.wait(first, "CANCELLED")["Restarts"] == "0"
    until(lambda: not cluster.queued_job(first), 30, "the cancelled job is gone")
    second = run.submit("--updates", UPDATES)
    run.finished(second)
    assert run.starts(second) == [BEFORE]
    run.check(UPDATES)
