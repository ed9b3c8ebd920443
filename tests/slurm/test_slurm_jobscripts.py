"""The files of jobscripts/, run as they are on examples/digits: the same weights as without Slurm."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.testing import launch

from .cluster import ROOT, until

pytestmark = pytest.mark.slurm

SCRIPTS = ROOT / "jobscripts"
SMALL = ("--nodes=2", "--ntasks-per-node=1")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights after so many updates, from a run without Slurm."""
    known = {}

    def arrived(updates):
        if updates not in known:
            folder = tmp_path_factory.mktemp("reference")
            words = ["--store", str(folder / "ckpt"), "--updates", str(updates), "--every", "100"]
            command = [*launch.mpiexec(2), sys.executable, str(ROOT / "examples" / "digits" / "train.py")]
            told = subprocess.run(
                [*command, *words, "--out", str(folder / "out.npz")],
                env=launch.environment(),
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert told.returncode == 0, told.stderr
            known[updates] = folder / "out.npz"
        return known[updates]

    return arrived


class Digits:
    """One campaign of digits: its store, its jobs, its output."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder

    def submit(self, script, *options, updates, words=(), **more):
        values = {"VENV": sys.prefix, "STORE": self.folder / "ckpt", "OUT": self.folder / "out.npz"}
        values |= {"UPDATES": updates, "SLURM_MPI_TYPE": "pmi2"} | more
        output = f"--output={self.folder}/%j.log"
        return self.cluster.submit(SCRIPTS / script, output, *options, words=words, **values)

    def log(self, job):
        path = self.folder / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def starts(self, job):
        return [int(n) for n in re.findall(r"^starting after update (\d+)$", self.log(job), re.MULTILINE)]

    def saves(self, job, update, seconds=120):
        until(lambda: f"saved update {update} " in self.log(job), seconds, f"job {job} saves {update}")

    def completed(self, job, seconds=180):
        try:
            return self.cluster.wait(job, "COMPLETED", seconds)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}\n{self.log(job)}") from error

    def check(self, expected):
        with np.load(expected) as a, np.load(self.folder / "out.npz") as b:
            assert set(a.files) == set(b.files)
            for name in a.files:
                assert a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes(), name


@pytest.fixture
def digits(cluster, tmp_path):
    return Digits(cluster, tmp_path)


def test_cpu(digits, expected):
    job = digits.submit("cpu.sbatch", *SMALL, updates=200)
    digits.completed(job)
    assert digits.starts(job) == [0]
    digits.check(expected(200))
    again = digits.submit("cpu.sbatch", *SMALL, updates=300)
    digits.completed(again)
    assert digits.starts(again) == [200]
    digits.check(expected(300))


def test_preemptible(digits, cluster, expected):
    """Warned, it saves and puts itself back; preempted, it saves and Slurm puts it back."""
    job = digits.submit("preemptible.sbatch", *SMALL, updates=4000)
    digits.saves(job, 100)
    cluster.ask("scancel", "--signal=USR1", str(job))
    until(lambda: len(digits.starts(job)) == 2, 90, "the job has put itself back")
    assert f"srun ended with {am.Exit.SAVED:d}" in digits.log(job)

    digits.saves(job, digits.starts(job)[1] // 100 * 100 + 100)
    urgent = cluster.ask(
        *("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--output=/dev/null"),
        *(f"--nodelist={','.join(cluster.nodes_of(job))}", "--wrap=sleep 1"),
    )
    cluster.wait(urgent, "COMPLETED")
    digits.completed(job)
    assert cluster.job(job)["Restarts"] == "2"
    first, second, third = digits.starts(job)
    assert first == 0 and 100 <= second < third < 4000
    digits.check(expected(4000))


def test_chain(digits, cluster, expected):
    """Each link queues the next; the last one that was queued is dropped when the training is finished."""
    first = digits.submit("chain.sbatch", *SMALL, updates=3000, LINKS=3)
    digits.saves(first, 100)
    second = int(re.search(r"the next is job (\d+)", digits.log(first))[1])
    assert cluster.job(second)["Dependency"].startswith(f"afternotok:{first}")
    cluster.ask("scancel", "--signal=USR1", str(first))
    assert cluster.wait(first, "FAILED")["ExitCode"] == f"{am.Exit.SAVED:d}:0"
    log = pathlib.Path(cluster.job(second)["StdOut"])
    try:
        cluster.wait(second, "COMPLETED")
        third = int(re.search(r"the next is job (\d+)", log.read_text())[1])
        assert int(re.search(r"^starting after update (\d+)$", log.read_text(), re.MULTILINE)[1]) >= 100
        cluster.wait(third, "CANCELLED")
    finally:
        log.unlink(missing_ok=True)
    digits.check(expected(3000))


def test_another_number_of_nodes(digits, cluster, expected):
    """As it is, it takes what is free; then one node, then three."""
    first = digits.submit("any-nodes.sbatch", updates=100)
    digits.completed(first)
    wide = len(cluster.nodes_of(first))
    second = digits.submit("any-nodes.sbatch", "--nodes=1", updates=200)
    digits.completed(second)
    third = digits.submit("any-nodes.sbatch", "--nodes=3", updates=300)
    digits.completed(third)
    assert 1 <= wide <= 4 and [len(cluster.nodes_of(job)) for job in (second, third)] == [1, 3]
    assert [digits.starts(job) for job in (first, second, third)] == [[0], [100], [200]]
    digits.check(expected(300))


def test_gpu(digits, cluster, expected):
    """With a program that needs no GPU: one is given out to each rank. Warned, the job comes back."""
    words = ("--updates", "3000", "--every", "100", "--out", str(digits.folder / "out.npz"))
    program = ROOT / "examples" / "digits" / "train.py"
    small = ("--ntasks-per-node=2", "--cpus-per-task=1")
    job = digits.submit("gpu.sbatch", *small, words=words, updates=3000, PROGRAM=program)
    digits.saves(job, 100)
    given = cluster.ask("scontrol", "-o", "-d", "show", "job", str(job))
    assert "JOB_GRES=gpu:4 " in given and "GRES=gpu:2(IDX:0-1)" in given, given
    cluster.ask("scancel", "--signal=USR1", str(job))
    digits.completed(job)
    assert cluster.job(job)["Restarts"] == "1"
    first, second = digits.starts(job)
    assert first == 0 and 100 <= second < 3000
    digits.check(expected(3000))


@pytest.mark.parametrize("script", sorted(os.listdir(SCRIPTS)))
def test_every_script_is_one_for_bash_and_is_commented_where_a_user_edits(script):
    text = (SCRIPTS / script).read_text()
    assert subprocess.run(["bash", "-n", str(SCRIPTS / script)], check=False).returncode == 0
    assert "# EDIT: " in text and "--signal=USR1@" in text
