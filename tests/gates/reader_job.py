"""What test_r09_reader.py starts: ``train STORE LAST`` saves, keeping one; ``read STORE STOP``."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import warnings

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fill import fill, same_bits  # noqa: E402

import alpha_mpi as am  # noqa: E402

SHAPE = (3000, 50)


def train(store: str, last: str) -> None:
    """Save each update up to `last`, in jobs of ten; retention keeps one."""
    warnings.simplefilter("error")
    w = np.zeros(SHAPE, np.float32)
    state = am.State()
    state.partition("w", w, shape=SHAPE, layout=am.rows())
    state.document("doc", lambda: {"update": int(w[0, 0])}, lambda value: None)
    update = 0
    while update < int(last):
        with am.Checkpointer(store, state, keep=1, visibility=0.0) as ckpt:
            update = ckpt.resume().update
            for _ in range(10):
                update += 1
                w[...] = fill("w", update, SHAPE, np.float32)
                ckpt.save(update)


def read(store: str, stop: str) -> None:
    """Read the newest generation again and again, slowly. Says how often it was exact, and gone."""
    count = {"exact": 0, "gone": 0, "updates": 0}
    seen = set()
    with am.open(store) as reader:
        while not os.path.exists(stop):
            try:
                g = reader.latest()
                update = g.moment.update
                words = fill("w", update, SHAPE, np.float32)
                for start in range(0, SHAPE[0], 500):
                    assert same_bits(g["w"][start : start + 500], words[start : start + 500])
                    time.sleep(0.002)
                assert g.documents["doc"] == {"update": int(words[0, 0])}
                count["exact"] += 1
                seen.add(update)
            except am.Refused as error:
                assert error.code in ("removed-generation", "no-generation"), error
                count["gone"] += 1
    print(json.dumps({**count, "updates": len(seen)}), flush=True)


if __name__ == "__main__":
    {"train": train, "read": read}[sys.argv[1]](*sys.argv[2:])
