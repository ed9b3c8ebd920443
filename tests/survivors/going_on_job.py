"""A training that goes on without a lost rank, in the same processes (ULFM).

``going_on_job.py STORE REPORTS HIERARCHY VICTIM WHERE``: rank VICTIM is killed in update 3, in the
training or inside the save. The others leave the broken communicator, shrink it, and resume on it.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import alpha_mpi as am

LAST, DEADLY = 6, 3


class Job:
    def __init__(self, store: str, hierarchy: str, victim: int, where: str) -> None:
        self.store, self.victim, self.where = store, victim, where
        self.hierarchy = am.Star() if hierarchy == "star" else am.Tree(2)
        self.me = MPI.COMM_WORLD.rank
        self.told: list[object] = []

    def die(self, update: int, where: str) -> None:
        if (self.me, update, where) == (self.victim, DEADLY, self.where):
            os.kill(os.getpid(), signal.SIGKILL)

    def train(self, comm: MPI.Intracomm) -> None:
        """Train to the end on these ranks: each word becomes the sum of the updates so far."""
        shares = am.shares()
        first, last = shares.bounds(40, comm.size, comm.rank)
        w, update = np.zeros(last - first), 0

        def words() -> np.ndarray:
            self.die(update, "save")
            return w

        state = am.State()
        state.partition("w", words, shape=(40,), layout=shares, dtype=np.float64)
        with am.Checkpointer(self.store, state, comm, hierarchy=self.hierarchy, deadline=20.0) as ckpt:
            moment = ckpt.resume()
            self.told.append({"owners": comm.size, "update": moment.update, "words": sorted(set(w.tolist()))})
            for update in range(moment.update + 1, LAST + 1):
                self.die(update, "training")
                w += update
                ckpt.save(update)
        self.told.append({"owners": comm.size, "update": update, "words": sorted(set(w.tolist()))})


def main(store: str, reports: str, hierarchy: str, victim: int, where: str) -> None:
    """Run one rank, as long as any are left."""
    job, comm = Job(store, hierarchy, victim, where), MPI.COMM_WORLD
    while True:
        try:
            job.train(comm)
            break
        except am.PeerFailed as error:
            job.told.append([error.code, error.role])
            comm = comm.Shrink()
    report = pathlib.Path(reports) / f"{job.me}.json"
    report.with_suffix(".tmp").write_text(json.dumps(job.told))
    report.with_suffix(".tmp").rename(report)
    end = time.monotonic() + 30
    while len(list(report.parent.glob("*.json"))) < comm.size and time.monotonic() < end:
        time.sleep(0.05)
    os._exit(0)  # MPI_Finalize may wait for the lost one


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5])
