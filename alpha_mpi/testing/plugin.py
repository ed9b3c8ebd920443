"""The pytest plugin: the fixture `resume_equivalence`. Loaded by pytest wherever this is installed.

Importing it loads no MPI.
"""

from __future__ import annotations

import pathlib
from typing import Any, Protocol

import pytest

from .equivalence import Equivalence
from .equivalence import resume_equivalence as _compare
from .program import Training


class Check(Protocol):
    """Called as `alpha_mpi.testing.resume_equivalence`."""

    def __call__(self, training: Training, **options: Any) -> Equivalence: ...


@pytest.fixture
def resume_equivalence(tmp_path: pathlib.Path) -> Check:
    """Return a function that compares as `alpha_mpi.testing.resume_equivalence` and fails the test.

    Takes the same arguments, works below `tmp_path`, and returns the `Equivalence`. Raises
    `NotEquivalent`, an AssertionError, where a bit differs.
    """

    def check(training: Training, **options: Any) -> Equivalence:
        found = _compare(training, **{"directory": tmp_path, **options})
        found.check()
        return found

    return check
