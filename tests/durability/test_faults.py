"""The sweep itself on trial: each fault of `faults` must be found, and what is no fault must not.

The recordings are real ones in which an operation is missing or stands elsewhere. A sweep that does
not find them would prove nothing by finding nothing.
"""

from __future__ import annotations

import pytest
from durability.conftest import Recorded
from durability.faults import FAULTS, HARMLESS, NAMES_ALONE, ON_A_TREE
from durability.scenarios import KEPT, ONE, SCENARIOS, Scenario
from durability.sweep import sweep
from durability.test_power_cuts import SEED

#: Enough for every fault, in every recording.
BOUND = 32

CASES = [
    pytest.param(scenario, fault, marks=() if scenario is ONE else pytest.mark.campaign)
    for scenario in SCENARIOS
    if scenario.steps is KEPT
    for fault in FAULTS
    if scenario.fan_out or fault not in ON_A_TREE
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("scenario", "fault"), CASES, ids=str)
def test_a_fault_is_found(scenario: Scenario, fault: str, recorded: Recorded) -> None:
    recording, judge = recorded(scenario)
    swept = sweep(FAULTS[fault](recording.ops), judge, bound=BOUND, seed=SEED, first=True)
    assert swept.wrong
    print(swept.wrong[0])


@pytest.mark.parametrize("fault", NAMES_ALONE)
def test_where_names_are_durable_at_once_a_missing_directory_sync_is_none(
    fault: str, recorded: Recorded
) -> None:
    recording, judge = recorded(ONE)
    swept = sweep(FAULTS[fault](recording.ops), judge, model="syncmeta", bound=BOUND, seed=SEED)
    assert not swept.wrong, swept.wrong[0]


@pytest.mark.parametrize("change", HARMLESS)
@pytest.mark.parametrize("model", ["posix", "ordered"])
def test_what_loses_nothing_is_no_fault(change: str, model: str, recorded: Recorded) -> None:
    recording, judge = recorded(ONE)
    swept = sweep(HARMLESS[change](recording.ops), judge, model=model, bound=BOUND, seed=SEED)
    assert not swept.wrong, swept.wrong[0]
