"""Reference learners on one owner: shares, the combine tree, what they declare, and that they learn."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from gates import oracle

from alpha_mpi.errors import Refused
from alpha_mpi.learning import ORDER, PLACEMENTS, RULES, DataParallel, Inputs, tree
from alpha_mpi.learning.combine import in_turn
from alpha_mpi.learning.inputs import number
from alpha_mpi.mpi.world import Solo
from alpha_mpi.protocol.hierarchy import Star

CASES = list(itertools.product(RULES, PLACEMENTS))


def learner(rule: str = "momentum", placement: str = "replicated", **more: Any) -> DataParallel:
    return DataParallel(rule, placement, Solo(), **more)


@dataclasses.dataclass(frozen=True)
class Term:
    """Writes down in which order it is added."""

    text: str

    def __add__(self, other: Term) -> Term:
        return Term(f"({self.text}+{other.text})")


# ------------------------------------------------ inputs


@pytest.mark.parametrize("owners", range(1, 13))
def test_items_are_dealt_in_contiguous_shares_larger_first(owners: int) -> None:
    for batch in range(1, 20):
        inputs, cursor = Inputs(batch=batch), 5 * batch
        taken = [list(inputs.taken(cursor, owners, k)) for k in range(owners)]
        assert taken == [s.tolist() for s in np.array_split(np.arange(cursor, cursor + batch), owners)]


def test_the_cursor_never_wraps_though_the_set_does() -> None:
    inputs = Inputs(items=4, batch=3)
    assert [inputs.taken(c, 1, 0) for c in (0, 3, 6)] == [range(3), range(3, 6), range(6, 9)]
    for at in range(4):
        assert inputs.item(at, 8).tolist() == inputs.item(at + 4000, 8).tolist()
    assert len({tuple(inputs.item(at, 8)) for at in range(4)}) == 4
    one = learner(inputs=inputs)
    for _ in range(5):
        one.step()
    assert (one.update, one.cursor) == (5, 15)


def test_numbers_are_exact_and_spread() -> None:
    numbers = [number(seed, row, i) for seed in range(3) for row in range(30) for i in range(30)]
    assert set(numbers) == {k / 100 for k in range(-128, 128)}
    assert numbers[:900] == [oracle.made_of(0, row, i) for row in range(30) for i in range(30)]


# ------------------------------------------------ the order of sums


def test_the_combine_tree_is_the_stated_one() -> None:
    terms: Any = [Term(str(i)) for i in range(7)]
    assert tree(terms).text == "(((0+1)+(2+3))+((4+5)+6))"  # type: ignore[attr-defined]
    for n in range(1, 40):
        terms = [Term(str(i)) for i in range(n)]
        assert tree(terms) == oracle.paired(terms)


def test_an_owner_adds_its_items_in_turn_from_zero() -> None:
    terms = np.array([[1e16], [1.0], [1.0], [-1e16]])
    assert in_turn(terms).tolist() == [0.0]
    assert tree(list(terms)).tolist() == [2.0 - 2.0]
    assert in_turn(terms[[1, 2, 0, 3]]).tolist() == [2.0]
    nothing = in_turn(np.zeros((0, 2)))
    assert nothing.tolist() == [0.0, 0.0] and not np.signbit(nothing).any()


@pytest.mark.parametrize("rule", RULES)
def test_the_bits_depend_on_the_count_where_the_contract_says_so(rule: str) -> None:
    # Otherwise no gate could tell one sequence of placements from another.
    for placement in PLACEMENTS:
        ends = set()
        for owners in (1, 2, 3, 4, 5, 8):
            state, _, _ = oracle.train(rule, [(placement, owners, 2)])
            ends.add(b"".join(words.tobytes() for words in state.values()))
        assert len(ends) == (1 if placement == "parameter-partitioned" else 6), placement


# ------------------------------------------------ what is declared


def test_the_identity_names_the_learner_and_not_the_placement() -> None:
    for rule in RULES:
        names = {place: learner(rule, place).identity for place in PLACEMENTS}
        assert len({name.digest() for name in names.values()}) == 1
        text = str(names["replicated"].as_data())
        assert not any(word in text for word in ("owner", "partition", "replicate", ORDER))
    others = [
        learner(),
        learner("adam"),
        learner(rate=0.02),
        learner(inputs=Inputs(seed=8)),
        learner(inputs=Inputs(batch=8)),
        learner(inputs=Inputs(items=25)),
    ]
    assert len({one.identity.digest() for one in others}) == len(others)
    assert all(one.identity.has_inputs for one in others)


def test_the_contract_names_the_owners_where_bits_depend_on_them() -> None:
    for place in PLACEMENTS.values():
        four, three = place.contract(4), place.contract(3)
        if place.name == "parameter-partitioned":
            assert four == three
            continue
        assert four == PLACEMENTS["replicated"].contract(4)
        (line,) = three.difference(four)
        assert line == f"combine: expected '3 owners in rank order: {ORDER}', " + (
            f"found '4 owners in rank order: {ORDER}'"
        )
    assert PLACEMENTS["replicated"].contract(1) != PLACEMENTS["parameter-partitioned"].contract(1)


@pytest.mark.parametrize("rule", RULES)
def test_every_placement_declares_the_same_schema(rule: str) -> None:
    schemas = [learner(rule, place).state().declare(1, 0, Star()).schema for place in PLACEMENTS]
    assert len({schema.digest() for schema in schemas}) == 1
    names = [region.name for region in schemas[0].regions]
    assert names == ["parameters", *RULES[rule].moments, *(["powers"] if RULES[rule].bases else []), "loss"]


@pytest.mark.parametrize("wrong", [{"rule": "sgd"}, {"placement": "sharded"}])
def test_an_unknown_rule_or_placement_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        learner(**wrong)
    assert caught.value.code == "argument" and repr(*wrong.values()) in str(caught.value)


@pytest.mark.parametrize("wrong", [{"items": 0}, {"batch": 0}])
def test_inputs_without_items_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Refused) as caught:
        Inputs(**wrong)
    assert caught.value.code == "argument"


# ------------------------------------------------ training


@pytest.mark.parametrize(("rule", "placement"), CASES)
def test_one_owner_equals_the_oracle(rule: str, placement: str) -> None:
    one = learner(rule, placement)
    losses = [one.step() for _ in range(30)]
    state, moment, expected = oracle.train(rule, [(placement, 1, 30)])
    assert (one.update, one.cursor) == moment and losses == expected.tolist()
    assert one.parameters.tobytes() == state["parameters"].tobytes()
    for name, words in zip(one.rule.moments, one.moments, strict=True):
        assert words.tobytes() == state[name].tobytes()
    assert one.loss == state["loss"] and one.powers.tobytes() == state.get("powers", np.ones(0)).tobytes()


@pytest.mark.parametrize("rule", RULES)
def test_it_arrives_at_the_least_squares(rule: str) -> None:
    inputs = Inputs(batch=24)  # the whole set in each update
    one = learner(rule, inputs=inputs, rate=0.05)
    for _ in range(400):
        one.step()
    words = np.array([inputs.item(at, 8) for at in range(24)])
    best, *_ = np.linalg.lstsq(words[:, :5], words[:, 5:], rcond=None)
    assert np.allclose(one.parameters.reshape(3, 5), best.T, atol=1e-3)
