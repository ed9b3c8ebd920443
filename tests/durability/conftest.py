"""Recordings, each made once, and judges that have a folder in memory."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest
from durability.judge import Judge
from durability.recording import Recording, record
from durability.scenarios import Scenario

Recorded = Callable[[Scenario], tuple[Recording, Judge]]


@pytest.fixture(scope="session")
def memory() -> Iterator[pathlib.Path]:
    """A folder in memory where there is one: thousands of states are made in it."""
    shared = "/dev/shm"
    where = shared if os.path.isdir(shared) and os.access(shared, os.W_OK) else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="am-durability-", dir=where))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def recorded(memory: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return the recording of a scenario, and its judge."""
    made: dict[str, tuple[Recording, Judge]] = {}

    def get(scenario: Scenario) -> tuple[Recording, Judge]:
        if scenario.name not in made:
            # On the file system of the tests, not in memory: there a store is warned about.
            recording = record(scenario, tmp_path_factory.mktemp("recorded"))
            made[scenario.name] = (
                recording,
                Judge(memory / f"{len(made)}", recording.store, recording.updates),
            )
        return made[scenario.name]

    return get
