"""An honest little training, and faults that people make when they add checkpoints to one.

    python training.py --store STORE --updates N [--fault NAME]

It gives the same bits on any number of owners: the items of a batch are dealt to the owners, who
blur each with draws of its own, and all are added in the order of the sequence. The first two words
are frozen, so whatever goes wrong is first seen at index 2. The rate is halved after update 6.
"""

import argparse

import numpy as np
from mpi4py import MPI

import alpha_mpi as am

FAULTS = ("momentum", "random", "data", "power", "patience", "owners", "seldom")
WORDS, FROZEN, BATCH = 9, 2, 3


def train(store, updates, fault=None):
    comm, rows = MPI.COMM_WORLD, am.rows()
    start, stop = rows.bounds(WORDS, comm.size, comm.rank)
    first, last = rows.bounds(BATCH, comm.size, comm.rank)
    data = np.random.default_rng(1).standard_normal((40, WORDS))
    trained = np.arange(start, stop) >= FROZEN
    w, m = np.zeros(stop - start), np.zeros(stop - start)
    noise, blur = np.random.default_rng(2), am.stream(3, "blur")
    power, rate, waited = np.ones(()), np.array(0.25), np.zeros((), np.int64)

    state = am.State()
    state.partition("w", w, shape=(WORDS,), layout=rows)
    if fault not in ("momentum", "seldom"):
        state.partition("m", m, like="w")
    if fault == "power":  # kept in float64, saved in float32
        state.replicate("power", lambda: power.astype(np.float32), write=lambda x: np.copyto(power, x))
    else:
        state.replicate("power", power)
    state.replicate("rate", rate)
    if fault != "patience":
        state.replicate("waited", waited)
    if fault != "random":
        state.document("noise", am.rng(noise))
    state.document("blur", blur)
    learner = am.Learner("small", rate=0.25, inputs="normal numbers of seed 1")
    with am.Checkpointer(store, state, comm=comm, learner=learner, every=1) as ckpt:
        moment = ckpt.resume()
        cursor, seen = moment.cursor, 0 if fault == "data" else moment.cursor
        for update in range(moment.update + 1, updates + 1):
            mine = blur.each(range(seen + first, seen + last), lambda g: 0.1 * g.standard_normal(WORDS))
            mine += data[np.arange(seen + first, seen + last) % len(data)]
            wanted = sum(np.concatenate(comm.allgather(mine)))[start:stop] / BATCH
            gradient = wanted - w + 0.01 * noise.standard_normal()
            m *= 0.9
            m += gradient * trained
            power *= 0.9
            w += rate * m / (1 - power)
            if fault == "owners":
                w[trained] += 1e-9 * comm.size
            waited += 1
            if waited == 6:
                rate /= 2
            cursor, seen = cursor + BATCH, seen + BATCH
            if fault != "seldom" or update % 2 == 0:
                ckpt.save(update=update, cursor=cursor)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--store", required=True)
    options.add_argument("--updates", type=int, required=True)
    options.add_argument("--fault", choices=FAULTS)
    train(**vars(options.parse_args()))
