"""A job that has to go: before its time limit, at its time limit, and for another job."""

import re

import pytest

import alpha_mpi as am

from .cluster import until

pytestmark = pytest.mark.slurm

UPDATES = 500


def stopped(run, job):
    """Return (after which update, why) of each agreed stop that a job printed."""
    lines = re.findall(r"^stopped after update (\d+): (.*)$", run.log(job), re.MULTILINE)
    return [(int(update), why) for update, why in lines]


class Limited:
    """Jobs of one minute that run beside each other, since Slurm looks at limits twice a minute."""

    def __init__(self, cluster, folder, make):
        minute = ("--time=1", "--ntasks=2")
        self.runs, self.jobs = {}, {}
        kinds = {
            # Slurm sends the signal 30 s before the limit, and nothing but the signal is listened to.
            "signal": (("--time-limit", "none"), (*minute, "--signal=USR1@30")),
            # Nothing is sent: the time left is watched.
            "watched": (("--deaf",), minute),
            # Neither: Slurm ends it.
            "neither": (("--deaf", "--time-limit", "none"), minute),
            # The same, inside a save that begins before the limit and would end long after it.
            "in a save": (
                ("--deaf", "--time-limit", "none", "--slow-save", 160, "--slow-for", 300, "--deadline", 400),
                minute,
            ),
        }
        for kind, (words, options) in kinds.items():
            run = self.runs[kind] = make(cluster, folder / kind.replace(" ", "-"))
            words = ("--updates", UPDATES, "--pause", 0.25, "--every", 40, *words)
            self.jobs[kind] = run.submit(*words, options=options)

    def of(self, kind):
        return self.runs[kind], self.jobs[kind]


@pytest.fixture(scope="module")
def limited(cluster, tmp_path_factory):
    from .conftest import Run

    def make(cluster, folder):
        folder.mkdir()
        return Run(cluster, folder)

    return Limited(cluster, tmp_path_factory.mktemp("limited"), make)


def goes_on(run, cluster, job, update):
    """Let the training end in a new job, nothing before `update` done again; return where it went on."""
    cluster.run(["scancel", str(job)])
    until(lambda: not cluster.queued_job(job), 60, "the old job is gone")
    last = run.progress() + 20
    new = run.submit("--updates", last, ranks=3)
    run.finished(new)
    assert update <= run.starts(new)[0] < last
    run.check(last)
    return run.starts(new)[0]


def test_the_signal_before_the_limit(run, cluster, limited):
    """Saved at one update on all ranks, and put back into the queue, from where it goes on."""
    run, job = limited.of("signal")
    until(lambda: len(run.starts(job)) == 2, 120, "the job has started again")
    [(update, why)] = stopped(run, job)
    assert why.startswith("SIGUSR1 on rank") and f"ended with {am.Exit.SAVED:d}" in run.log(job)
    assert cluster.job(job)["Restarts"] == "1" and run.starts(job) == [0, update]
    goes_on(run, cluster, job, update)


def test_the_time_left_is_watched(cluster, limited):
    run, job = limited.of("watched")
    until(lambda: len(run.starts(job)) == 2, 120, "the job has started again")
    [(update, why)] = stopped(run, job)
    assert "time limit" in why and f"ended with {am.Exit.SAVED:d}" in run.log(job)
    assert run.starts(job) == [0, update]
    goes_on(run, cluster, job, update)


def test_the_limit_ends_a_job_that_does_not_listen(cluster, limited):
    """It is not requeued: Slurm calls it TIMEOUT. The next job goes on from the last save."""
    run, job = limited.of("neither")
    found = cluster.wait(job, "TIMEOUT", 150)
    assert found["Restarts"] == "0" and not stopped(run, job)
    reached = run.progress()
    assert reached > 40, reached
    goes_on(run, cluster, job, (reached - 1) // 40 * 40)


def test_the_limit_comes_inside_a_save(cluster, limited):
    """Nothing of that save is there; the next job goes on from the one before it."""
    run, job = limited.of("in a save")
    assert cluster.wait(job, "TIMEOUT", 150)["Restarts"] == "0"
    assert (run.folder / "inside").exists() and run.progress() == 160
    assert goes_on(run, cluster, job, 120) == 120
