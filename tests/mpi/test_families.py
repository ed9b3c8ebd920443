"""Families: who sits in which sub-communicator, at any size and fan-out."""

from __future__ import annotations

import pytest

from alpha_mpi.mpi.families import Families
from alpha_mpi.mpi.world import Solo, World
from alpha_mpi.protocol.hierarchy import Star, Tree, place

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("fan_out", [1, 2, 3, 16])
def test_a_tree(world: World, fan_out: int) -> None:
    families = Families(world, Tree(fan_out), 20)
    here = place(Tree(fan_out), world.size, world.rank)
    assert families.place == here
    assert families.role == world.rank
    assert (families.up is None) == (here.parent is None)
    assert (families.down is None) == (not here.children)
    if families.down is not None:
        assert families.down.rank == 0
    families.free()
    assert families.up is None and families.down is None


@pytest.mark.parametrize("fan_out", [1, 2, 3])
def test_ranks_of_a_family_are_roles(world: World, fan_out: int) -> None:
    families = Families(world, Tree(fan_out), 20)
    up = down = None
    # In preorder, as the families were made.
    if families.up is not None:
        up = families.up.raw.allgather(world.rank)
        assert up[0] == families.place.parent
        assert up == [families.role_at(rank, up=True) for rank in range(families.up.size)]
    if families.down is not None:
        down = families.down.raw.allgather(world.rank)
        assert down == [world.rank, *(role for role, _ in families.place.children)]
        assert down == [families.role_at(rank, up=False) for rank in range(families.down.size)]
    families.free()


def test_a_star_has_none(world: World) -> None:
    families = Families(world, Star(), 20)
    assert families.up is None and families.down is None
    assert families.place.role == families.role == 0
    assert families.role_at(world.rank, up=True) == world.rank
    families.free()


def test_alone_without_mpi() -> None:
    families = Families(Solo(), Tree(2), 1)
    assert families.up is None and families.down is None and families.place.size == 1
    families.free()
