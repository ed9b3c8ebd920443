"""A power cut after a kill: the next job finds names that the first one made, and did not sync.

A job that is killed leaves names that everybody sees and no disk need keep. Whoever builds on what it
*found* must sync it as if it had made it: else the power goes, and a record has no seal, or data are
gone whose mark is not there. One job is killed before the sync of a directory, another goes on; both
are recorded, and every power cut of the second is judged as in test_power_cuts.py.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
from durability.conftest import Recorded
from durability.faults import FAULTS, did, named
from durability.judge import Judge
from durability.recording import Op, Recording, record_killed
from durability.scenarios import ONE
from durability.sweep import cut_points, sweep
from durability.test_power_cuts import BOUND, SEED, report

Killed = Callable[[str], tuple[Recording, Judge]]

#: The kill is before the first sync of a directory after this.
AT: dict[str, Callable[[Op], bool]] = {
    "above the store": did("mkdir", "^new$"),
    "of the store, store.json": named("ckpt/store.json"),
    "of the store, epochs": did("mkdir", "ckpt/epochs$"),
    "of the store, data": did("mkdir", "ckpt/data$"),
    "of epochs, first epoch": named("epochs/e000001.json"),
    "of data": did("mkdir", "data/e000001-000001$"),
    "of an attempt": did("mkdir", "data/e000001-000001/000$"),
    "of a directory of packs": named("data/e000001-000001/000/000000.pack"),
    "of published, first root": named("published/e000001-000001.json"),
    "of published, second root": named("published/e000001-000002.json"),
    "of published, a mark": named("published/e000001-000001.removed"),
    "of published, a seal": named("published/e000001-000003.json"),
    "of epochs, second epoch": named("epochs/e000002.json"),
    "of published, root of the second epoch": named("published/e000002-000001.json"),
    "of published, second mark": named("published/e000001-000002.removed"),
    "of published, roots that went": did("unlink", r"published/e000001-\d+\.json$"),
}
SEAL = "of published, a seal"
#: Tried in every run, not in the campaign alone: a seal, and what a claim continues.
ORDINARY = {SEAL, "of published, second root", "of epochs, second epoch"}


@pytest.fixture
def killed(
    recorded: Recorded, memory: pathlib.Path, tmp_path: pathlib.Path
) -> Callable[[str], tuple[Recording, Judge]]:
    """Return the recording of a kill at a place and of the job after it, and its judge."""

    def get(place: str) -> tuple[Recording, Judge]:
        ops = recorded(ONE)[0].ops
        directories = {"", *(op.path for op in ops if op.what == "mkdir")}
        syncs = [op for op in ops if op.what == "sync" and op.path in directories]
        made = next(op for op in ops if AT[place](op))
        number = 1 + next(i for i, op in enumerate(syncs) if op.begin > made.end)
        recording = record_killed(ONE, tmp_path, number)
        assert any(AT[place](op) for op in recording.ops)
        return recording, Judge(memory / tmp_path.name, recording.store, recording.updates)

    return get


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=[pytest.mark.campaign] * (place not in ORDINARY)) for place in AT]
)
def test_what_a_power_cut_leaves_after_a_kill(place: str, killed: Killed) -> None:
    recording, judge = killed(place)
    swept = sweep(recording.ops, judge, bound=BOUND, seed=SEED, resumes=20)
    assert not swept.wrong, f"{swept.violating} violations\n" + "\n".join(swept.wrong[:5])
    *_, (disk, required, _) = cut_points(recording.ops, "posix")
    choices = disk.choices()
    last = disk.state(choices, [len(choice.states) - 1 for choice in choices])
    assert {path: data for path, data in last.items() if data is not None} == recording.final
    assert required.newest == max(name for name in recording.updates if f"published/{name}.json" in str(last))
    report(
        f"killed before the sync {place}: {swept.cuts} cuts, {swept.states} states, {swept.resumed} resumed"
    )


def test_a_seal_that_is_found_and_not_synced_is_found(killed: Killed) -> None:
    recording, judge = killed(SEAL)
    ops = FAULTS["a record before its seal is synced"](recording.ops)
    assert sweep(ops, judge, bound=BOUND, seed=SEED, first=True).wrong
