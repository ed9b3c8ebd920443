"""Each fuzz target for a moment, the same examples on every machine; `make fuzz` goes on for long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzz.targets import TARGETS, tidy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

#: Cases of each target; a store takes longest.
CASES = {"stores": 20, "packs": 150, "manifests": 70, "documents": 200}


@pytest.fixture(scope="module", autouse=True)
def _tidy() -> Iterator[None]:
    yield
    tidy()


@pytest.mark.parametrize("name", TARGETS)
def test_decoded_or_refused(name: str) -> None:
    @settings(
        max_examples=CASES.get(name, 100),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def case(data: st.DataObject) -> None:
        TARGETS[name](data)

    case()
