"""Fixtures of tests under mpiexec: a world per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from alpha_mpi.mpi.world import World, open_world
from tests.mpi import scenario

#: Files whose cases are dealt over the launches: each runs at these numbers of ranks (and at any other
#: that no launch of `make test` has). All other files run at every size.
DEALT = {
    "test_accept.py": (1, 3),
    "test_devices.py": (3,),
    "test_hdf5.py": (1, 3),
    "test_learning.py": (1, 3, 8),
    "test_loop.py": (1, 3, 4),
    "test_offenders.py": (2, 4, 8),
    "test_oneline.py": (1, 3),
    "test_refusals.py": (1, 2, 4, 8),
    "test_qualification.py": (4,),
    "test_r27.py": (3,),
    "test_repartition.py": (4, 8),
    "test_restore.py": (1, 2, 4),
    "test_scenarios.py": (1, 2, 4),
    "test_scenarios_arrays.py": (1, 3),
    "test_signed.py": (1, 3),
    "test_space.py": (1, 3),
    "test_stopping.py": (1, 3),
    "test_topology.py": (1, 3, 8),
}
LAUNCHES = (1, 2, 3, 4, 8)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is dealt to other launches. The same on every rank."""
    if not config.getoption("--with-mpi", default=False):
        return
    from mpi4py import MPI

    size = MPI.COMM_WORLD.size
    away = [i for i in items if size in LAUNCHES and size not in DEALT.get(i.path.name, LAUNCHES)]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [i for i in items if i not in away]


@pytest.fixture
def comm() -> Any:
    """COMM_WORLD."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


@pytest.fixture
def team(comm: Any) -> Iterator[Any]:
    """A communicator of all ranks, or of 7 where there are 8; None on the rank that is not of it."""
    with scenario.team(comm, 7 if comm.size == 8 else comm.size) as part:
        yield part


@pytest.fixture
def pairs(comm: Any) -> Iterator[Any]:
    """A communicator of an even number of ranks; None on the last one where their number is odd."""
    with scenario.team(comm, comm.size // 2 * 2) as part:
        yield part


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
