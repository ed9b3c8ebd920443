"""Legs of reference learners: many in one launch, each compared with the oracle on every bit.

A *leg* is some updates of one learner on one number of owners, in processes that end after it.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from gates import oracle

from alpha_mpi.testing import launch

JOB = str(pathlib.Path(__file__).with_name("learning_job.py"))
RULES = ("momentum", "adam")
PLACEMENTS = ("replicated", "optimizer-partitioned", "parameter-partitioned")
#: The placement whose contract is free of the number of owners.
FREE = "parameter-partitioned"
#: Fan-outs of a tree; 0 is a star.
HIERARCHIES = (0, 2, 4)
#: Longest time of one launch, in seconds: for what hangs.
LIMIT = 240


@dataclasses.dataclass(frozen=True)
class Leg:
    """One task of learning_job.py. `store` None: the learner alone, never saved nor resumed.

    `accept`: the contract changes, so a resume must be refused first, and then be accepted.
    """

    rule: str
    placement: str
    updates: int
    store: str | None = None
    fan_out: int = 0
    accept: bool = False
    save: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameters: fifteen words, or six, which is fewer than eight owners."""
        return (3, 5) if self.rule == "momentum" else (2, 3)


@dataclasses.dataclass
class Found:
    """What all owners held at the end of a leg, by owner; `resumed` is (update, cursor, epoch)."""

    state: list[dict[str, np.ndarray]]
    moments: list[tuple[int, ...]]
    losses: list[np.ndarray]
    resumed: list[tuple[int, ...]]
    refused: list[str]


def run(folder: pathlib.Path, owners: int, legs: Sequence[Leg]) -> list[Found]:
    """Start one job of fresh processes that goes through the legs; return what each arrived at."""
    out = folder / f"launch-{len(list(folder.glob('launch-*.json')))}"
    tasks = out.with_suffix(".json")
    tasks.write_text(json.dumps([dataclasses.asdict(leg) | {"shape": leg.shape} for leg in legs]))
    told = subprocess.run(
        [*launch.mpiexec(owners), sys.executable, JOB, str(tasks), str(out)],
        env=launch.environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    ranks = [dict(np.load(f"{out}.{k}.npz")) for k in range(owners)]
    return [_found(ranks, i) for i in range(len(legs))]


def _found(ranks: list[dict[str, np.ndarray]], i: int) -> Found:
    found = Found([], [], [], [], [])
    for rank in ranks:
        mine = {name.partition("/")[2]: value for name, value in rank.items() if name.startswith(f"{i}/")}
        state = {n.removeprefix("state/"): a for n, a in mine.items() if n.startswith("state/")}
        found.state.append(state)
        found.moments.append(tuple(mine["moment"].tolist()))
        found.losses.append(mine["losses"])
        if "resumed" in mine:
            found.resumed.append(tuple(mine["resumed"].tolist()))
        if "refused" in mine:
            found.refused.append(str(mine["refused"]))
    return found


def check(leg: Leg, found: Found, history: Sequence[tuple[str, int, int]]) -> None:
    """Compare what a leg arrived at with the oracle of `history`, its own leg the last of it."""
    expected, moment, losses = oracle.train(leg.rule, history, leg.shape)
    _, owners, updates = history[-1]
    assert len(found.state) == owners and found.moments == [moment] * owners, leg
    for mine in found.losses:
        assert mine.tobytes() == losses[len(losses) - updates :].tobytes(), (leg, "losses")
    parameters, moments = oracle.PARTITIONED[leg.placement]
    dealt = dict.fromkeys(oracle.MOMENTS[leg.rule], moments) | {"parameters": parameters}
    for state in found.state:
        assert state.keys() == expected.keys(), leg
    for name, words in expected.items():
        held = np.array_split(words, owners) if dealt.get(name) else [words] * owners
        for owner, (state, piece) in enumerate(zip(found.state, held, strict=True)):
            assert state[name].dtype == piece.dtype and state[name].shape == piece.shape, (leg, name)
            differ = np.flatnonzero(state[name].view(np.uint64) != piece.view(np.uint64))
            assert not differ.size, (leg, history, name, f"owner {owner}", differ)


def same_bits(a: Found, b: Found, updates: int) -> None:
    """Compare two runs of the same learner: state and counters, and the last `updates` losses."""
    assert a.moments == b.moments
    for one, other in zip(a.state, b.state, strict=True):
        assert one.keys() == other.keys()
        differ = [name for name in one if one[name].tobytes() != other[name].tobytes()]
        assert not differ, differ
    for one, other in zip(a.losses, b.losses, strict=True):
        assert one[-updates:].tobytes() == other[-updates:].tobytes()


def check_refusals(leg: Leg, found: Found, before: tuple[str, int]) -> None:
    """Where the contract changes, every owner was told so first: by which line, from what to what."""
    assert len(found.refused) == len(found.state), leg
    for text in found.refused:
        assert text.startswith("other-contract: "), text
        (placement, owners), now = before, len(found.state)
        if FREE not in (placement, leg.placement):
            assert f"on another owner count ({now} instead of {owners}) changes the combine order" in text
        if placement != FREE:
            assert f"found '{owners} owners in rank order" in text, text
        if leg.placement != FREE:
            assert f"expected '{now} owners in rank order" in text, text


def contract_changes(before: tuple[str, int], after: tuple[str, int]) -> bool:
    """Whether going from (placement, owners) to another changes on what the bits depend."""
    if FREE in (before[0], after[0]):
        return before[0] != after[0]
    return before[1] != after[1]
