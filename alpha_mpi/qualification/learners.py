"""Learners: the reference learners, interrupted, must publish what they publish without interruption.

For each number of owners: so many updates in one run; some of them, and in new objects, after a
resume, the rest. Learners whose bits do not depend on the number of owners also go on on another
one. Every generation that both runs published is compared on every bit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from typing import Any

from ..checkpointer import Checkpointer
from ..errors import CheckpointError, Refused
from ..learning import PLACEMENTS, DataParallel
from ..protocol.hierarchy import Hierarchy, Star, Tree
from ..testing.equivalence import differences, published
from .check import FAILED, HELD, PARTLY, Check, Clock, Plan, Table, ended, many
from .team import Team, TeamFailed

#: Outputs and features of the learners.
SHAPE = (7, 9)
#: Updates of the whole training, and after how many it is interrupted.
UPDATES, AT = 5, 3
#: Rules and placements of state that are tried.
LEARNERS = (
    ("momentum", "replicated"),
    ("adam", "optimizer-partitioned"),
    ("adam", "parameter-partitioned"),
)
#: Longest wait for a rank, in seconds.
DEADLINE = 60.0


def train(
    store: str | os.PathLike[str],
    updates: int,
    rule: str = "adam",
    placement: str = "parameter-partitioned",
    comm: Any = None,
    hierarchy: Hierarchy | None = None,
    deadline: float = DEADLINE,
) -> int:
    """Resume what is there, train up to `updates`, saving each; return what was resumed."""
    with (
        DataParallel(rule, placement, comm, shape=SHAPE, deadline=deadline) as learner,
        Checkpointer(
            store,
            learner.state(),
            comm,
            hierarchy=hierarchy,
            deadline=deadline,
            time_limit=None,
            learner=learner.identity,
            contract=learner.contract,
        ) as ckpt,
    ):
        learner.stand_at(ckpt.resume())
        begun = learner.update
        while learner.update < updates:
            learner.step()
            ckpt.save(learner.update, learner.cursor)
    return begun


def program(store: str, updates: int) -> None:
    """Train as a program of its own does, started on any number of ranks."""
    train(store, updates)


def counts(size: int) -> list[int]:
    """Return the numbers of owners that a team of `size` ranks tries."""
    return sorted({size, max(1, size - 1), max(1, size // 2), 1}, reverse=True)


def equivalence(team: Team, folder: str, plan: Plan) -> Check:
    """Train, interrupt and compare on several numbers of owners. Called by every rank."""
    clock = Clock(plan.share("equivalence"))
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    owners = counts(team.size)
    left = 0
    for rule, placement in LEARNERS[-1:] if plan.quick else LEARNERS:
        free = PLACEMENTS[placement].by_item
        for i, n in enumerate(owners):
            others = [n] if not free or n == 1 == team.size else [n, owners[(i + 1) % len(owners)]]
            for m in dict.fromkeys(others):
                if team.from_first(clock.over and bool(rows)):
                    left += 1
                    continue
                found, words = _trial(team, folder, rule, placement, n, m)
                rows.append((f"{rule}, {placement}", _way(n, m), found or "the same", f"{words:,}"))
                if found:
                    notes.append(f"{rule}, {placement}, {_way(n, m)}: {found}")
    verdict = FAILED if notes else PARTLY if left or team.size == 1 else HELD
    said = f"{many(len(rows), 'training')} on {', '.join(map(str, owners))} owners, every bit the same"
    if team.size == 1:
        said += "; one owner alone, since there is one process"
    return ended(
        "equivalence",
        verdict,
        "generations of an interrupted training are those of an uninterrupted one, bit for bit",
        notes[0] if notes else said + (f"; {left} more, the time was over" if left else ""),
        notes=notes,
        tables=(Table("trainings", ("learner", "owners", "words", "compared"), tuple(rows)),),
        figures={"trainings": len(rows), "different": len(notes), "owners": owners},
        seconds=clock.taken,
    )


def _way(n: int, m: int) -> str:
    return f"{n}, interrupted" if n == m else f"{n}, then {m}"


def _trial(team: Team, folder: str, rule: str, placement: str, n: int, m: int) -> tuple[str, int]:
    """Return what differs (nothing: empty) and the words compared, on every rank."""
    home = os.path.join(folder, f"{rule}-{placement}-{n}-{m}")
    straight, cut = os.path.join(home, "straight"), os.path.join(home, "interrupted")
    legs = ((straight, n, UPDATES, 0), (cut, n, AT, 0), (cut, m, UPDATES, AT))
    for store, owners, updates, wanted in legs:
        try:
            leg = functools.partial(_leg, team, store, rule, placement, owners, updates)
            begun = team.from_first(team.together(leg))
        except TeamFailed as error:
            return str(error), 0
        if begun != wanted:
            return f"a run began at update {begun}, not {wanted}", 0
    found, words = team.from_first(_compare(straight, cut) if team.rank == 0 else None)
    return str(found), int(words)


def _leg(team: Team, store: str, rule: str, placement: str, owners: int, updates: int) -> int:
    with team.part(owners) as comm:
        if team.rank >= owners:
            return 0
        hierarchy: Hierarchy = Tree(2) if owners > 1 and placement != "replicated" else Star()
        return train(store, updates, rule, placement, comm, hierarchy, min(DEADLINE, team.limit))


def _compare(straight: str, cut: str) -> tuple[str, int]:
    words = 0
    try:
        with contextlib.ExitStack() as stack:
            right = stack.enter_context(published(pathlib.Path(straight), "uninterrupted"))
            other = stack.enter_context(published(pathlib.Path(cut), "interrupted"))
            wanted = set(range(1, UPDATES + 1))
            if set(right) != wanted or set(other) != wanted:
                return f"updates {sorted(other)} are published, not 1 to {UPDATES}", words
            for update in sorted(wanted):
                for difference in differences(right[update], other[update]):
                    if not difference.same:
                        return f"different after update {update}, {difference}", words
                    words += difference.words
    except (Refused, CheckpointError, OSError) as error:
        return str(error), words
    return "", words


def specimen(team: Team, store: str) -> None:
    """Make a store with two epochs on a tree, for `damage`. Called by every rank."""
    owners = min(team.size, 4)
    for updates in (2, 4):
        team.together(functools.partial(_leg, team, store, *LEARNERS[-1], owners, updates))
