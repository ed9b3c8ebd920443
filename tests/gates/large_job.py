"""What the gates of large states start, on each rank: ``STORE star|tree NBYTES publish|restore [ARM]``.

The state is one region of NBYTES in shares, or of A,B,...: so many on each owner. Says, for each
rank, its own bytes, its peak of resident memory before and after the work, and the error of its save
if the disk said no. The file ARM is made before the save.
"""

from __future__ import annotations

import json
import pathlib
import resource
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import alpha_mpi as am  # noqa: E402

#: Bytes compared at a time, so that checking needs no second copy.
STEP = 1 << 18


def peak() -> int:
    """Return the peak of resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def expected(first: int, last: int) -> np.ndarray:
    """Return the bytes [first, last) of the region: a multiplicative hash of their index."""
    index = np.arange(first, last, dtype=np.uint64)
    return ((index * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)).astype(np.uint8)


def main(store: str, kind: str, size: str, work: str, arm: str = "") -> None:
    """Do the work of one rank."""
    comm = None
    if kind != "alone":
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    rank, owners = comm.rank if comm else 0, comm.size if comm else 1
    sizes = [int(n) for n in size.split(",")]
    total = sum(sizes)
    first, last = am.shares().bounds(total, owners, rank)
    if len(sizes) > 1:
        first = sum(sizes[:rank])
        last = first + sizes[rank]
    data = np.zeros(last - first, np.uint8)
    for at in range(0, len(data), STEP):
        piece = data[at : at + STEP]
        piece[...] = expected(first + at, first + at + len(piece)) if work == "publish" else 0xFF
    state = am.State()
    if len(sizes) > 1:
        rule = am.irregular([am.Interval(first, last)])
        state.partition("bytes", [data], shape=(total,), layout=rule)
    else:
        state.partition("bytes", data, shape=(total,), layout=am.shares())
    hierarchy = am.Tree(2) if kind == "tree" else am.Star()
    before, error = peak(), None
    with am.Checkpointer(store, state, comm, hierarchy=hierarchy, deadline=300) as ckpt:
        moment = ckpt.resume()
        if work == "publish":
            if arm:
                pathlib.Path(arm).touch()
            try:
                ckpt.save(moment.update + 1, unchanged_ok=True)
            except am.CommitFailed as failed:
                error = {"code": failed.code, "stage": failed.stage, "file": failed.file, "text": str(failed)}
    after = peak()
    if work == "restore":
        for at in range(0, len(data), STEP):
            piece = data[at : at + STEP]
            assert np.array_equal(piece, expected(first + at, first + at + len(piece))), at
    told = {"rank": rank, "own": len(data), "before": before, "after": after, "update": moment.update}
    everyone = [{**told, "error": error}]
    if comm is not None:
        everyone = comm.gather(everyone[0])  # one writer, so that no lines mix
    if rank == 0:
        print(json.dumps(everyone), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
