"""What legs.py starts on each rank: ``TASKS OUT``. Does every task in turn; each rank writes OUT.RANK.npz.

A task trains one leg of one learner: through a store, or without one.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import alpha_mpi as am  # noqa: E402
from alpha_mpi.learning import DataParallel  # noqa: E402

#: Longest silence of a rank, in seconds.
DEADLINE = 60.0


def train(comm: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Do one task; return what this rank holds at its end, and what happened."""
    with DataParallel(
        task["rule"], task["placement"], comm, shape=tuple(task["shape"]), deadline=DEADLINE
    ) as learner:
        told: dict[str, Any] = {}
        if task["store"] is None:
            losses = [learner.step() for _ in range(task["updates"])]
        else:
            losses = through(comm, learner, task, told)
        told |= {"losses": np.array(losses), "moment": [learner.update, learner.cursor]}
        told["state/parameters"] = learner.parameters
        for name, words in zip(learner.rule.moments, learner.moments, strict=True):
            told[f"state/{name}"] = words
        if learner.rule.bases:
            told["state/powers"] = learner.powers
        told["state/loss"] = np.float64(learner.loss)
        return told


def through(comm: Any, learner: DataParallel, task: dict[str, Any], told: dict[str, Any]) -> list[float]:
    """Resume what the store holds, train, and publish if that is asked for."""
    hierarchy = am.Tree(task["fan_out"]) if task["fan_out"] else am.Star()
    who = {"learner": learner.identity, "contract": learner.contract}
    with am.Checkpointer(
        task["store"], learner.state(), comm, hierarchy=hierarchy, deadline=DEADLINE, **who
    ) as ckpt:
        accept = None
        if task["accept"]:  # refused first, with nothing changed
            try:
                ckpt.resume()
            except am.Refused as error:
                told["refused"] = f"{error.code}: {error}"
            accept = am.Accept(contract="another combine order")
        moment = ckpt.resume(accept=accept)
        learner.stand_at(moment)
        told["resumed"] = [moment.update, moment.cursor, moment.epoch]
        losses = [learner.step() for _ in range(task["updates"])]
        if task["save"]:
            ckpt.save(learner.update, learner.cursor)
    return losses


def main(tasks: str, out: str) -> None:
    """Do the work of one rank."""
    from mpi4py import MPI

    comm, found = MPI.COMM_WORLD, {}
    for i, task in enumerate(json.loads(pathlib.Path(tasks).read_text())):
        found |= {f"{i}/{name}": value for name, value in train(comm, task).items()}
    np.savez(f"{out}.{comm.rank}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
