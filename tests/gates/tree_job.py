"""What test_big_tree.py starts on each rank: ``STORE publish|resume|mesh FAN_OUT OUT``.

Observes what each role sends, receives and reads, and lets owner 0 write it to OUT as JSON.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fill import fill, same_bits  # noqa: E402

import alpha_mpi as am  # noqa: E402
import alpha_mpi.restore.resume as restoring  # noqa: E402
from alpha_mpi.mpi import onesided  # noqa: E402
from alpha_mpi.mpi.channel import Channel  # noqa: E402
from alpha_mpi.protocol.hierarchy import path, place  # noqa: E402

#: Words per owner of the partitioned region: 128 KiB, far more than any message may hold.
WORDS = 1 << 15
DEADLINE = 120


class Model:
    """Partitioned, replicated and per-owner words, and a document."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.size = (WORDS * comm.size + 5,)
        first, last = am.shares().bounds(self.size[0], comm.size, comm.rank)
        self.share = slice(first, last)
        self.w = np.zeros(last - first, np.float32)
        self.mean = np.zeros(50_000, np.float64)
        self.mine = np.zeros(77, np.uint64)
        self.schedule: Any = None

    def state(self) -> am.State:
        state = am.State()
        state.partition("w", self.w, shape=self.size, layout=am.shares())
        state.replicate("mean", self.mean)
        state.per_owner("mine", self.mine)
        state.document("schedule", lambda: self.schedule, lambda value: setattr(self, "schedule", value))
        return state

    def at(self, update: int) -> None:
        self.w[...] = self.part(update)
        self.mean[...] = fill("mean", update, self.mean.shape, np.float64)
        self.mine[...] = fill(f"mine{self.comm.rank}", update, self.mine.shape, np.uint64)
        self.schedule = {"update": update}

    def part(self, update: int) -> np.ndarray:
        return fill("w", update, self.size, np.float32)[self.share]

    def exact(self, update: int) -> bool:
        other = Model(self.comm)
        other.at(update)
        return (
            same_bits(self.w, other.w)
            and same_bits(self.mean, other.mean)
            and same_bits(self.mine, other.mine)
            and self.schedule == other.schedule
        )


class Sent:
    """Looks at every message that leaves: its size, and whether it holds words of a region."""

    def __init__(self, model: Model) -> None:
        self.model, self.largest, self.bytes, self.words = model, 0, 0, False
        send: Callable[..., None] = Channel.send

        def looked_at(channel: Channel, to: int, data: bytes) -> None:
            self.largest = max(self.largest, len(data))
            self.bytes += len(data)
            for array in (model.w, model.mean, model.mine):
                raw = array.tobytes()
                self.words |= any(
                    raw[at : at + 8] in data for at in range(0, len(raw), len(raw) // 16 // 8 * 8)
                )
            send(channel, to, data)

        Channel.send = looked_at  # type: ignore[method-assign]


def publish(comm: Any, store: str, fan_out: int) -> dict[str, Any]:
    """Publish two generations."""
    model = Model(comm)
    with am.Checkpointer(store, model.state(), comm, hierarchy=am.Tree(fan_out), deadline=DEADLINE) as ckpt:
        ckpt.resume()
        sent, seconds = Sent(model), []
        for update in (1, 2):
            model.at(update)
            begin = time.monotonic()
            ckpt.save(update)
            seconds.append(time.monotonic() - begin)
        ports = ckpt._ports
        commitments = {r: n for (r, kind), n in ports.received.items() if kind == "Commitment"}
        return {
            "commitments": commitments,
            "largest": max(ports.largest, sent.largest),
            "bytes": sent.bytes,
            "words": sent.words,
            "seconds": seconds,
        }


def resume(comm: Any, store: str, fan_out: int) -> dict[str, Any]:
    """Resume the newest, and check it."""
    manifests: list[list[int]] = []
    read_path: Callable[..., Any] = restoring.read_path

    def looked_at(*arguments: Any) -> Any:
        files, cause = read_path(*arguments)
        manifests.append([json.loads(file.split(b"\n")[0])["role"] for file in files or ()])
        return files, cause

    restoring.read_path = looked_at
    model = Model(comm)
    with am.Checkpointer(store, model.state(), comm, hierarchy=am.Tree(fan_out), deadline=DEADLINE) as ckpt:
        onesided.counters.reset()
        begin = time.monotonic()
        moment = ckpt.resume()
        seconds = time.monotonic() - begin
    counters = onesided.counters
    return {
        "update": moment.update,
        "exact": model.exact(moment.update),
        "manifests": manifests,
        "windows": counters.windows,
        "gets": counters.gets,
        "bytes": counters.bytes,
        "seconds": [seconds],
    }


def mesh(comm: Any, store: str, fan_out: int) -> dict[str, Any]:
    """Save and resume a mesh of replica groups and a large replicated region."""
    rule = am.mesh({"data": 2, "model": comm.size // 2}, (None, "model"))
    shape, large = (60, 44), ((65 << 20) // 4 + 3,)  # odd, so that the last chunk is short
    (piece,) = rule.pieces(shape, comm.size, comm.rank)
    assert isinstance(piece, am.Box)
    box = tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))

    def job(updates: tuple[int, ...]) -> tuple[am.Moment, bool]:
        w, table = np.zeros_like(fill("w", 0, shape, np.float32)[box]), np.zeros(large, np.float32)
        state = am.State()
        state.partition("w", w, shape=shape, layout=rule)
        state.replicate("table", table)
        with am.Checkpointer(store, state, comm, hierarchy=am.Tree(fan_out), deadline=DEADLINE) as ckpt:
            moment = ckpt.resume()
            restored = moment.update
            if restored:
                exact = same_bits(w, fill("w", restored, shape, np.float32)[box])
                exact = exact and same_bits(table, fill("table", restored, large, np.float32))
            for update in updates:
                w[...] = fill("w", update, shape, np.float32)[box]
                table[...] = fill("table", update, large, np.float32)
                ckpt.save(update)
        return moment, not restored or exact

    job((1,))
    moment, exact = job(())
    return {"update": moment.update, "exact": exact}


def main(store: str, work: str, fan_out: str, out: str) -> None:
    """Do the work of one rank."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    width = int(fan_out)
    told = {"publish": publish, "resume": resume, "mesh": mesh}[work](comm, store, width)
    here = place(am.Tree(width), comm.size, comm.rank)
    told |= {"role": comm.rank, "depth": here.depth, "children": [role for role, _ in here.children]}
    told["path"] = path(am.Tree(width), comm.size, comm.rank)
    everyone = comm.gather(told)
    if comm.rank == 0:
        pathlib.Path(out).write_text(json.dumps(everyone))


if __name__ == "__main__":
    main(*sys.argv[1:])
