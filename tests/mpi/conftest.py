"""Fixtures of tests under mpiexec: a world per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from alpha_mpi.mpi.world import World, open_world


@pytest.fixture
def comm() -> Any:
    """COMM_WORLD."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture
def world(comm: Any) -> Iterator[World]:
    """A world of this test's own: what one test leaves unread never reaches the next."""
    world = open_world(comm, 30)
    yield world
    world.lost = None  # tests lose peers on purpose, but here every process is alive
    if not comm.allreduce(len(world._unfinished)):
        world.free()


@pytest.fixture
def everyone(comm: Any) -> Callable[[Any], list[Any]]:
    """Each rank's value on every rank (pickled: for tests alone)."""
    return comm.allgather  # type: ignore[no-any-return]
