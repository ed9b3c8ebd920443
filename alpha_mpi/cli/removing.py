"""Removing: what `rm` and `prune` share. Never the newest, and nothing at all unless that one is whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from ..errors import Refused
from ..restore import choose
from ..restore.verify import verify
from ..store import discard
from ..store.observe import Position
from ..store.store import Store
from . import text
from .generation import name_of, weight
from .group import DAMAGED, FINE, Answer
from .progress import Progress

NO_VERIFY = click.option(
    "--no-verify", is_flag=True, help="Do not read the newest generation first, to see that it is whole."
)


def check_newest(store: Store, seen: choose.Survey) -> None:
    """Refuse unless the generation that a job would resume is there, and whole."""
    if seen.damage is not None:
        raise seen.damage
    if seen.newest is None:
        raise Refused("the store holds no generation yet", code="no-generation", file=store.path)
    name = seen.newest.name
    with Progress(f"verify {name}") as progress:
        report = verify(store, *seen.newest.position, progress)
    if not report.whole:
        raise Refused(
            f"the newest generation, {name}, is damaged: nothing is removed before it is whole, or "
            f"--no-verify says so; {report.problems[0]}",
            code="newest-damaged",
            file=report.name,
        )


def remove(
    store: Store, seen: choose.Survey, go: Sequence[Position], offline: bool, dry_run: bool
) -> tuple[int, dict[str, Any]]:
    """Remove generations that were found to be removable; return the exit code and what was done."""
    rows = []
    for position in go:
        files, nbytes = 0, 0
        try:
            files, nbytes = weight(store, seen.candidate(store, position).attempt)
        except Refused:
            pass  # its root cannot be read: it will stay, and be told of
        rows.append({"name": name_of(position), "files": files, "bytes": nbytes})
    data: dict[str, Any] = {"dry_run": dry_run, "generations": rows, "failed": [], "stopped": None}
    if dry_run:
        return FINE, data
    report = discard.discard(store, seen.epoch, go, seen.lineage, seen.abandoned, offline)
    data["generations"] = [row for row in rows if row["name"] in {name_of(p) for p in report.marked}]
    data["files"], data["bytes"] = report.removal.files, report.removal.bytes
    data["failed"] = [*report.failed, *(f"{file}: {why}" for file, _, why in report.removal.left)]
    data["stopped"] = report.stopped
    return (DAMAGED if data["failed"] or report.stopped else FINE), data


def answer(code: int, data: dict[str, Any]) -> Answer:
    """Return a command's answer."""
    rows = data["generations"]
    if data["dry_run"]:
        lines = [
            f"would remove {row['name']}: {text.count(row['files'], 'file')}, {text.size(row['bytes'])}"
            for row in rows
        ]
    else:
        lines = [f"removed {row['name']}" for row in rows]
        if rows or data["files"]:
            lines.append(f"freed {text.size(data['bytes'])} in {text.count(data['files'], 'file')}")
    lines += [f"stays for now: {why}" for why in data["failed"]]
    lines += [f"stopped: {data['stopped']}"] * (data["stopped"] is not None)
    return code, lines or ["nothing to remove"], data
