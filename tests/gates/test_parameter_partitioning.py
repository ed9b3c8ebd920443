"""Gate: chains of checkpoints through other owner counts and other placements equal the oracle of each.

A *route* is a list of owner counts, one launch each. A *chain* stops at some of them: every stop is
a leg in fresh processes, which resumes what the one before has published, on another number of
owners, with another placement of the state, on another hierarchy.
"""

from __future__ import annotations

import pathlib
import random

import pytest
from gates import legs, oracle
from gates.legs import HIERARCHIES, PLACEMENTS, RULES, Leg

#: Where on the route -> (placement, updates, fan-out), in order.
Chain = dict[int, tuple[str, int, int]]


def follow(folder: pathlib.Path, route: list[int], chains: list[tuple[str, Chain]]) -> None:
    """Go through all chains side by side."""
    #: Of each chain: (placement, owners, updates) of the legs behind it.
    history: list[list[tuple[str, int, int]]] = [[] for _ in chains]
    for at, owners in enumerate(route):
        turn = [i for i, (_, chain) in enumerate(chains) if at in chain]
        launched = []
        for i in turn:
            rule, chain = chains[i]
            place, updates, fan_out = chain[at]
            changes = bool(history[i]) and legs.contract_changes(history[i][-1][:2], (place, owners))
            launched.append(
                Leg(rule, place, updates, str(folder / f"chain-{i}"), fan_out, changes, save=True)
            )
        for i, leg, found in zip(turn, launched, legs.run(folder, owners, launched), strict=True):
            behind = history[i]
            if leg.accept:
                legs.check_refusals(leg, found, behind[-1][:2])
            update = sum(updates for _, _, updates in behind)
            assert found.resumed == [(update, oracle.BATCH * update, len(behind) + 1)] * owners
            behind.append((leg.placement, owners, leg.updates))
            legs.check(leg, found, behind)


@pytest.mark.timeout(600)
def test_chains_on_other_owner_counts(tmp_path: pathlib.Path) -> None:
    """Momentum from four on three, then on five; Adam from four on two; in every placement of state."""
    chains: list[tuple[str, Chain]] = []
    for place in PLACEMENTS:
        for fan_out in HIERARCHIES:
            chains.append(("momentum", dict.fromkeys((0, 1, 2), (place, 2, fan_out))))
            chains.append(("adam", dict.fromkeys((0, 3), (place, 2, fan_out))))
    follow(tmp_path, [4, 3, 5, 2], chains)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [5, *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 16))])
def test_random_chains_of_placements(tmp_path: pathlib.Path, seed: int) -> None:
    pick = random.Random(seed)
    route = pick.sample([1, 2, 3, 4, 5], 5) + pick.sample([1, 2, 3, 4, 5], 4)
    chains = []
    for _ in range(24):
        stops = sorted(pick.sample(range(len(route)), pick.randint(2, 4)))
        how = {at: (pick.choice(PLACEMENTS), pick.randint(1, 3), pick.choice(HIERARCHIES)) for at in stops}
        chains.append((pick.choice(RULES), how))
    follow(tmp_path, route, chains)
