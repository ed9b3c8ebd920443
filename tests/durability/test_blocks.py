"""Power cuts of a real file system: ext4 on a disk that remembers what it was asked, and when to flush.

The model of test_power_cuts.py is harsher than any file system, but it is a model; this is what this
kernel's ext4 leaves, after its own recovery, on a disk that honours flushes (`blocks`). Of what was
written between two flushes any subset may be there: all subsets of a few writes, as far as a number of
images goes that is spread over all flushes. Alone the file system commits as the jobs sync; with a
neighbour that syncs all the time it commits between any two of their calls.

Needs root, FUSE and loop devices; where they are missing, or may not be used, that is said in the
report, and these tests are skipped.
"""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Iterator

import pytest
from durability import blocks
from durability.judge import Judge
from durability.scenarios import ONE, TREE, Scenario
from durability.test_power_cuts import SEED, report

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]

#: How the file system is mounted, whether there is a neighbour, how names are taken, and images at most.
CASES = {
    "a tree": (TREE, "", False, None, 600),
    "a tree with a neighbour": (TREE, "", True, None, 500),
    "a tree by link": (TREE, "", False, "renameat2:0:EINVAL", 300),
    "one owner with a neighbour": (ONE, "", True, None, 300),
    "one owner, data=writeback": (ONE, "data=writeback", False, None, 300),
    "one owner, data=journal": (ONE, "data=journal", False, None, 300),
}
#: Syncs that are only pretended, or a mount without flushes.
FAULTS = {
    "no data sync of packs": ("", "fdatasync:0:OK:.pack"),
    "no data sync of roots": ("", "fdatasync:0:OK:/published/.e0"),
    "no sync of published": ("", "fsync:0:OK:/published"),
    "a file system that does not flush": ("nobarrier", None),
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def possible(tmp_path_factory: pytest.TempPathFactory) -> None:
    reason = blocks.why_not(tmp_path_factory.mktemp("possible"))
    if reason:
        report(f"block replay: NOT RUN HERE, because {' '.join(reason.split())}")
        pytest.skip(reason)


@pytest.fixture
def judge(possible: None, memory: pathlib.Path) -> Iterator[Judge]:
    yield Judge(memory / f"blocks-{next(_numbers)}", blocks.STORE, ONE.updates)


def replayed(
    scenario: Scenario, judge: Judge, tmp_path: pathlib.Path, most: int, *, first: bool = False, **how: object
) -> blocks.Replayed:
    log = blocks.record(scenario, tmp_path, **how)  # type: ignore[arg-type]
    resumes = 0 if first else 20
    folder = judge.folder / "images"
    return blocks.replay(log, scenario, judge, folder, seed=SEED, most=most, resumes=resumes, first=first)


@pytest.mark.parametrize("name", CASES)
def test_what_ext4_leaves(name: str, judge: Judge, tmp_path: pathlib.Path) -> None:
    scenario, options, neighbour, fail, most = CASES[name]
    found = replayed(scenario, judge, tmp_path, most, options=options, neighbour=neighbour, fail=fail)
    assert not found.wrong, f"{found.violating} violations\n" + "\n".join(found.wrong[:5])
    assert found.images > 50 and found.states > 20
    report(
        f"ext4 of Linux {os.uname().release}, {name}: {found.flushes} flushes, {found.images} images, "
        f"{found.states} states, {found.resumed} resumed"
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, judge: Judge, tmp_path: pathlib.Path) -> None:
    options, fail = FAULTS[fault]
    found = replayed(ONE, judge, tmp_path, 400, first=True, options=options, fail=fail)
    assert found.wrong
    print(found.wrong[0])
