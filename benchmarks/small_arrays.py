"""Measure what many small arrays cost to save and resume, against one array of the same bytes.

    python benchmarks/small_arrays.py [--arrays 2000] [--words 4096] [--repeats 5] [--replicated] [--root DIR]

One process, one owner; float32. Each repeat saves the many and then the one, on stores of their own, and
then resumes both. CPU seconds (all threads) and wall seconds; the floor is the one large array.
"""

import argparse
import os
import statistics
import tempfile
import time

import numpy as np

import alpha_mpi as am


def state(arrays, replicated):
    made, rule = am.State(), am.rows()
    for i, array in enumerate(arrays):
        if replicated:
            made.replicate(f"array-{i:06d}", array)
        else:
            made.partition(f"array-{i:06d}", array, shape=array.shape, layout=rule)
    return made


def measured(call):
    """Return (CPU seconds, wall seconds) of `call`."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return time.process_time() - cpu, time.perf_counter() - wall


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--arrays", type=int, default=2000)
    options.add_argument("--words", type=int, default=4096, help="in each of them")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--replicated", action="store_true", help="on every owner, not in rows")
    options.add_argument("--root", help="directory to write below (default: /dev/shm, which has no disk)")
    args = options.parse_args()
    words = np.random.default_rng(0).standard_normal(args.arrays * args.words).astype(np.float32)
    kinds = {"many": np.split(words, args.arrays), "one": [words.copy()]}
    spent = {}
    base = args.root or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
    with tempfile.TemporaryDirectory(dir=base, prefix="alpha-mpi-bench-") as folder:
        stores = {
            kind: am.Checkpointer(
                f"{folder}/{kind}", state(arrays, args.replicated), comm=None, keep=args.repeats + 2
            )
            for kind, arrays in kinds.items()
        }
        for store in stores.values():
            store.__enter__()
            store.resume()
        for update in range(args.repeats + 1):
            for kind, store in stores.items():
                kinds[kind][0][update] += 1  # a state that never changes is not worth saving twice
                found = measured(lambda store=store, update=update: store.save(update=update + 1))
                if update:  # the first of all is not counted
                    spent.setdefault(("save", kind), []).append(found)
        for store in stores.values():
            store.__exit__(None, None, None)
        for _ in range(args.repeats):
            for kind, arrays in kinds.items():
                with am.Checkpointer(f"{folder}/{kind}", state(arrays, args.replicated), comm=None) as ckpt:
                    spent.setdefault(("resume", kind), []).append(measured(ckpt.resume))
    size = 4 * args.words >> 10
    arrays = f"{'replicated ' * args.replicated}arrays of {size} KiB"
    print(f"{args.arrays} {arrays}, and one of all their bytes; medians of {args.repeats}")
    for what in ("save", "resume"):
        many, one = (
            [statistics.median(times) for times in zip(*spent[what, kind], strict=True)] for kind in kinds
        )
        for i, clock in enumerate(("CPU", "wall")):
            print(
                f"  {what:<7}{clock:<5}many {many[i]:.3f} s   one {one[i]:.3f} s   {many[i] / one[i]:.2f} x"
            )


if __name__ == "__main__":
    main()
