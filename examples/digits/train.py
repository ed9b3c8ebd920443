"""Train a small network on handwritten digits, data-parallel, and save it with alpha_mpi.

Every rank holds some rows of each weight matrix and of its Adam moments. An update gathers the
weights, computes the gradients of this rank's blocks of the batch, and adds all blocks in one
stated order: the same bits every time, on any number of ranks.
"""

import argparse
import os
import time
from functools import partial

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

import alpha_mpi as am

BATCH, BLOCKS, STOP = 96, 12, ("SIGUSR1", "SIGTERM")
BETA1, BETA2, EPSILON = np.float32(0.9), np.float32(0.999), np.float32(1e-8)


class Layer:
    """This rank's rows [start, stop) of one weight matrix, with their Adam moments."""

    def __init__(self, seed, shape, comm, rows):
        self.shape, (self.start, self.stop) = shape, rows.bounds(shape[0], comm.size, comm.rank)
        weights = np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[0])
        self.w = weights[self.start : self.stop].astype(np.float32)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)

    def step(self, gradient, adam):
        g = gradient[self.start : self.stop]
        self.m += (1 - BETA1) * (g - self.m)
        self.v += (1 - BETA2) * (g * g - self.v)
        self.w -= adam.rate * (self.m / (1 - adam.b1)) / (np.sqrt(self.v / (1 - adam.b2)) + EPSILON)


class Adam:
    """What all ranks hold alike: powers of the betas, a rate that is halved when the loss stands still."""

    def __init__(self):
        self.b1 = self.b2 = np.float32(1)
        self.rate, self.loss, self.best, self.waited = 0.003, 2.3, 2.3, 0

    def step(self, loss):
        self.b1, self.b2 = self.b1 * BETA1, self.b2 * BETA2
        self.loss += 0.1 * (loss - self.loss)
        self.waited = 0 if self.loss < self.best else self.waited + 1
        self.best = min(self.best, self.loss)
        if self.waited == 60:
            self.rate, self.waited = self.rate / 2, 0


def gather_rows(comm, rows, shape):
    whole = np.empty(shape, np.float32)
    comm.Allgatherv(rows, [whole, comm.allgather(rows.size)])
    return whole


def batch(digits, cursor, noise):
    """Items [cursor, cursor + BATCH) of the input sequence: every pass over the data in a new order."""
    at, count = np.arange(cursor, cursor + BATCH), len(digits.target)
    orders = {p: np.random.default_rng([11, p]).permutation(count) for p in set((at // count).tolist())}
    items = [orders[i // count][i % count] for i in at.tolist()]
    x = digits.data[items] / 16 + 0.05 * noise.standard_normal((BATCH, digits.data.shape[1]))
    return x.astype(np.float32), digits.target[items]


def gradients(w1, w2, x, y):
    """Both layers' gradients and the loss of one block, flat and one after the other."""
    bias = np.ones((len(x), 1), np.float32)
    z = (x := np.hstack([x, bias])) @ w1
    h = np.hstack([np.maximum(z, 0), bias])
    p = np.exp(h @ w2 - (h @ w2).max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    right = np.arange(len(y)), y
    loss = -np.log(p[right] + EPSILON).sum(keepdims=True)
    p[right] -= 1
    below = (p @ w2[:-1].T) * (z > 0)
    return np.concatenate([(x.T @ below).ravel(), (h.T @ p).ravel(), loss]) / np.float32(BATCH)


def tree_sum(parts):
    """The fixed combine order: neighbours in pairs, level by level, the odd one out goes up as it is."""
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + list(parts[2 * len(pairs) :])
    return parts[0]


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--store", required=True, help="directory of the checkpoints")
    options.add_argument("--updates", type=int, default=200, help="train up to this update")
    options.add_argument("--every", type=int, default=20, help="save after so many updates")
    options.add_argument("--keep", type=int, default=3, help="generations to keep")
    options.add_argument("--tree", type=int, metavar="FANOUT", help="publish through a tree of this fan-out")
    options.add_argument("--out", help="final weights and loss, as .npz")
    args = options.parse_args()
    comm, rows, digits = MPI.COMM_WORLD, am.rows(), load_digits()
    hidden, output = Layer(1, (65, 128), comm, rows), Layer(2, (129, 10), comm, rows)
    adam, noise, update = Adam(), np.random.default_rng(3), 0
    first, last = rows.bounds(BLOCKS, comm.size, comm.rank)  # this rank's blocks of every batch

    def read_rate():  # demo.py kills the job inside a save: this makes one save slow on the last rank
        if os.environ.get("DIGITS_SLOW_SAVE") == str(update) and comm.rank == comm.size - 1:
            time.sleep(30)
        return {"rate": adam.rate, "loss": adam.loss, "best": adam.best, "waited": adam.waited}

    state = am.State()
    for name, layer in {"hidden": hidden, "output": output}.items():
        state.partition(f"{name}/weights", layer, "w", shape=layer.shape, layout=rows)
        state.partition(f"{name}/adam-m", layer, "m", like=f"{name}/weights")
        state.partition(f"{name}/adam-v", layer, "v", like=f"{name}/weights")
    state.replicate("beta1-power", adam, "b1")
    state.replicate("beta2-power", adam, "b2")
    state.document("rate", read_rate, lambda saved: vars(adam).update(saved))
    state.document("noise", lambda: noise.bit_generator.state, partial(setattr, noise.bit_generator, "state"))
    learner = am.Learner("digits-mlp", rate=adam.rate, inputs="scikit-learn digits, order 11, noise 3")
    how = {"every": args.every, "keep": args.keep, "hierarchy": args.tree and am.Tree(args.tree)}
    with am.Checkpointer(args.store, state, comm, learner=learner, signals=STOP, **how) as ckpt:
        moment = ckpt.resume()
        update, cursor = moment.update, moment.cursor
        if comm.rank == 0:
            print(f"starting after update {update}")
        while update < args.updates:
            x, y = batch(digits, cursor, noise)
            w1, w2 = (gather_rows(comm, layer.w, layer.shape) for layer in (hidden, output))
            mine = [gradients(w1, w2, x[i::BLOCKS], y[i::BLOCKS]) for i in range(first, last)]
            total = tree_sum(gather_rows(comm, np.array(mine, np.float32), (BLOCKS, w1.size + w2.size + 1)))
            adam.step(float(total[-1]))
            hidden.step(total[: w1.size].reshape(w1.shape), adam)
            output.step(total[w1.size : -1].reshape(w2.shape), adam)
            update, cursor = update + 1, cursor + BATCH
            if ckpt.due(update):
                began = time.time()
                ckpt.save(update=update, cursor=cursor)
                if comm.rank == 0:  # demo.py reads these lines
                    print(f"saved update {update} in {time.time() - began:.4f} s, loss {adam.loss:.6f}")
            if ckpt.stop_requested():  # by a signal or the time limit; saved, on every rank alike
                break
    w1, w2 = (gather_rows(comm, layer.w, layer.shape) for layer in (hidden, output))
    if comm.rank == 0 and args.out:
        np.savez(args.out, hidden=w1, output=w2, loss=adam.loss, update=update, cursor=cursor)
    return ckpt.exit_code


if __name__ == "__main__":
    am.run(main)
