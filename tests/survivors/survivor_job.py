"""A job one rank of which is killed inside a save; run under a launcher that lets the others live.

``survivor_job.py STORE REPORTS HIERARCHY VICTIM``: saves the next update, is killed on rank VICTIM
(-1: nowhere) in the save after it. Who survives writes what it was told into REPORTS/RANK.json and
ends by itself: once the others have written too, since the launcher ends all when one is gone that has
not called MPI_Finalize, and with os._exit, since MPI_Finalize may wait for the lost one for ever.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time

import numpy as np

import alpha_mpi as am


def main(store: str, reports: str, hierarchy: str, victim: int) -> int:
    """Run one rank; return its exit status."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    first, last = am.shares().bounds(40, comm.size, comm.rank)
    w = np.zeros(last - first)
    deadly = False

    def words() -> np.ndarray:
        if deadly and comm.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return w

    state = am.State()
    state.partition("w", words, shape=(40,), layout=am.shares(), dtype=np.float64)
    kind = am.Star() if hierarchy == "star" else am.Tree(2)
    told: dict[str, object] = {}
    try:
        with am.Checkpointer(store, state, comm, hierarchy=kind, deadline=10.0) as ckpt:
            update = ckpt.resume().update
            told["resumed"], told["words"] = update, sorted(set(w.tolist()))
            w[...] = update + 1
            ckpt.save(update + 1)
            deadly = True
            w[...] = update + 2
            ckpt.save(update + 2)
            told["saved"] = update + 2
    except am.CheckpointError as error:
        told |= {"type": type(error).__name__, "role": error.role, "text": str(error)}
    report = pathlib.Path(reports) / f"{comm.rank}.json"
    report.with_suffix(".tmp").write_text(json.dumps(told))
    report.with_suffix(".tmp").rename(report)
    end = time.monotonic() + 30
    while len(list(report.parent.glob("*.json"))) < comm.size - 1 and time.monotonic() < end:
        time.sleep(0.05)
    return 0 if "saved" in told else 3


if __name__ == "__main__":
    status = main(*sys.argv[1:4], int(sys.argv[4]))
    if status:
        os._exit(status)
