"""What test_r09.py starts: ``train STORE star|tree UPDATES...`` on each rank, or ``spoil STORE STOP``."""

from __future__ import annotations

import json
import os
import pathlib
import random
import sys
import time
import warnings

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fill import fill, same_bits  # noqa: E402

import alpha_mpi as am  # noqa: E402

SHAPE = (600, 7)


def train(store: str, kind: str, *updates: str) -> None:
    """Resume what is there, exactly; save each update; keep one generation. Says the moment."""
    from mpi4py import MPI

    warnings.simplefilter("error")  # a file that is gone is nothing to warn of
    comm = MPI.COMM_WORLD
    first, last = am.rows().bounds(SHAPE[0], comm.size, comm.rank)
    w, mean = np.zeros((last - first, SHAPE[1]), np.float32), np.zeros(33)
    state = am.State()
    state.partition("w", w, shape=SHAPE, layout=am.rows())
    state.replicate("mean", mean)
    hierarchy = am.Star() if kind == "star" else am.Tree(2)
    with am.Checkpointer(store, state, comm, keep=1, hierarchy=hierarchy, deadline=60) as ckpt:
        moment = ckpt.resume()
        if moment.update:
            assert same_bits(w, fill("w", moment.update, SHAPE, np.float32)[first:last])
            assert same_bits(mean, fill("mean", moment.update, (33,), np.float64))
        for update in map(int, updates):
            w[...] = fill("w", update, SHAPE, np.float32)[first:last]
            mean[...] = fill("mean", update, (33,), np.float64)
            ckpt.save(update)
    if comm.rank == 0:
        print("resumed", moment.update, flush=True)


def spoil(store: str, stop: str) -> None:
    """Remove random files of generations that are retired, until `stop` exists. Says how many."""
    published, data = pathlib.Path(store, "published"), pathlib.Path(store, "data")
    removed, pick = 0, random.Random(9)
    while not os.path.exists(stop):
        for mark in published.glob("*.removed"):
            root = mark.with_suffix(".json")
            try:
                attempt = json.loads(root.read_bytes().split(b"\n")[0])["prefix"]["attempt"]
                folder = data / f"e{attempt['epoch']:06d}-{attempt['save']:06d}"
                files = [p for p in folder.rglob("*") if p.suffix in (".pack", ".json")]
                if files:
                    pick.choice(files).unlink()
                    removed += 1
            except FileNotFoundError:
                pass  # the job was faster
        time.sleep(0.001)
    print(removed, flush=True)


if __name__ == "__main__":
    {"train": train, "spoil": spoil}[sys.argv[1]](*sys.argv[2:])
