"""One process of a qualification on GPUs: `python -m alpha_mpi.testing.gpu_leg WHAT FOLDER DEVICE ...`.

Started by `testing.qualify` alone, in a process of its own each time, so that nothing of an earlier one is
left in memory or on the device. Ends by 0 and a line of JSON; a refusal is told in that line too.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
import warnings
from typing import Any

import numpy as np

from .. import open as open_store
from ..checkpointer import Checkpointer
from ..devices import gds
from ..devices import runtime as seam
from ..devices.identity import Identity
from ..devices.ring import stream
from ..devices.words import device_words
from ..digest import CHUNK
from ..errors import CheckpointError
from ..learning import DataParallel
from ..model.identity import Contract
from ..model.layout import shares
from ..protocol.hierarchy import Star
from ..staged import DirectWarning
from ..state import State
from .launch import RANK_VARIABLES

#: A card that is not there, for a refusal where there is one card only.
ELSEWHERE = Identity("another product", "GPU-00000000-0000-0000-0000-000000000000")


class Renamed:
    """The runtime, but for what it says a device is: what moving the job to another card looks like."""

    def __init__(self, inner: Any, product: str | None, uuid: str | None) -> None:
        self._inner, self._product, self._uuid = inner, product, uuid

    def identity(self, device: int) -> Identity:
        found: Identity = self._inner.identity(device)
        return found._replace(product=self._product or found.product, uuid=self._uuid or found.uuid)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def train(folder: str, device: int, stop: int, other: str = "") -> dict[str, Any]:
    """Resume and train up to update `stop`, saving each; say the parameters afterwards.

    The contract binds the very card; `other` makes this one another (``product`` or ``uuid``).
    """
    inner = seam.runtime()
    product = ELSEWHERE.product if other == "product" else None
    uuid = ELSEWHERE.uuid if other == "uuid" else None
    with seam.replaced(Renamed(inner, product, uuid)):
        with DataParallel("adam", "optimizer-partitioned", arrays=inner.arrays(device)) as learner:
            contract = Contract.from_data({**learner.contract.as_data(), "device": "uuid"})
            with Checkpointer(folder, learner.state(), learner=learner.identity, contract=contract) as ckpt:
                learner.stand_at(ckpt.resume())
                begun = learner.update
                while learner.update < stop:
                    learner.step()
                    ckpt.save(learner.update, learner.cursor)
            parameters = learner.parameters.tobytes().hex()
        with DataParallel("adam", "optimizer-partitioned") as shadow:
            while shadow.update < stop:
                shadow.step()
            same = parameters == shadow.parameters.tobytes().hex()
    return {"begun": begun, "update": stop, "shadow": same, "parameters": parameters}


def staging(folder: str, device: int, nbytes: int) -> dict[str, float]:
    """Return bytes per second: of staging in both directions, of one plain pinned copy, of a save,
    and of writing and syncing the same bytes; where kvikio and the store can, also of a save that
    writes from the device directly. The best of three each."""
    inner = seam.runtime()
    count = nbytes // 4 // (CHUNK // 4) * (CHUNK // 4)
    host = np.arange(count, dtype=np.float32)
    array = inner.arrays(device).asarray(host)
    words = device_words(array)
    pinned = inner.pinned(host.nbytes, device)
    flat = words.layout._replace(shape=(count,), strides=(4,))

    def plain() -> None:
        queue = stream(inner, device)
        keep = inner.to_host(pinned, flat, queue)
        inner.record(device, queue).wait()
        del keep

    def written() -> None:
        path = pathlib.Path(folder, "floor")
        with path.open("wb", buffering=0) as file:
            view = host.view(np.uint8).data
            for at in range(0, len(view), CHUNK):
                file.write(view[at : at + CHUNK])
            os.fdatasync(file.fileno())
        path.unlink()

    def best(work: Any) -> float:
        seconds = []
        for _ in range(3):
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
        return host.nbytes / min(seconds)

    def saved(store: str, direct: bool) -> float:
        state = State()
        state.partition("words", array, shape=(count,), layout=shares())
        place = pathlib.Path(folder, store)
        with Checkpointer(place, state, hierarchy=Star(), keep=1, gpu_direct=direct) as ckpt:
            ckpt.resume()
            update = 0

            def save() -> None:
                nonlocal update
                update += 1
                ckpt.save(update, unchanged_ok=True)

            return best(save)

    found = {
        "staged_out": best(lambda: sum(len(view) for view in words.steps(0, host.nbytes))),
        "staged_in": best(lambda: words.fill(host)),
        "plain": best(plain),
        "save": saved("store", False),
        "floor": best(written),
    }
    if gds.is_usable():
        with warnings.catch_warnings():
            warnings.simplefilter("error", DirectWarning)  # what went another way is no such speed
            try:
                found["direct"] = saved("direct", True)
            except DirectWarning as reason:
                print(f"not saved directly: {reason}", file=sys.stderr)
    return found


def words_of(folder: str) -> dict[str, str]:
    """Return the words of every array of the newest generation of a store, in hexadecimal."""
    with open_store(folder) as store:
        newest = store.latest()
        return {name: newest[name][...].tobytes().hex() for name in newest}


def main(arguments: list[str]) -> None:
    """Run one leg, and print what it found; rank 0 alone speaks."""
    what, folder, device, *rest = arguments
    rank = next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)
    number = (int(device) + rank) % max(1, seam.runtime().count())
    try:
        if what == "train":
            stop, *more = rest
            found: dict[str, Any] = train(folder, number, int(stop), *more)
        else:
            found = staging(folder, number, int(rest[0]))
    except CheckpointError as error:
        found = {"refused": error.code, "message": str(error)}
    if rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
