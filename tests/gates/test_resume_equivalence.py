"""Gate: interrupted and resumed in fresh processes is the same as not interrupted, on every bit.

Every rule, placement of state and hierarchy, at each number of owners; then the second leg on
another number of owners and another hierarchy, compared with the oracle of that sequence.
"""

from __future__ import annotations

import itertools
import pathlib
import shutil

import pytest
from gates import legs, oracle
from gates.legs import HIERARCHIES, PLACEMENTS, RULES, Found, Leg

OWNERS = (1, 2, 3, 4, 5, 8)
CASES = list(itertools.product(RULES, PLACEMENTS, HIERARCHIES))
FIRST, SECOND = 3, 2


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[int, list[Found]]]:
    """At each count and for each case: one run without a store, and three updates and a checkpoint."""
    folder = tmp_path_factory.mktemp("legs")
    through = {}
    for owners in OWNERS:
        alone = [Leg(rule, place, FIRST + SECOND) for rule, place in itertools.product(RULES, PLACEMENTS)]
        saved = [
            Leg(rule, place, FIRST, store=str(folder / f"{owners}-{i}"), fan_out=fan_out, save=True)
            for i, (rule, place, fan_out) in enumerate(CASES)
        ]
        through[owners] = legs.run(folder, owners, [*alone, *saved])
    return folder, through


def other_count(owners: int, case: int) -> int:
    """The count at which the first leg of a cross case ran: over the cases, each of the others."""
    others = [n for n in OWNERS if n != owners]
    return others[(case + OWNERS.index(owners)) % len(others)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("owners", OWNERS)
def test_five_updates_are_three_and_two(
    begun: tuple[pathlib.Path, dict[int, list[Found]]], owners: int
) -> None:
    folder, through = begun
    alone = len(RULES) * len(PLACEMENTS)
    second, crossed = [], []
    for i, (rule, place, fan_out) in enumerate(CASES):
        store = folder / f"{owners}-{i}"
        before = other_count(owners, i)
        other = folder / f"{before}-{i}-on-{owners}"
        # A resume takes an epoch: those who cross have a store of their own.
        shutil.copytree(folder / f"{before}-{i}", other)
        shutil.copytree(store, folder / f"{owners}-{i}-again")
        second.append(Leg(rule, place, SECOND, store=str(folder / f"{owners}-{i}-again"), fan_out=fan_out))
        changes = legs.contract_changes((place, before), (place, owners))
        fan_out = HIERARCHIES[(HIERARCHIES.index(fan_out) + i + owners) % len(HIERARCHIES)]
        crossed.append(Leg(rule, place, SECOND, store=str(other), fan_out=fan_out, accept=changes))
    found = legs.run(folder, owners, [*second, *crossed])

    for i, (rule, place, _) in enumerate(CASES):
        whole = through[owners][i // len(HIERARCHIES)]
        history = [(place, owners, FIRST + SECOND)]
        legs.check(Leg(rule, place, FIRST + SECOND), whole, history)
        legs.check(Leg(rule, place, FIRST), through[owners][alone + i], [(place, owners, FIRST)])
        resumed, cross = found[i], found[len(CASES) + i]
        assert resumed.resumed == [(FIRST, oracle.BATCH * FIRST, 2)] * owners and not resumed.refused
        legs.same_bits(whole, resumed, SECOND)

        before = other_count(owners, i)
        assert cross.resumed == [(FIRST, oracle.BATCH * FIRST, 2)] * owners
        if crossed[i].accept:
            legs.check_refusals(crossed[i], cross, (place, before))
        legs.check(crossed[i], cross, [(place, before, FIRST), (place, owners, SECOND)])
