"""A training of many short updates that stops when it is told to; started by test_stops.py.

Arguments: the store, and a folder in which each rank says its process id once it trains.
"""

import os
import pathlib
import sys
import time

import numpy as np
from mpi4py import MPI

import alpha_mpi as am


def main():
    store, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    comm = MPI.COMM_WORLD
    first, last = am.rows().bounds(64, comm.size, comm.rank)
    mine, total = np.zeros((last - first, 4096)), np.zeros(1)
    state = am.State()
    state.partition("w", mine, shape=(64, 4096), layout=am.rows())
    state.replicate("total", total)
    signals = ("SIGUSR1", "SIGTERM")
    with am.Checkpointer(
        store,
        state,
        comm,
        every=5,
        keep=2,
        hierarchy=am.Tree(2),
        deadline=60,
        visibility=0.0,
        signals=signals,
    ) as ckpt:
        update = ckpt.resume().update
        assert (mine == update).all() and total[0] == update  # the end of an update, never its middle
        (folder / f"{comm.rank}").write_text(str(os.getpid()))
        while True:
            update += 1
            mine[: len(mine) // 2] += 1
            time.sleep(0.001 * (comm.rank % 2))
            mine[len(mine) // 2 :] += 1
            total += 1
            if ckpt.due(update):
                ckpt.save(update)
                if comm.rank == 0:
                    (folder / "saved").write_text(str(update))
            if ckpt.stop_requested():
                break
    return ckpt.exit_code


am.run(main)
