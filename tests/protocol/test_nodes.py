"""Trees that follow the nodes: contiguous subtrees, and one role per node with a parent elsewhere."""

from __future__ import annotations

import itertools
import random

import pytest

from alpha_mpi import Refused
from alpha_mpi.protocol.hierarchy import Hierarchy, Star, Tree, height, path, place, roles

SHAPES = [
    Tree(fan_out, nodes=tuple(random.Random(i).choices(range(1, 9), k=1 + i % 13)))
    for i, fan_out in enumerate([1, 2, 3, 16] * 12)
]


def owner_count(tree: Tree) -> int:
    return sum(tree.nodes)


@pytest.mark.parametrize("tree", SHAPES, ids=str)
def test_one_role_per_node_talks_to_other_nodes(tree: Tree) -> None:
    owners = owner_count(tree)
    node = [i for i, size in enumerate(tree.nodes) for _ in range(size)]
    places = [place(tree, owners, role) for role in range(owners)]
    seen = set()
    for here in places:
        at = here.role + 1
        for child, size in here.children:  # preorder: the children's ranges follow each other
            assert child == at
            at += size
            assert places[child].parent == here.role and places[child].size == size
            assert places[child].depth == here.depth + 1
            seen.add(child)
        assert at == here.role + here.size
        inside = [child for child, _ in here.children if node[child] == node[here.role]]
        assert len(inside) <= tree.fan_out and len(here.children) - len(inside) <= tree.fan_out
        if here.parent is not None and node[here.parent] != node[here.role]:
            # Only leaders have a parent, or a child, on another node.
            assert here.role in tree.leaders and here.parent in tree.leaders
        assert path(tree, owners, here.role)[-1] == here.role
        assert (
            height(tree, owners, here.role)
            == max((places[r].depth for r in range(here.role, here.role + here.size)), default=0) - here.depth
        )
    assert seen == set(range(1, owners))
    crossing = sum(p.parent is not None and node[p.parent] != node[p.role] for p in places)
    assert crossing == len(tree.nodes) - 1


def test_without_nodes_it_is_the_plain_tree() -> None:
    for owners, fan_out in itertools.product(range(1, 40), (1, 2, 5, 16)):
        plain, one = Tree(fan_out), Tree(fan_out, nodes=(owners,))
        assert [place(plain, owners, r) for r in range(owners)] == [
            place(one, owners, r) for r in range(owners)
        ]
        # And a node for every owner is the plain tree too.
        each = Tree(fan_out, nodes=(1,) * owners)
        assert [place(plain, owners, r) for r in range(owners)] == [
            place(each, owners, r) for r in range(owners)
        ]


def test_many_nodes_cost_no_more_than_depth_and_fan_out() -> None:
    tree = Tree(16, nodes=(64,) * 3000)
    owners = owner_count(tree)
    last = place(tree, owners, owners - 1)
    assert last.parent == owners - 4 or node_of(tree, last.parent) == 2999
    assert height(tree, owners) <= 8


def node_of(tree: Tree, role: int | None) -> int:
    assert role is not None
    return next(i for i, first in enumerate(tree.leaders[1:]) if role < first)


def test_nodes_that_do_not_fit() -> None:
    wrong: list[tuple[Hierarchy, int]] = [(Tree(2, nodes=(2, 2)), 5), (Tree(2, nodes=(2, 2)), 3)]
    for tree, owners in wrong:
        with pytest.raises(Refused) as caught:
            roles(tree, owners)
        assert caught.value.code == "hierarchy"
    for nodes in ((0,), (2, -1), ("2",)):
        with pytest.raises(Refused):
            Tree(2, nodes=nodes)
    assert roles(Star(), 9) == 1
