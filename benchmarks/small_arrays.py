"""Measure what many small arrays cost to save and resume, against one array of the same bytes.

    [mpiexec -n N] python benchmarks/small_arrays.py [--arrays 2000] [--words 4096] [--repeats 5]
        [--replicated] [--hierarchy star|tree] [--root DIR]

One owner per process, each with so many arrays (of rows, or replicated); float32. Each repeat saves the
many and then the one, on stores of their own, and then resumes both. CPU seconds (all threads of all
owners) and wall seconds (of the slowest); the floor is the one large array.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time

import numpy as np
from mpi4py import MPI

import alpha_mpi as am


def state(arrays, replicated, owners):
    made, rule = am.State(), am.rows()
    for i, array in enumerate(arrays):
        if replicated:
            made.replicate(f"array-{i:06d}", array)
        else:
            made.partition(f"array-{i:06d}", array, shape=(owners * array.size,), layout=rule)
    return made


def measured(call, comm):
    """Return (CPU seconds of all owners, wall seconds of the slowest) of `call`."""
    comm.Barrier()
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return comm.allreduce(cpu), comm.allreduce(wall, MPI.MAX)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--arrays", type=int, default=2000)
    options.add_argument("--words", type=int, default=4096, help="in each of them")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--replicated", action="store_true", help="on every owner, not in rows")
    options.add_argument("--hierarchy", choices=("star", "tree"), help="default: by the owner count")
    options.add_argument("--root", help="directory to write below (default: /dev/shm, which has no disk)")
    args = options.parse_args()
    comm = MPI.COMM_WORLD
    words = np.random.default_rng(0).standard_normal(args.arrays * args.words).astype(np.float32)
    kinds = {"many": np.split(words, args.arrays), "one": [words.copy()]}
    hierarchy = {"star": am.Star(), "tree": am.Tree(fan_out=2), None: None}[args.hierarchy]
    spent = {}

    def opened(kind, keep=None):
        made = state(kinds[kind], args.replicated, comm.size)
        return am.Checkpointer(f"{folder}/{kind}", made, comm=comm, hierarchy=hierarchy, keep=keep)

    base = args.root or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    made = tempfile.mkdtemp(dir=base, prefix="alpha-mpi-bench-") if comm.rank == 0 else None
    folder = comm.bcast(made)
    try:
        stores = {kind: opened(kind, args.repeats + 2) for kind in kinds}
        for store in stores.values():
            store.resume()
        for update in range(args.repeats + 1):
            for kind, store in stores.items():
                kinds[kind][0][update] += 1  # a state that never changes is not worth saving twice
                found = measured(lambda store=store, update=update: store.save(update=update + 1), comm)
                name = "save" if update else "first save"
                spent.setdefault((name, kind), []).append(found)
        for store in stores.values():
            store.close()
        for _ in range(args.repeats):
            for kind in kinds:
                with opened(kind) as store:
                    spent.setdefault(("resume", kind), []).append(measured(store.resume, comm))
    finally:
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    if comm.rank > 0:
        return
    size = 4 * args.words >> 10
    arrays = f"{'replicated ' * args.replicated}arrays of {size} KiB"
    owners = f"{comm.size} owners: " if comm.size > 1 else ""
    print(f"{owners}{args.arrays} {arrays}, and one of all their bytes; medians of {args.repeats}")
    for what in ("save", "first save", "resume"):
        many, one = (
            [statistics.median(times) for times in zip(*spent[what, kind], strict=True)] for kind in kinds
        )
        for i, clock in enumerate(("CPU", "wall")):
            print(
                f"  {what:<11}{clock:<5}many {many[i]:.3f} s   one {one[i]:.3f} s   {many[i] / one[i]:.2f} x"
            )


if __name__ == "__main__":
    main()
