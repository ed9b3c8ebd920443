"""The long test: one training of many updates, many jobs and many faults, judged at its end.

Under Slurm, or under mpiexec where there is none. Everything that happened stands in the file
``events``, in the order in which it happened, because rank 0 of each job wrote it there.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from gates import oracle

import alpha_mpi as am
from alpha_mpi.testing import launch
from shim import env as shim_env

from .cluster import Cluster, until
from .conftest import SRUN, TRAIN, Run

EVERY, KEEP, PAUSE = 20, 3, 0.004
#: Owners of a job: at most so many.
OWNERS = 6
#: Longest time from a fault until training goes on: what Slurm itself needs for a lost node, and more.
BOUND = 120.0
#: No end in sight: the time decides when the training is over.
FOREVER = 10_000_000


@dataclasses.dataclass
class Start:
    """A continuation: when, which job, its epoch, how many owners, and after which update it went on."""

    when: float
    job: str
    restart: str
    epoch: int
    owners: int
    update: int


@dataclasses.dataclass
class Report:
    """What a campaign has seen; `problems` are what must not be."""

    updates: int = 0
    published: int = 0
    refused: int = 0
    starts: list[Start] = dataclasses.field(default_factory=list)
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    lost: list[int] = dataclasses.field(default_factory=list)
    waits: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the report, a line for each number."""
        worst, kind = max(self.waits, default=(0.0, "none"))
        owners = [start.owners for start in self.starts]
        changes = sum(a != b for a, b in itertools.pairwise(owners))
        faults = ", ".join(f"{n} {kind}" for kind, n in sorted(self.faults.items()))
        return [
            f"{self.updates} updates in {len(self.starts)} continuations on {sorted(set(owners))} owners, "
            f"{changes} of them on another number than the one before",
            f"{self.published} generations published, {self.refused} saves refused by a full disk",
            f"{sum(self.faults.values())} faults injected: {faults}",
            f"{sum(self.lost)} updates lost and done again, {max(self.lost, default=0)} at most at once",
            f"{worst:.1f} s from a fault to training again at worst ({kind})",
        ]


def read(path: pathlib.Path) -> list[list[str]]:
    """Return the events so far; a line that is being written does not count."""
    try:
        whole, _, _ = path.read_text().rpartition("\n")
    except OSError:
        return []
    return [line.split() for line in whole.splitlines()]


class Campaign:
    """One training with its faults. `jobs` is how jobs are started and hurt: `UnderSlurm` or `Alone`."""

    def __init__(self, folder: pathlib.Path, rng: random.Random, jobs: UnderSlurm | Alone) -> None:
        self.folder, self.rng, self.jobs = folder, rng, jobs
        self.events = folder / "events"
        self.full = folder / "full"
        self.report = Report()
        self.kinds: dict[str, Callable[[], float]] = {
            "full disk": self.fill,
            "rank killed": lambda: self.kill(1),
            "all ranks killed": lambda: self.kill(OWNERS),
            "rank killed in a save": self.kill_in_a_save,
            **jobs.kinds(),
        }
        self._deck: list[str] = []

    # ------------------------------------------------ what is seen

    def starts(self) -> list[Start]:
        return [
            Start(float(when), job, restart, int(epoch), int(owners), int(update))
            for when, job, restart, epoch, owners, update in (
                (e[0], *e[2:]) for e in read(self.events) if e[1] == "start"
            )
        ]

    def progress(self) -> tuple[int, str]:
        """Return the newest finished update, and which start of which job has finished it."""
        try:
            update, *which = (self.folder / "progress").read_text().split()
        except OSError:
            return 0, ""
        return int(update), " ".join(which)

    def trains(self, after: int, since: float, kind: str) -> None:
        """Wait until a start after the `after`-th trains, with new jobs where one has ended."""

        def again() -> bool:
            found = self.starts()
            if len(found) > after:
                newest = found[-1]
                update, which = self.progress()
                if which == f"{newest.job} {newest.restart}" and update > newest.update:
                    return True
            elif self.jobs.ended():
                self.jobs.start(self.rng.randint(1, OWNERS))
            return False

        until(again, BOUND, f"training after {kind}")
        self.report.waits.append((time.monotonic() - since, kind))

    # ------------------------------------------------ faults: each returns when it was done

    def kill(self, count: int) -> float:
        """SIGKILL to some ranks of the running job."""
        pids = self.jobs.pids(self.starts()[-1])
        for pid in self.rng.sample(pids, min(count, len(pids))):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return time.monotonic()

    def kill_in_a_save(self) -> float:
        """SIGKILL to a rank some milliseconds after a save began."""
        before = self.events.stat().st_size

        def saving() -> bool:
            with self.events.open("rb") as file:
                file.seek(before)
                return b" saving " in file.read()

        deadline = time.monotonic() + 20
        while not saving() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(self.rng.random() * 0.03)
        return self.kill(1)

    def fill(self) -> float:
        """Every write fails for some seconds; the same processes save again afterwards."""
        self.full.touch()
        refused = sum(e[1] == "refused" for e in read(self.events))
        try:
            until(
                lambda: sum(e[1] == "refused" for e in read(self.events)) > refused, 60, "a save is refused"
            )
            time.sleep(self.rng.random())
        finally:
            self.full.unlink()
        freed = time.monotonic()

        def saved() -> bool:
            return any(e[1] == "saved" and float(e[0]) > freed for e in read(self.events))

        until(saved, 60, "a save after the disk was full")
        self.report.waits.append((time.monotonic() - freed, "full disk"))
        return freed

    def fault(self) -> None:
        """Inject one fault and wait until training goes on."""
        if not self._deck:
            self._deck = list(self.kinds)
            self.rng.shuffle(self._deck)
        kind = self._deck.pop()
        after = len(self.starts())
        since = self.kinds[kind]()
        self.report.faults[kind] += 1
        if kind != "full disk":
            self.trains(after, since, kind)

    # ------------------------------------------------ the whole

    def run(self, seconds: float) -> Report:
        """Train and hurt for so long, end, and judge."""
        for promise, part in (
            ("every fault is followed by training", lambda: self.hurt(seconds)),
            ("the last job finishes", self.last),
        ):
            try:
                part()
            except TimeoutError as error:
                self.report.problems[promise] = f"{error}\n{self.jobs.told()}"
                if part == self.last:
                    for other in PROMISES:
                        self.report.problems.setdefault(other, "not judged")
        return self.report

    def hurt(self, seconds: float) -> None:
        """Begin to train, and inject one fault after the other for so long."""
        begin = time.monotonic()
        self.jobs.start(self.rng.randint(2, OWNERS))
        self.trains(0, begin, "the first start")
        self.report.waits.clear()
        while time.monotonic() - begin < seconds:
            time.sleep(self.rng.uniform(0.5, 3))
            self.fault()

    def last(self) -> None:
        """End the job that trains; let one more bring the training to its end, and judge everything."""
        self.jobs.end()
        updates = max((int(e[2]) for e in read(self.events) if e[1] == "saved"), default=0) + 3 * EVERY
        code = self.jobs.finish(self.rng.randint(1, OWNERS), updates)
        self.judge(updates, code)

    def judge(self, updates: int, code: int) -> None:
        """Fill the report from the events and the store."""
        report, problems = self.report, self.report.problems
        report.starts, report.updates = self.starts(), updates
        acknowledged = reached = 0
        epoch = 0
        for event in read(self.events):
            kind = event[1]
            if kind == "saving":
                reached = max(reached, int(event[2]))
            elif kind == "saved":
                report.published += 1
                acknowledged = max(acknowledged, int(event[2]))
            elif kind == "refused":
                report.refused += 1
            elif kind == "start":
                at = int(event[6])
                if at < acknowledged:
                    problems["what was saved stays"] = (
                        f"went on after {at}, {acknowledged} was saved: {event}"
                    )
                if int(event[4]) <= epoch:
                    problems["every start takes the next epoch"] = f"{event} after epoch {epoch}"
                epoch = int(event[4])
        self.count_lost()
        if code:
            problems["the last job finishes"] = f"exit code {code}\n{self.jobs.told()}"
            problems["the last state equals the oracle's"] = "there is none"
        else:
            self.compare(updates)
        self.verify()

    def count_lost(self) -> None:
        """Count the updates that each continuation had to do again."""
        reached = {}
        for file in self.folder.glob("reached-*"):
            reached[file.name.removeprefix("reached-")] = int(file.read_text() or 0)
        for before, after in itertools.pairwise(self.report.starts):
            far = reached.get(f"{before.job}-{before.restart}", before.update)
            self.report.lost.append(max(0, far - after.update))

    def compare(self, updates: int) -> None:
        """Compare the last state with the oracle, bit for bit."""
        expected, moment, _ = oracle.train("adam", [("parameter-partitioned", 1, updates)])
        with np.load(self.folder / "final.npz") as found:
            differ = [n for n, words in expected.items() if found[n].tobytes() != np.asarray(words).tobytes()]
            if tuple(found["moment"].tolist()) != moment:
                differ.append("moment")
        if differ:
            self.report.problems["the last state equals the oracle's"] = f"{differ} differ after {updates}"

    def verify(self) -> None:
        """Read every byte that is left, and count the generations that retention has left."""
        store = str(self.folder / "ckpt")
        told = subprocess.run(
            [sys.executable, "-m", "alpha_mpi.cli", "verify", "--all", store],
            env=launch.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode:
            self.report.problems["the store verifies"] = (told.stdout + told.stderr)[-2000:]
        with am.open(store) as opened:
            left = len(opened)
        # A job that was killed while it removed one leaves it to the next; each epoch's base may stay.
        if left > 4 * KEEP:
            self.report.problems["retention keeps few"] = f"{left} generations are left, keep={KEEP}"


#: What a campaign promises; each is one test that passed unless it is among the problems.
PROMISES = (
    "every fault is followed by training",
    "every start takes the next epoch",
    "what was saved stays",
    "the last job finishes",
    "the last state equals the oracle's",
    "the store verifies",
    "retention keeps few",
)


def words(folder: pathlib.Path, updates: int) -> list[str]:
    """Return what train.py is given."""
    given = [str(folder), "--updates", str(updates), "--every", str(EVERY), "--keep", str(KEEP)]
    return [*given, "--pause", str(PAUSE), "--patient", "--reached"]


def hurtable(folder: pathlib.Path) -> dict[str, str]:
    """Return the variables that make the disk full while the file ``full`` is there."""
    fail = ";".join(f"{call}:0:ENOSPC" for call in ("pwritev", "fallocate"))
    return shim_env(folder / "ckpt", arm=folder / "full", fail=fail)


class UnderSlurm:
    """Jobs of a cluster. Some put themselves back into the queue, the others are replaced by new ones."""

    def __init__(self, cluster: Cluster, folder: pathlib.Path, rng: random.Random) -> None:
        self.cluster, self.folder, self.rng = cluster, folder, rng
        self.run = Run(cluster, folder)
        self.job = 0

    def kinds(self) -> dict[str, Callable[[], float]]:
        return {
            "warned by a signal": self.warn,
            "preempted": self.preempt,
            "cancelled": self.cancel,
            "requeued": self.requeue,
            "node lost": self.lose_node,
        }

    def _launch(self) -> str:
        variables = " ".join(f"'{name}={value}'" for name, value in hurtable(self.folder).items())
        return f"{SRUN} env {variables}"

    def start(self, owners: int, updates: int = FOREVER) -> None:
        nodes = self.rng.randint(-(-owners // self.cluster.cpus), min(3, owners))
        options = [f"--nodes={nodes}", f"--ntasks={owners}"]
        if self.rng.random() < 0.6:
            options.append("--export=ALL,STAY=1")
        _, *more = words(self.folder, updates)
        self.job = self.run.submit(*more, launch=self._launch(), options=tuple(options))

    def ended(self) -> bool:
        return not self.cluster.queued_job(self.job)

    def pids(self, start: Start) -> list[int]:
        return self.run.pids(int(start.job), int(start.restart))

    def warn(self) -> float:
        self.cluster.ask("scancel", "--signal=USR1", str(self.job))
        return time.monotonic()

    def cancel(self) -> float:
        self.cluster.ask("scancel", str(self.job))
        return time.monotonic()

    def requeue(self) -> float:
        self.cluster.ask("scontrol", "requeue", str(self.job))
        return time.monotonic()

    def preempt(self) -> float:
        """Another job takes the first node for a second."""
        node = self.cluster.nodes_of(self.job)[0]
        self.cluster.ask(
            *("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null"),
            *(f"--nodelist={node}", "--wrap=sleep 1"),
        )
        return time.monotonic()

    def lose_node(self) -> float:
        node = self.rng.choice(self.cluster.nodes_of(self.job))
        self.cluster.kill_node(node)
        since = time.monotonic()
        # It comes back when Slurm has missed it, or, as after a quick restart, before.
        try:
            until(lambda: self.cluster.state_of(node).startswith("down"), 35, f"{node} is down")
        except TimeoutError:
            print(f"== {node} comes back while it is {self.cluster.state_of(node)}", flush=True)
        self.cluster.start_node(node)
        return since

    def told(self) -> str:
        """Return what Slurm and the newest job say: why nothing goes on."""
        queue = self.cluster.run(["squeue", "-o", "%i %T %N %r"]).stdout
        return "\n".join([queue, self.run.log(self.job)[-6000:], self.cluster.log("slurmctld")[-1500:]])

    def end(self) -> None:
        """End the job that trains, politely."""
        self.cancel()
        until(self.ended, 60, "the last job has gone")

    def finish(self, owners: int, updates: int) -> int:
        self.start(owners, updates)
        return int(self.cluster.wait(self.job, seconds=BOUND)["ExitCode"].split(":")[0])


class Alone:
    """Jobs of mpiexec, where there is no Slurm."""

    def __init__(self, folder: pathlib.Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.job: launch.Job | None = None
        self.number = 0

    def kinds(self) -> dict[str, Callable[[], float]]:
        return {"warned by a signal": self.warn, "job killed": self.kill_job}

    def start(self, owners: int, updates: int = FOREVER) -> None:
        program = [sys.executable, TRAIN, *words(self.folder, updates)]
        self.number += 1
        extra = hurtable(self.folder) | {"AM_TEST_JOB": str(self.number)}
        with (self.folder / "alone.log").open("ab") as log:
            self.job = launch.start(owners, program, extra=extra, stdout=log, stderr=subprocess.STDOUT)

    def ended(self) -> bool:
        return self.job is None or self.job.process.poll() is not None

    def pids(self, start: Start) -> list[int]:
        folder = self.folder / f"pids-{start.job}-{start.restart}"
        return [int((folder / str(rank)).read_text()) for rank in range(start.owners)]

    def warn(self) -> float:
        """SIGTERM to one rank: all save and stop."""
        assert self.job is not None
        ranks = self.folder / f"pids-{self.number}-0"
        os.kill(int(self.rng.choice(sorted(ranks.iterdir())).read_text()), signal.SIGTERM)
        return time.monotonic()

    def kill_job(self) -> float:
        assert self.job is not None
        self.job.kill()
        return time.monotonic()

    def told(self) -> str:
        """Return what the newest job printed: why nothing goes on."""
        return (self.folder / "alone.log").read_text(errors="replace")[-6000:]

    def end(self) -> None:
        if not self.ended():
            self.kill_job()

    def finish(self, owners: int, updates: int) -> int:
        self.start(owners, updates)
        assert self.job is not None
        try:
            return self.job.process.wait(BOUND)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"the last job runs for more than {BOUND:.0f} s") from error
