"""Visibility: how late a name that was just made is seen from the other nodes.

One rank takes a name as a save does and, when it is durable, tells the others; each looks until it
sees it. Times count from the message, so no two clocks are compared. Three ways of looking, since
clients of network file systems cache them apart: by name, where the observer had looked for that
name before it existed (a *negative entry*); by name for the first time; and by a listing.
"""

from __future__ import annotations

import statistics
import time

from ..errors import CheckpointError
from ..store.durable import Directory, commit_bytes
from .check import (
    FAILED,
    HELD,
    NOT_TRIED,
    PARTLY,
    Check,
    Clock,
    Plan,
    Plot,
    Table,
    ended,
    middle_and_most,
    not_tried,
    shorten,
)
from .team import Team

#: The ways of looking, and what people call them.
WAYS = {
    "looked": "by name, looked for before",
    "fresh": "by name, for the first time",
    "listed": "in a listing, listed before",
}
#: Most observers; of many nodes the first ones.
OBSERVERS = 64


class _OtherWords(Exception):
    """The name is there, and its words are not those that were written."""


def visibility(team: Team, folder: str, plan: Plan, by_link: bool) -> Check:
    """Make names by turns, and see when the others see them. Called by every rank."""
    want = f"a fresh name is seen from every other node within {plan.visibility:g} s, with its words"
    if team.size < 2:
        return not_tried("visibility", "one process alone has no observer", want)
    leads = team.leads()[:OBSERVERS]
    across = len(leads) > 1
    if not across:
        leads = list(range(min(team.size, 4)))
    clock = Clock(plan.share("visibility"))
    found: list[tuple[int, str, float]] = []
    notes: list[str] = []
    made = 0
    with Directory.open(folder) as directory:
        directory.by_link = by_link
        for turn in range(plan.rounds):
            if team.from_first(clock.over and turn > 0):
                break
            for way in WAYS:
                told = _round(team, directory, turn, way, leads, plan.visibility)
                for rank, (seconds, fault) in enumerate(told):
                    if fault:
                        notes.append(f"rank {rank} on {team.hosts[rank]}, {WAYS[way]}: {fault}")
                    if seconds is not None:
                        found.append((rank, way, seconds))
            made += 1
    return _conclude(team, plan, clock, leads, across, made, found, notes)


def _round(
    team: Team, directory: Directory, turn: int, way: str, leads: list[int], limit: float
) -> list[tuple[float | None, str]]:
    """Return of each rank: seconds until it saw the name (None: no observer, or never), and its fault."""
    maker, name = leads[turn % len(leads)], f"seen-{way}-{turn:04d}"
    watching = team.rank in leads and team.rank != maker
    words = f"made by rank {maker}\n".encode()
    fault = ""
    try:
        if watching and way != "fresh" and _look(directory, name, way, words):
            fault = "it is there before it was made"
    except (OSError, CheckpointError, _OtherWords) as error:
        fault = str(error)
    team.barrier()
    try:
        if team.rank == maker:
            commit_bytes(directory, name, words)
    except OSError as error:
        fault = f"could not make it: {error.strerror}"
    if any(team.allgather(bool(fault))):  # the message: it is durable, look now
        return team.allgather([None, fault])
    seconds = None
    if watching:
        begin = time.monotonic()
        pause = 0.0002
        try:
            while not _look(directory, name, way, words):
                if time.monotonic() - begin > limit:
                    fault = f"not seen within {limit:g} s"
                    break
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
            else:
                seconds = time.monotonic() - begin
        except (OSError, CheckpointError, _OtherWords) as error:
            fault = str(error)
    return [(one[0], one[1]) for one in team.allgather([seconds, fault])]


def _look(directory: Directory, name: str, way: str, words: bytes) -> bool:
    """Say whether the name is there. Raises `_OtherWords`."""
    if way == "listed":
        return name in directory.names()
    try:
        data = directory.read(name, 1 << 10)
    except FileNotFoundError:
        return False
    if data != words:
        raise _OtherWords(f"it is seen with other words: {data[:40]!r}")
    return True


def _conclude(
    team: Team,
    plan: Plan,
    clock: Clock,
    leads: list[int],
    across: bool,
    made: int,
    found: list[tuple[int, str, float]],
    notes: list[str],
) -> Check:
    rows, dots = [], []
    for way, told in WAYS.items():
        for rank in leads:
            values = [seconds for who, how, seconds in found if (who, how) == (rank, way)]
            if values:
                middle, most = shorten(statistics.median(values)), shorten(max(values))
                rows.append((told, f"{rank} on {team.hosts[rank]}", str(len(values)), middle, most))
        every = tuple(seconds for _, how, seconds in found if how == way)
        if every:
            dots.append((told, every))
    seconds = [value for _, values in dots for value in values]
    measured = middle_and_most(seconds) if seconds else "nothing was seen"
    if notes:
        verdict, said = FAILED, f"{notes[0]}; {measured}"
    elif not across:
        verdict = NOT_TRIED
        said = f"not tried: all {team.size} ranks are on one node; between its processes {measured}"
    elif made < plan.rounds:
        verdict, said = PARTLY, f"{made} of {plan.rounds} rounds in the time; {measured}"
    else:
        verdict, said = HELD, f"from {len(leads)} nodes, {made} rounds: {measured}"
    figures = {way: max((s for _, how, s in found if how == way), default=None) for way in WAYS}
    return ended(
        "visibility",
        verdict,
        f"a fresh name is seen from every other node within {plan.visibility:g} s, with its words",
        said,
        notes=notes,
        tables=(
            Table(
                "seconds from the message that the name is durable until it was seen",
                ("way of looking", "observing rank", "names", "median", "at most"),
                tuple(rows),
            ),
        ),
        plots=(Plot("dots", "time until a fresh name was seen", "s", tuple(dots)),),
        figures={
            "nodes": len(set(team.nodes)),
            "across": across,
            "median": statistics.median(seconds) if seconds else None,
            "most": max(seconds) if seconds else None,
            **figures,
        },
        seconds=clock.taken,
    )
