"""Race: all ranks try to take the same names, each through the commit with which a store publishes.

A rank that won most of the last names begins the next ones a little later, so that ranks do meet.

Exactly one may win each name, the others must be told that it exists, and the words under the name
must be its winner's, seen from the first rank and from the last one.
"""

from __future__ import annotations

import collections
import os
import time

from ..store.durable import Directory, Target
from .check import FAILED, HELD, PARTLY, Check, Clock, Plan, Plot, Table, ended, many, not_tried
from .team import Team

#: Most names that are taken between two barriers.
BATCH = 20
#: Shortest and longest time that a rank which wins too much gives the others, in seconds.
LAG = (0.0002, 0.02)
#: Ranks of which the page shows the wins.
SHOWN = 16


def race(team: Team, folder: str, plan: Plan, by_link: bool) -> Check:
    """Race for the names of the plan in `folder`, an empty directory. Called by every rank."""
    want = f"each of {plan.names:,} names taken by one of {team.size} ranks, and never replaced"
    if team.size < 2:
        return not_tried("race", "a race needs two processes", want)
    clock = Clock(plan.share("race"))
    with Directory.open(folder) as directory:
        directory.by_link = by_link
        won, lost, faults = _run(team, directory, plan.names, clock)
        tried = team.allgather([won, lost, faults])
        readers = {0, team.size - 1}
        seen = _contents(directory, [name for name, *_ in _judged(tried)]) if team.rank in readers else {}
        contents = team.allgather(seen)
    return _conclude(team, plan, clock, tried, [contents[rank] for rank in sorted(readers)])


def name_of(number: int) -> str:
    """Return the name that is raced for."""
    return f"race-{number:06d}"


def _run(
    team: Team, directory: Directory, names: int, clock: Clock
) -> tuple[list[int], list[int], list[str]]:
    won: list[int] = []
    lost: list[int] = []
    faults: list[str] = []
    batch = max(1, min(BATCH, names // 10))
    lag = 0.0
    for begin in range(0, names, batch):
        targets = []
        for number in range(begin, min(begin + batch, names)):
            try:
                target = Target(directory, name_of(number))
                target.write(f"{team.rank}\n".encode())
                targets.append((number, target))
            except OSError as error:
                faults.append(f"{name_of(number)}: {_said(error)}")
        # Here all ranks stand side by side, and their files are written: now the names are taken.
        if team.from_first(clock.over and begin > 0):
            for _, target in targets:
                target.abandon()
            break
        time.sleep(lag)
        before = len(won)
        for number, target in targets:
            try:
                target.commit(sync_directory=False)
                won.append(number)
            except FileExistsError:
                lost.append(number)
            except OSError as error:
                faults.append(f"{name_of(number)}: {_said(error)}")
        lag = later(lag, len(won) - before, len(targets))
    return won, lost, faults


def later(lag: float, won: int, names: int) -> float:
    """Return how many seconds after the others a rank begins that began `lag` later and won so many names."""
    if 2 * won > names:
        return min(max(2 * lag, LAG[0]), LAG[1])
    return lag if won else lag / 2


def _said(error: OSError) -> str:
    stage = getattr(error, "stage", None)
    return f"{stage}: {error.strerror or error}" if stage else str(error)


def _judged(tried: list[list[list[int]]]) -> list[tuple[str, list[int]]]:
    """Return each name that was tried, and the ranks that say they won it."""
    winners: dict[int, list[int]] = {number: [] for won, lost, _ in tried for number in (*won, *lost)}
    for rank, (won, *_) in enumerate(tried):
        for number in won:
            winners[number].append(rank)
    return [(name_of(number), ranks) for number, ranks in sorted(winners.items())]


def _contents(directory: Directory, names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = directory.read(name, 64).decode("ascii", "replace").strip()
        except OSError as error:
            found[name] = os.strerror(error.errno or 0)
    return found


def _conclude(
    team: Team, plan: Plan, clock: Clock, tried: list[list[list[int]]], contents: list[dict[str, str]]
) -> Check:
    judged = _judged(tried)
    notes = [f"rank {rank}: {fault}" for rank, (_, _, faults) in enumerate(tried) for fault in faults]
    for name, ranks in judged:
        if len(ranks) != 1:
            who = ", ".join(map(str, ranks)) or "nobody"
            notes.append(f"{name}: {len(ranks)} winners ({who})")
        for seen in contents:
            if len(ranks) == 1 and seen.get(name) != str(ranks[0]):
                notes.append(f"{name}: won by rank {ranks[0]}, and its words are {seen.get(name)!r}")
    wins = collections.Counter(rank for _, ranks in judged for rank in ranks)
    most = [(f"rank {rank}", float(wins[rank])) for rank in range(team.size)][:SHOWN]
    enough = len(judged) == plan.names
    winners = sum(1 for rank in range(team.size) if wins[rank])
    verdict = FAILED if notes else HELD if enough and winners > 1 else PARTLY
    told = f"{len(judged):,} of {plan.names:,} names" if not enough else f"{len(judged):,} names"
    each = many(len(notes), "fault") if notes else "one winner each"
    found = f"{told}, {each}; {many(winners, 'rank')} won some"
    found += ": perhaps no two ranks ever met" if winners == 1 and not notes else ""
    shown = "wins of each rank" if team.size <= SHOWN else f"wins of the first {SHOWN} ranks"
    return ended(
        "race",
        verdict,
        f"each of {plan.names:,} names taken by one of {team.size} ranks, and never replaced",
        found if enough or notes else f"{found}; the time was over",
        notes=notes,
        tables=(Table(shown, ("rank", "names won"), tuple((n.split()[1], f"{v:.0f}") for n, v in most)),),
        plots=(Plot("bars", shown, "names", tuple((n, (v,)) for n, v in most)),),
        figures={"names": len(judged), "ranks": team.size, "faults": len(notes), "winners": winners},
        seconds=clock.taken,
    )
