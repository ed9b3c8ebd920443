"""Tests marked ``gpu`` need CuPy and a device: they run wherever both are there, and nowhere else."""

from __future__ import annotations

import functools

import pytest

from alpha_mpi.devices.presence import identities
from alpha_mpi.errors import CheckpointError


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
