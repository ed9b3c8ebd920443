"""A small training job under mpiexec that does what a plan says: `python crash_job.py PLAN.json`.

Each rank writes one line per step into its own file, so that nothing but the library under test
needs the others. Success of a save is acknowledged by one write(2), as the last thing.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import traceback
import warnings
from typing import Any

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[2])]

from fill import fill, same_bits  # noqa: E402
from mpi4py import MPI  # noqa: E402

import alpha_mpi as am  # noqa: E402
import shim  # noqa: E402
from alpha_mpi.restore import choose  # noqa: E402
from alpha_mpi.store.store import Store  # noqa: E402


class Words:
    """A state of several layouts; its words at an update are those of `fill`."""

    def __init__(self, rank: int, size: int, rows: int) -> None:
        self.rank, self.size = rank, size
        self.whole = {
            "weights": ((rows, 16), np.float32, am.rows()),
            "moments": ((1003,), np.float64, am.shares()),
            "last": ((5, 3), np.int32, am.on([size - 1], am.rows())),
            "pairs": ((12,), np.int16, am.mesh({"a": size, "b": 1}, ("b",))),
        }
        self.local: dict[str, np.ndarray] = {}
        for name in self.whole:
            self.local[name] = self._part(name, 0)
        self.mean = np.zeros(64, np.float32)
        self.mine = np.zeros(7, np.uint64)
        self.count = 0
        self.schedule: dict[str, Any] = {}

    def _part(self, name: str, update: int) -> np.ndarray:
        shape, dtype, rule = self.whole[name]
        words = fill(name, update, shape, dtype)
        pieces = rule.pieces(shape, self.size, self.rank)
        if not pieces:
            return words.reshape(-1)[:0].copy()
        (piece,) = pieces
        if isinstance(piece, am.Interval):
            return words.reshape(-1)[piece.start : piece.stop].copy()
        return words[tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))].copy()

    def at(self, update: int) -> None:
        """Become the state after `update`."""
        for name, array in self.local.items():
            array[...] = self._part(name, update)
        self.mean[...] = fill("mean", update, (64,), np.float32)
        self.mine[...] = fill(f"mine{self.rank}", update, (7,), np.uint64)
        self.count = update
        self.schedule = {"rate": 1.0 / (1 + update), "update": update}

    def state(self) -> am.State:
        """Declare it."""
        state = am.State()
        for name, (shape, dtype, rule) in self.whole.items():
            state.partition(name, self.local[name], shape=shape, layout=rule, dtype=dtype)
        state.replicate("mean", self.mean)
        state.replicate("count", self, "count")
        state.document("schedule", lambda: self.schedule, lambda value: setattr(self, "schedule", value))
        state.per_owner("mine", self.mine)
        return state

    def different(self, update: int) -> list[str]:
        """Return what is not, bit for bit, as after `update`."""
        other = Words(self.rank, self.size, self.whole["weights"][0][0])
        other.at(update)
        found = [name for name, array in self.local.items() if not same_bits(array, other.local[name])]
        found += [
            name for name in ("mean", "mine") if not same_bits(getattr(self, name), getattr(other, name))
        ]
        return found + [name for name in ("count", "schedule") if getattr(self, name) != getattr(other, name)]


class Runner:
    """Carries out the steps of one plan on this rank."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size
        self.file = (pathlib.Path(plan["out"]) / f"rank-{self.rank}.jsonl").open("a")
        self.ack: int | None = None
        if plan.get("ack"):
            self.ack = os.open(plan["ack"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self.pids: list[int] = self.comm.allgather(os.getpid())
        self.words: Words
        self.ckpt: am.Checkpointer
        self.resumed = 0

    def run(self) -> None:
        """Do every step; a refusal is a result, anything else ends the job."""
        for step in self.plan["steps"]:
            line: dict[str, Any] = {"step": step["do"], "note": step.get("note", "")}
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    line |= getattr(self, step["do"])(**step.get("with", {}))
                except am.CheckpointError as error:
                    line["error"] = {
                        name: getattr(error, name)
                        for name in (
                            *("kind", "code", "role", "region", "file", "stage", "errno"),
                            *("retryable", "visible", "expected", "found"),
                        )
                    }
                    line["text"] = str(error)
            line["warnings"] = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()

    def open(self, store: str, **options: Any) -> dict[str, Any]:
        """Open a store with a fresh state."""
        self.words = Words(self.rank, self.size, self.plan.get("rows", 33))
        fan_out = self.plan["fan_out"]
        hierarchy = am.Tree(fan_out) if fan_out else am.Star()
        options = {"deadline": 30, "visibility": 0.0, **options}
        self.ckpt = am.Checkpointer(store, self.words.state(), self.comm, hierarchy=hierarchy, **options)
        return {}

    def resume(self) -> dict[str, Any]:
        """Resume, and say what is not as `fill` says."""
        moment = self.ckpt.resume()
        self.resumed = moment.update
        different = self.words.different(moment.update) if moment.update else []
        return {"update": moment.update, "epoch": moment.epoch, "different": different}

    def save(self, update: int | None = None) -> dict[str, Any]:
        """Save an update: by default the one after what was resumed."""
        update = self.resumed + 1 if update is None else update
        self.words.at(update)
        generation = self.ckpt.save(update)
        if self.ack is not None:
            os.write(self.ack, f"{self.rank} {update}\n".encode())
        return {"update": update, "name": generation.name}

    def close(self) -> dict[str, Any]:
        """Close the store."""
        self.ckpt.close()
        return {}

    def arm(self, roles: list[int], victim: int | None = None, **options: Any) -> dict[str, Any]:
        """Inject on some roles; `victim` is whom a kill hits instead of the own process."""
        if self.rank in roles:
            more = {} if victim is None else {"kill_pid": self.pids[victim]}
            shim.arm(**options, **more)
        return {}

    def disarm(self) -> dict[str, Any]:
        """Inject nothing any more."""
        shim.disarm()
        return {}

    def look(self, store: str) -> dict[str, Any]:
        """Say what stands in the store now; role 0 alone, and nothing else happens meanwhile."""
        if self.rank:
            return {}
        with Store.open(store) as opened:
            seen = choose.survey(opened)
            return {
                "newest": None if seen.newest is None else seen.newest.name,
                "attempts": opened.data.names(),
                "temporary": [str(path.name) for path in pathlib.Path(store).rglob(".*")],
            }

    def say(self, text: str) -> dict[str, Any]:
        """Write a line into the trace."""
        shim.note(text)
        return {}


if __name__ == "__main__":
    try:
        Runner(json.loads(pathlib.Path(sys.argv[1]).read_text())).run()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(70)
