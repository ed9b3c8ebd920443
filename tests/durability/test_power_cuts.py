"""Power cuts: whenever the power goes, the previous generation or the new one is there, whole.

A kill leaves the page cache alone and proves nothing of this. Here real jobs on real ranks are
recorded (`recording`, by the preloaded shim): every file call that changes something, with its
bytes. From that all states are built that POSIX allows after a power cut (`disk`): unsynced data there,
cut, zeros or missing, every unsynced name there or not, each by itself. Each state is made in memory
and judged by an independent reader and by the library's own (`judge`):

- each root that stands in published/ without a mark is a whole generation, with the words of its update;
- each generation that was acknowledged, and is not being retired, is there; the newest is the newest
  acknowledged one or a newer one; the epoch is one that was taken, or a later one;
- the next job resumes it, saves, and leaves nothing behind (a job of one rank, for states with
  different files).

Before the end of each sync all states are looked at if there are at most BOUND, else as `Disk.cuts`
says. What the sweep is worth is shown by test_faults.py. Not claimed: drives that lie about a flush,
file systems that do not keep POSIX's promises, torn sectors inside what was synced.
"""

from __future__ import annotations

import os

import pytest
from durability.conftest import Recorded
from durability.disk import MODELS
from durability.scenarios import ONE, SCENARIOS, TREE, Scenario
from durability.sweep import cut_points, sweep

#: What tools/run_durability.py asks for.
BOUND = int(os.environ.get("AM_DURABILITY_BOUND") or 32)
SEED = int(os.environ.get("AM_DURABILITY_SEED") or 1)
REPORT = os.environ.get("AM_DURABILITY_REPORT")

ORDINARY = [*((ONE, model) for model in MODELS), (TREE, "posix")]


def report(line: str) -> None:
    """Say what was done, also in the closing lines of tools/run_durability.py."""
    print(line)
    if REPORT:
        with open(REPORT, "a") as file:
            file.write(line + "\n")


CASES = [
    pytest.param(scenario, model, marks=() if (scenario, model) in ORDINARY else pytest.mark.campaign)
    for scenario in SCENARIOS
    for model in MODELS
]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("scenario", "model"), CASES, ids=str)
def test_what_a_power_cut_leaves(scenario: Scenario, model: str, recorded: Recorded) -> None:
    recording, judge = recorded(scenario)
    resumes = 100 if model == "posix" else 10
    swept = sweep(recording.ops, judge, model=model, bound=BOUND, seed=SEED, resumes=resumes)
    assert not swept.wrong, f"{swept.violating} violations\n" + "\n".join(swept.wrong[:5])
    assert swept.cuts > 40 and swept.states > 50 and swept.resumed > 5
    line = f"{scenario.name}, {model}: {swept.cuts} cuts, {swept.states} states, {swept.resumed} resumed"
    if model in ("posix", "syncmeta"):
        line += f"; all states of {swept.exhaustive} cuts"
    report(line)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, marks=() if s in (ONE, TREE) else pytest.mark.campaign) for s in SCENARIOS],
    ids=str,
)
def test_the_recording_is_what_happened(scenario: Scenario, recorded: Recorded) -> None:
    """A disk that loses nothing has, in the end, every file with every byte that there was."""
    recording, _ = recorded(scenario)
    *_, (disk, required, _) = cut_points(recording.ops, "posix")
    choices = disk.choices()
    last = disk.state(choices, [len(choice.states) - 1 for choice in choices])
    assert {path: data for path, data in last.items() if data is not None} == recording.final
    assert required.epoch == max(int(name[1:7]) for name in scenario.updates)
    assert required.newest == max(scenario.updates)
