"""R25: one training goes through fifty stops by signals, half of them with too little grace to save."""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from gates import oracle

import alpha_mpi as am
from alpha_mpi.testing import launch

TRAIN = str(pathlib.Path(__file__).parents[1] / "slurm" / "train.py")
OWNERS, EVERY, MOMENTS = 4, 5, 50
PATIENCE = 60


class Story:
    """One training over many jobs."""

    def __init__(self, folder):
        self.folder, self.saved, self.jobs = folder, 0, 0

    def start(self, updates, *more):
        self.jobs += 1
        for mark in ("inside", "go"):
            (self.folder / mark).unlink(missing_ok=True)
        words = [str(self.folder), "--updates", str(updates), "--every", str(EVERY), "--keep", "3", *more]
        self.log = self.folder / f"{self.jobs}.log"
        with self.log.open("wb") as sink:
            return launch.start(
                OWNERS,
                [sys.executable, TRAIN, *words],
                extra={"AM_TEST_JOB": str(self.jobs), "PYTHONUNBUFFERED": "1"},
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def pids(self):
        ranks = self.folder / f"pids-{self.jobs}-0"
        return [int((ranks / str(rank)).read_text()) for rank in range(OWNERS)]

    def progress(self):
        try:
            update, job, _ = (self.folder / "progress").read_text().split()
        except OSError:
            return 0
        return int(update) if job == str(self.jobs) else 0

    def wait(self, job, true):
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert job.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.002)

    def began(self):
        """Return after which update this job went on: never before what was saved."""
        found = re.findall(r"after update (\d+)$", self.log.read_text(), re.MULTILINE)
        return int(found[0])


def send(rng, pids, kind):
    """One signal to one rank, to all, or twice."""
    number = rng.choice([signal.SIGUSR1, signal.SIGTERM])
    for _ in range(2 if kind == "twice" else 1):
        for pid in pids if kind == "all" else rng.sample(pids, 1):
            os.kill(pid, number)
        time.sleep(0.005 if kind == "twice" else 0)
    return number.name


def one(story, rng, kind, killed):
    """One job that is told to stop; `killed`: two seconds later, inside a save that takes longer."""
    slow = story.saved // EVERY * EVERY + EVERY * rng.randint(1, 3)
    more = ("--slow-save", str(slow)) if killed or kind == "in a save" else ()
    job = story.start(100_000, "--pause", "0.01", *more)
    try:
        if more:
            story.wait(job, (story.folder / "inside").exists)
            reached = slow
        else:
            reached = story.saved + rng.randint(1, 12)
            story.wait(job, lambda: story.progress() >= reached)
            time.sleep(rng.random() * 0.02)
        assert story.began() == story.saved
        if killed:
            send(rng, story.pids(), kind)
            time.sleep(2)
            assert job.process.poll() is None
            job.kill()
            story.saved = max(story.saved, slow - EVERY)
            return
        name = send(rng, story.pids(), kind)
        if more:
            time.sleep(0.2)
            assert job.process.poll() is None  # nothing was cut short by the signal
            (story.folder / "go").touch()
        code = job.process.wait(PATIENCE)
        text = story.log.read_text()
        assert code == am.Exit.SAVED, (code, text)
        [(update, why)] = re.findall(r"^stopped after update (\d+): (.*)$", text, re.MULTILINE)
        assert why.startswith(f"{name} on rank "), why
        assert int(update) >= reached and f" update {update}\n" in text
        story.saved = int(update)
    finally:
        job.kill()


@pytest.mark.campaign
def test_r25_fifty_stops(tmp_path):
    rng, story = random.Random(25), Story(tmp_path)
    for i in range(MOMENTS):
        one(story, rng, ("one", "all", "twice", "in a save")[i % 4], killed=i // 4 % 2 == 1)
    last = story.saved + 7
    job = story.start(last)
    assert job.process.wait(PATIENCE) == am.Exit.FINISHED
    assert story.began() == story.saved
    expected, moment, _ = oracle.train("adam", [("parameter-partitioned", 1, last)])
    with np.load(tmp_path / "final.npz") as found:
        assert tuple(found["moment"].tolist()) == moment
        for name, words in expected.items():
            assert found[name].tobytes() == np.asarray(words).tobytes(), name
