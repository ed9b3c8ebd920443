"""Reference learners on many ranks: the same bits on every rank, and in every placement that says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from alpha_mpi.errors import PeerFailed
from alpha_mpi.learning import RULES, DataParallel, Inputs
from alpha_mpi.mpi.world import Solo
from tests.gates import oracle

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("rule", RULES)
def test_what_placements_have_in_common(comm: Any, everyone: Callable[[Any], list[Any]], rule: str) -> None:
    ends = {}
    for place in oracle.PARTITIONED:
        with DataParallel(rule, place, comm, deadline=30) as one:
            losses = [one.step() for _ in range(4)]
            held = everyone(one.parameters.tobytes())
            if one.placement.parameters:
                ends[place] = b"".join(held)
            else:
                assert len(set(held)) == 1
                ends[place] = held[0]
            assert len(set(everyone((tuple(losses), one.loss, one.powers.tobytes())))) == 1
            assert len(set(everyone((one.identity, one.contract)))) == 1
            moments = [everyone(m.tobytes()) for m in one.moments]
            ends[place] += b"".join(
                itertools.chain(*(m if one.placement.moments else m[:1] for m in moments))
            )
    assert ends["replicated"] == ends["optimizer-partitioned"]
    # Placement free: what one owner arrives at by itself.
    alone = DataParallel(rule, "parameter-partitioned", Solo())
    for _ in range(4):
        alone.step()
    words = b"".join(a.tobytes() for a in (alone.parameters, *alone.moments))
    assert ends["parameter-partitioned"] == words


def test_an_owner_that_does_not_come_is_a_failed_peer(comm: Any) -> None:
    one = DataParallel(comm=comm, deadline=0.5)
    one.step()
    if comm.size > 1:
        if comm.rank < comm.size - 1:
            with pytest.raises(PeerFailed) as caught:
                one.step()
            assert caught.value.code == "silent"
            with pytest.raises(PeerFailed):
                one.step()
    else:
        one.step()
        assert one.update == 2
    if comm.size == 1 or comm.rank < comm.size - 1:
        one.close()  # the last owner would wait for those who have given up


@pytest.mark.parametrize(("rule", "placement"), list(itertools.product(RULES, oracle.PARTITIONED)))
def test_more_owners_than_items_and_than_words(
    comm: Any, everyone: Callable[[Any], list[Any]], rule: str, placement: str
) -> None:
    inputs = Inputs(batch=2)
    with DataParallel(rule, placement, comm, shape=(1, 3), inputs=inputs, deadline=30) as one:
        for _ in range(3):
            one.step()
        held = everyone([one.parameters, *one.moments])
    expected, moment, _ = oracle.train(rule, [(placement, comm.size, 3)], shape=(1, 3), batch=2)
    assert (one.update, one.cursor) == moment and one.loss == expected["loss"]
    partitioned = [one.placement.parameters, *(one.placement.moments for _ in one.moments)]
    for i, name in enumerate(["parameters", *one.rule.moments]):
        parts = [arrays[i] for arrays in held]
        found = np.concatenate(parts if partitioned[i] else parts[:1])
        assert found.tobytes() == expected[name].tobytes(), name
