"""R25: a signal to one rank or to all, twice, inside a save; in half of the runs a kill soon after."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import alpha_mpi as am
from alpha_mpi.testing import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOB = pathlib.Path(__file__).with_name("stop_job.py")
RANKS = 4


def wait_for(files: list[pathlib.Path], job: launch.Job) -> None:
    end = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in files):
        assert job.process.poll() is None, "the training ended by itself"
        assert time.monotonic() < end, "the training does not begin"
        time.sleep(0.005)


def one_round(store: pathlib.Path, folder: pathlib.Path, rng: random.Random, kill: bool) -> None:
    """Start, signal, perhaps kill; then judge what the store holds."""
    folder.mkdir()
    extra = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    words = [sys.executable, str(JOB), str(store), str(folder)]
    with open(folder / "log", "w") as log:
        job = launch.start(RANKS, words, extra, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for([folder / str(rank) for rank in range(RANKS)], job)
            pids = [int((folder / str(rank)).read_text()) for rank in range(RANKS)]
            time.sleep(rng.uniform(0, 0.2))
            number = rng.choice([signal.SIGUSR1, signal.SIGTERM])
            for _ in range(rng.choice([1, 2])):
                for pid in pids if rng.random() < 0.4 else [rng.choice(pids)]:
                    os.kill(pid, number)
            if kill:
                time.sleep(rng.uniform(0, 0.05))
                job.kill()
            code = job.process.wait(120)
        finally:
            job.kill()
    told = (folder / "log").read_text()
    if kill:
        if not any((store / "published").glob("e*-*.json")):
            return  # killed before the first save
    else:
        assert code == am.Exit.SAVED, told
    saved = folder / "saved"
    with am.open(store) as opened:
        newest = opened.latest()
        update = newest.moment.update
        if saved.exists() and saved.read_text():
            assert update >= int(saved.read_text()), "what a save returned is gone"
        assert (newest["w"][...] == update).all() and newest["total"][0] == update


def rounds(tmp_path: pathlib.Path, seeds: range) -> None:
    store = tmp_path / "ckpt"
    for seed in seeds:
        one_round(store, tmp_path / str(seed), random.Random(seed), kill=seed % 2 == 1)


def test_stopped_and_killed_in_the_grace_time(tmp_path: pathlib.Path) -> None:
    rounds(tmp_path, range(2))
