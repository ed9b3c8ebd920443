"""BOUNDED-PARENT: what a role sends, receives and remembers depends on its fan-out alone."""

from __future__ import annotations

import pytest
from protocol.network import BOUND_KINDS, Network

from alpha_mpi.protocol.hierarchy import Tree, place


@pytest.mark.parametrize(("owners", "fan_out"), [(20_000, 16), (20_000, 2), (300, 1), (1_000, 999)])
def test_many_roles_in_one_process(owners: int, fan_out: int) -> None:
    network = Network(Tree(fan_out), owners).start()
    assert network.outcomes == {"published"}
    most = min(fan_out, owners - 1)
    for k, counts in enumerate(network.counts):
        children = len(place(Tree(fan_out), owners, k).children)
        assert counts.received["Commitment"] == children <= most
        assert sum(counts.received.values()) <= 2 * children + 2  # signs and commitments; begin, release
        assert sum(counts.sent.values()) <= 2 * children + 2
        assert set(counts.received) | set(counts.sent) <= BOUND_KINDS


def test_a_failure_costs_no_more() -> None:
    owners, fan_out = 5_000, 16
    network = Network(Tree(fan_out), owners, dead=[owners - 1]).start().wait(7)
    assert (network.cause.code, network.cause.role) == ("missing-subtree", owners - 1)
    signs = 10 * network.now / 10.0
    for counts in network.counts:
        words = sum(n for kind, n in counts.received.items() if kind != "Sign")
        assert words <= 4 * (fan_out + 1)
        assert counts.received["Sign"] <= (fan_out + 1) * (signs + 2)
