"""A fake machine of two GPUs. Tests marked ``gpu`` need CuPy and a device: they run wherever both are
there, and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from fake_device import CARD, OTHER, Fake

from alpha_mpi.devices import runtime as seam
from alpha_mpi.devices.presence import identities
from alpha_mpi.errors import CheckpointError


@pytest.fixture(params=["late", "early"])
def fake(request: pytest.FixtureRequest) -> Iterator[Fake]:
    """Two cards whose work is done as late as their events allow, or at once."""
    found = Fake(CARD, OTHER, early=request.param == "early")
    with seam.replaced(found):
        yield found


@functools.cache
def there() -> bool:
    """Return whether this process sees a GPU."""
    try:
        return bool(identities())
    except CheckpointError:  # a driver or a CuPy that does not fit
        return False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not there():
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]
