"""What is recorded: jobs on new stores, on one owner, stars and trees, that save, retire and go on."""

from __future__ import annotations

import dataclasses
from typing import Any

from gates.crash import step

#: Rows of the largest region of crash_job.py: packs of some kilobytes.
ROWS = 33


def opened(**options: Any) -> list[dict[str, Any]]:
    """Return the steps of a job that opens the store, with options, and resumes."""
    return [step("open", **options), step("resume")]


def claimed(epoch: int) -> list[dict[str, Any]]:
    """Return the step that says that the epoch was taken: its resume has returned."""
    return [step("say", text=f"epoch {epoch}")]


def saved(name: str, update: int) -> list[dict[str, Any]]:
    """Return the steps that save, and say that success was reported."""
    return [step("save", update=update), step("say", text=f"ack {name}")]


#: Two jobs: two generations, then a continuation and one more; each save retires the one before.
GENERATIONS = {"e000001-000001": 1, "e000001-000002": 2, "e000002-000001": 3}
KEPT = [
    *(*opened(keep=1), *claimed(1), *saved("e000001-000001", 1), *saved("e000001-000002", 2)),
    *(step("close"), *opened(keep=1), *claimed(2), *saved("e000002-000001", 3), step("close")),
]
#: Three jobs that retire nothing; the second claims and publishes nothing.
IDLE_GENERATIONS = {"e000001-000001": 1, "e000003-000001": 2}
IDLE = [
    *(*opened(), *claimed(1), *saved("e000001-000001", 1), step("close")),
    *(*opened(), *claimed(2), step("close")),
    *(*opened(), *claimed(3), *saved("e000003-000001", 2), step("close")),
]
#: A save that fails and leaves its files; the next job clears them away.
_STAY = "unlinkat:0:EIO:/data/"
LEFT_GENERATIONS = {"e000001-000001": 1, "e000002-000001": 2, "e000002-000002": 3}
LEFT = [
    *(*opened(), *claimed(1), *saved("e000001-000001", 1)),
    step("arm", roles=[0, 2, 3], fail=_STAY),
    step("arm", roles=[1], fail=f"{_STAY};pwritev:1:ENOSPC:000001.pack"),
    *(step("save", "fails", update=2), step("disarm"), step("close")),
    *(*opened(keep=2), *claimed(2), *saved("e000002-000001", 2), *saved("e000002-000002", 3)),
    step("close"),
]
#: A job after one that was killed; what it reports has its name only afterwards.
LATER_EPOCH, LATER_ACK = "epoch of the later job", "ack of the later job"
LATER = [
    *opened(keep=1),
    step("say", text=LATER_EPOCH),
    step("save"),
    step("say", text=LATER_ACK),
    step("close"),
]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One recording: `fan_out` 0 is a star; `by_link`: there is no rename with no-replace."""

    name: str
    ranks: int
    fan_out: int
    steps: list[dict[str, Any]]
    updates: dict[str, int]
    by_link: bool = False

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


ONE = Scenario("one owner", 1, 0, KEPT, GENERATIONS)
TREE = Scenario("tree of 4", 4, 2, KEPT, GENERATIONS)
SCENARIOS = [
    ONE,
    TREE,
    Scenario("one owner by link", 1, 0, KEPT, GENERATIONS, by_link=True),
    Scenario("star of 3", 3, 0, KEPT, GENERATIONS),
    Scenario("star of 4, idle job", 4, 0, IDLE, IDLE_GENERATIONS),
    Scenario("tree of 4 by link", 4, 2, KEPT, GENERATIONS, by_link=True),
    Scenario("tree of 4, leftovers", 4, 2, LEFT, LEFT_GENERATIONS),
    Scenario("tree of 5, idle job", 5, 2, IDLE, IDLE_GENERATIONS),
    Scenario("tree of 7", 7, 2, KEPT, GENERATIONS),
]
