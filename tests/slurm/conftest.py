"""One Slurm for all tests of this folder, and `Run`: one training in it, judged by the oracle."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from gates import oracle

from alpha_mpi.testing import launch

from .cluster import Cluster, until

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAIN = str(pathlib.Path(__file__).with_name("train.py"))

#: How a job of these tests starts its ranks, waits for them to save, and puts itself back.
SCRIPT = """\
#!/bin/bash
export PYTHONUNBUFFERED=1
trap : TERM
# Another step number for each restart: MPICH names its shared memory by job and step.
for ((i = 0; i < ${{SLURM_RESTART_COUNT:-0}}; i++)); do srun --nodes=1 --ntasks=1 true; done
code=0
{launch} {python} {train} {folder} "$@" || code=$?
echo "ended with $code"
[ -z "${{STAY:-}}" ] || exit "$code"
case $code in
75 | 35 | 9 | 15 | 1[2-9][0-9]) ;;
*) exit "$code" ;;
esac
if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60
fi
exit "$code"
"""
SRUN = "srun --mpi=pmi2 --kill-on-bad-exit=1"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster; a machine without Slurm fails every test that asks for it."""
    folder = tempfile.mkdtemp(prefix="am-slurm-")
    try:
        with Cluster(folder, nodes=6, cpus=4) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Run:
    """A training of train.py under Slurm: its folder, its jobs, and what became of it."""

    def __init__(self, cluster: Cluster, folder: pathlib.Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.scripts = 0

    def submit(
        self, *words: object, ranks: int = 4, launch: str = SRUN, options: tuple[str, ...] = ()
    ) -> int:
        """Submit a job that trains; `words` go to train.py, `options` to sbatch."""
        self.scripts += 1
        script = self.folder / f"job-{self.scripts}.sh"
        python = sys.executable
        script.write_text(SCRIPT.format(launch=launch, python=python, train=TRAIN, folder=self.folder))
        output = f"--output={self.folder}/%A-%a.log" if "--array" in str(options) else self._output()
        size = () if any("ntasks" in option for option in options) else (f"--ntasks={ranks}",)
        told = self.cluster.ask(
            *("sbatch", "--parsable", "--requeue", "--open-mode=append", output, *size, *options),
            *(str(script), *map(str, words)),
        )
        return int(told)

    def _output(self) -> str:
        return f"--output={self.folder}/%j.log"

    def log(self, job: int | str) -> str:
        """Return what a job has printed so far."""
        try:
            return (self.folder / f"{job}.log").read_text(errors="replace")
        except OSError:
            return ""

    def progress(self) -> int:
        """Return how many updates are finished."""
        try:
            return int((self.folder / "progress").read_text().split()[0])
        except (OSError, IndexError):
            return 0

    def trains(self, update: int, seconds: float = 120) -> None:
        """Wait until so many updates are finished."""
        self.within(lambda: self.progress() >= update, seconds, f"update {update}")

    def within(self, true: Callable[[], object], seconds: float, what: str) -> None:
        """Wait until something is true; what Slurm and the jobs say explains why it is not."""
        try:
            until(true, seconds, what)
        except TimeoutError as error:
            logs = [file.read_text(errors="replace")[-6000:] for file in self.folder.glob("*.log")]
            queue = self.cluster.run(["squeue", "-o", "%i %T %N %r"]).stdout
            told = [queue, *logs, self.cluster.log("slurmctld")[-1500:]]
            raise TimeoutError("\n".join([str(error), *told])) from None

    def pids(self, job: int, restart: int = 0) -> list[int]:
        """Return the processes of a job's ranks, in order."""
        folder = self.folder / f"pids-{job}-{restart}"
        files = sorted((f for f in folder.iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
        return [int(file.read_text()) for file in files]

    def starts(self, job: int | str) -> list[int]:
        """Return after which update each start of a job went on."""
        lines = [line for line in self.log(job).splitlines() if " owners, epoch " in line]
        return [int(line.rsplit(" ", 1)[1]) for line in lines]

    def finished(self, job: int, seconds: float = 180) -> dict[str, str]:
        """Wait until a job has completed; what it printed explains why it has not."""
        try:
            return self.cluster.wait(job, "COMPLETED", seconds)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{error}\n{self.log(job)}") from error

    def check(self, updates: int, store: str = "ckpt") -> None:
        """Compare the last state with the oracle, bit for bit, and verify every generation."""
        expected, moment, _ = oracle.train("adam", [("parameter-partitioned", 1, updates)])
        with np.load(self.folder / "final.npz") as found:
            assert tuple(found["moment"].tolist()) == moment
            assert set(found.files) == {"moment", *expected}
            for name, words in expected.items():
                assert found[name].tobytes() == np.asarray(words).tobytes(), name
        self.verify(store)

    def verify(self, store: str = "ckpt") -> None:
        """Read every byte that the store names."""
        told = subprocess.run(
            [sys.executable, "-m", "alpha_mpi.cli", "verify", "--all", str(self.folder / store)],
            env=launch.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stdout + told.stderr


@pytest.fixture
def run(cluster: Cluster, tmp_path: pathlib.Path) -> Run:
    """A training in a folder of its own."""
    return Run(cluster, tmp_path)
