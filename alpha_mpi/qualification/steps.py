"""Steps: the checks of a team one after the other, and those that need no team; each with its limit."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import CheckpointError
from ..mpi.world import load
from ..store import probe as probing
from ..store import space
from ..store.durable import Directory, commit_bytes
from ..store.exposure import exposed
from ..store.store import await_name
from . import learners, race, speed, visibility, warden
from .check import FAILED, HELD, NOT_TRIED, TITLES, Check, Clock, Plan, ended, many, not_tried, shorten
from .scratch import Scratch
from .team import Team, TeamFailed

#: Bytes and files that the checks need beside the names of the race and the words of the bandwidth.
ROOM, FILES = 4 << 20, 1000
#: The checks that all ranks do together, in their order.
TOGETHER = ("shared", "race", "visibility", "equivalence", "speed")


def probe(scratch: Scratch, plan: Plan) -> Check:
    """Make the scratch, and ask the file system for what a store must promise. Called by one process."""
    want = "a name is taken and never replaced, and a directory can be synced"
    clock = Clock(plan.share("probe"))
    try:
        scratch.make()
        with Directory.open(scratch.home) as directory:
            found = probing.probe(directory)
            left = space.available(directory)
            entries = os.fstatvfs(directory.fd)
        with Directory.open(scratch.path) as directory:
            open_to_all = exposed([directory])
    except (OSError, CheckpointError) as error:
        said = str(error) if isinstance(error, CheckpointError) else f"{error.filename}: {error.strerror}"
        return ended("probe", FAILED, want, said, seconds=clock.taken)
    lack = _lack(plan, left, entries.f_favail if entries.f_files else None)
    if lack:
        return ended("probe", FAILED, want, lack, seconds=clock.taken)
    ways = {"rename": "renameat2 with no-replace", "link": "link, then unlink"}
    notes = [*found.warnings, *([open_to_all] if open_to_all else [])]
    notes += [f"another run is at work, or left this behind: {path}" for path in scratch.earlier()]
    told = f"{found.file_system}; a name is taken by {ways[found.no_replace]}; {left / 1e9:.3g} GB are free"
    figures = {
        "file_system": found.file_system,
        "no_replace": found.no_replace,
        "available_bytes": left,
        "warnings": notes,
    }
    return ended("probe", HELD, want, told, notes=notes, figures=figures, seconds=clock.taken)


def _lack(plan: Plan, left: int, entries: int | None) -> str:
    """Say what the file system has too little of for any check; so a full one is not taken for a bad one."""
    if left < ROOM + 4096 * plan.names:
        return f"{left:,} bytes are free, and {ROOM + 4096 * plan.names:,} are needed to try anything here"
    if entries is not None and entries < FILES + plan.names:
        return (
            f"{entries:,} files can still be made, and {FILES + plan.names:,} are needed to try anything here"
        )
    return ""


def shared(team: Team, scratch: str, plan: Plan, by_link: bool = False) -> Check:
    """See whether every rank finds the same directory. Called by every rank."""
    clock = Clock(plan.share("shared"))
    words = str(team.from_first(secrets.token_hex(16)))
    fault = ""
    if team.rank == 0:
        with Directory.open(scratch) as directory:
            directory.by_link = by_link
            commit_bytes(directory, "shared", words.encode())
    team.barrier()
    begin = time.monotonic()
    try:
        with await_name(lambda: Directory.open(scratch), plan.visibility) as directory:
            if await_name(lambda: directory.read("shared", 100), plan.visibility).decode() != words:
                fault = "another directory of that name"
    except (OSError, CheckpointError) as error:
        fault = f"the directory is not there: {error}"
    told = team.allgather([fault, time.monotonic() - begin])
    notes = [f"rank {r} on {team.hosts[r]}: {one}" for r, (one, _) in enumerate(told) if one]
    nodes = len(set(team.nodes))
    module = load() if team.size > 1 else None
    library = "none" if module is None else module.Get_library_version().replace("\0", " ").splitlines()[0]
    hosts = sorted(set(team.hosts))
    where = f"{many(team.size, 'rank')} on {many(nodes, 'node')} ({', '.join(hosts[:8])})"
    said = f"{where}; the last one saw it after {shorten(max(seconds for _, seconds in told))}"
    return ended(
        "shared",
        FAILED if notes else HELD if team.size > 1 else NOT_TRIED,
        "every rank sees the same directory, and what the first rank wrote there",
        f"{len(notes)} of {where} do not see it" if notes else said if team.size > 1 else "one process alone",
        notes=notes,
        figures={
            "ranks": team.size,
            "nodes": nodes,
            "hosts": hosts,
            "mpi": " ".join(library.split())[:120],
        },
        seconds=clock.taken,
    )


def together(
    team: Team,
    scratch: str,
    plan: Plan,
    by_link: bool,
    keys: Sequence[str],
    begun: Callable[[str], None],
    done: Callable[[Check], None],
) -> None:
    """Do the checks of a team. Called by every rank; `begun` and `done` are told of each."""

    def part(name: str) -> str:
        return os.path.join(scratch, name)

    works: dict[str, Callable[[], Check]] = {
        "shared": lambda: shared(team, scratch, plan, by_link),
        "race": lambda: race.race(team, part("race"), plan, by_link),
        "visibility": lambda: visibility.visibility(team, part("seen"), plan, by_link),
        "equivalence": lambda: learners.equivalence(team, part("learners"), plan),
        "speed": lambda: speed.speed(team, part("speed"), plan),
    }
    why = ""
    for key in keys:
        if why:
            done(not_tried(key, why))
            continue
        begun(key)
        check = _step(team, key, plan, works[key])
        done(check)
        if team.lost:
            why = f"the ranks are out of step since: {TITLES[key].lower()}"
        elif key == "shared" and check.verdict == FAILED:
            why = "the ranks do not see one directory"
    if "equivalence" in keys and not why:
        team.limit = plan.limit("damage")
        try:
            learners.specimen(team, part("specimen"))
        except (TeamFailed, CheckpointError):
            pass  # the check that wants it makes one on one owner, and says what fails


def _step(team: Team, key: str, plan: Plan, work: Callable[[], Check]) -> Check:
    begin = time.monotonic()
    team.limit = plan.limit(key)
    try:
        return team.together(work)
    except TeamFailed as error:
        said = str(error)
    except CheckpointError as error:
        said = f"a rank was lost, or hangs: {error}"
    except EOFError as error:
        said = str(error)
    return ended(key, FAILED, "every rank does its part", said, seconds=time.monotonic() - begin)


def by_warden(key: str, store: str, plan: Plan) -> Check:
    """Let a warden do a check in processes of its own; past its limit all of them are killed."""
    begin = time.monotonic()
    options = json.dumps({"plan": {**vars(plan)}})
    process = subprocess.Popen(
        warden.words(key, store, options),
        env=warden.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    said, told = "", ""
    try:
        told, errors = process.communicate(timeout=plan.limit(key))
        said = f"the process that does it ended by {process.returncode}: {errors[-300:]}"
    except subprocess.TimeoutExpired:
        said = f"it hung, and was killed after {plan.limit(key):.0f} s"
    finally:
        if process.poll() is None:
            _kill(process)
    try:
        return Check.from_data(json.loads(told))
    except (ValueError, TypeError, KeyError):
        return ended(key, FAILED, "", said, seconds=time.monotonic() - begin)


def _kill(process: subprocess.Popen[Any]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()
