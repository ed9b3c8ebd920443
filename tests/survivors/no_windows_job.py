"""Resume a store on this many ranks, and save once more; say what was restored, and by what."""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
from mpi4py import MPI

import alpha_mpi as am
from alpha_mpi.mpi.onesided import counters


def main(store: str, report: str, hierarchy: str) -> None:
    comm = MPI.COMM_WORLD
    rows = am.rows()
    first, last = rows.bounds(29, comm.size, comm.rank)
    words, table = np.zeros((last - first, 3)), np.zeros(4)
    state = am.State()
    state.partition("words", words, shape=(29, 3), layout=rows)
    state.replicate("table", table)
    form = am.Tree(2) if hierarchy == "tree" else am.Star()
    with am.Checkpointer(store, state, comm, hierarchy=form, deadline=30) as ckpt:
        moment = ckpt.resume()
        whole = [row for part in comm.allgather(words.tolist()) for row in part]
        fetched = comm.allgather([counters.bytes, counters.windows, len(counters.gets)])
        if comm.rank == 0:
            told = {"update": moment.update, "words": whole, "table": table.tolist(), "fetched": fetched}
            pathlib.Path(report).write_text(json.dumps(told))
        words += np.arange(3 * first, 3 * last, dtype=float).reshape(words.shape) / 7
        table += 1
        ckpt.save(moment.update + 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
