"""`alpha-mpi ls STORE`: the generations of a store, and what else lies in it."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from ..errors import Refused, bounded
from ..restore import choose
from ..store import names, observe
from ..store.exposure import exposed_store
from ..store.observe import Position
from ..store.store import Store
from . import text
from .generation import name_of, open_to_read, signature, state_of, weight
from .group import DAMAGED, FINE, STORE, Answer, alpha_mpi, answering


@alpha_mpi.command()
@STORE
@click.option("--removed", is_flag=True, help="List removed generations too, as far as their names stand.")
@answering
def ls(store: str, removed: bool) -> Answer:
    """List the generations of STORE, oldest first. Opens roots, and no other file of a generation.

    State: newest (a job would resume it), lineage (before it), abandoned (a job continued from an
    earlier one), damaged, removed. The age is that of the root's file, for people only.

    Exit codes: 0 fine, 1 something is damaged or STORE is none, 2 wrong usage.
    """
    with open_to_read(store) as opened:
        seen = choose.survey(opened)
        marks = observe.listing(opened)
        damaged = {name_of(position): str(error) for position, error in seen.damaged}
        rows: list[dict[str, Any]] = []
        for position in sorted((*seen.lineage, *seen.abandoned)):
            row: dict[str, Any] = {
                "name": name_of(position),
                "epoch": position.epoch,
                "entry": position.number,
            }
            row |= {"state": state_of(seen, position), "pinned": position in marks.pinned}
            try:
                found = seen.candidate(opened, position)
            except Refused as error:
                if error.code in ("removed-generation", "missing-root") and row["state"] != "newest":
                    continue  # retention was faster than we, or it is a claim's base that went
                damaged[row["name"]] = str(error)
                rows.append({**row, "state": "damaged", "code": error.code})
                continue
            moment, root = found.manifest.prefix.moment, found.manifest.root
            assert root is not None
            files, nbytes = weight(opened, found.attempt)
            row |= {"update": moment.update, "cursor": moment.cursor, "owners": root.owners}
            row |= {"hierarchy": root.hierarchy, "files": files, "bytes": nbytes, "root": found.root}
            row |= {"age": _age(opened, position), "score": _score(root.score)}
            rows.append({**row, "attempt": names.attempt(found.attempt)})
        gone = sorted(p for p in marks.removed if observe.is_removed(opened, p))
        if removed:
            rows += [_removed(opened, position) for position in gone]
            rows.sort(key=lambda row: (row["epoch"], row["entry"]))
        known, _ = choose.named(opened, seen)
        attempts = [names.parse_attempt(name) for name in opened.data.names()]
        unfinished = [
            names.attempt(a) for a in sorted(a for a in attempts if a is not None) if a not in known
        ]
        data = {
            "store": opened.id,
            "path": opened.path,
            "digest": opened.algorithm,
            "signature": signature(opened, seen.signed),
            "epoch": seen.epoch,
            "generations": rows,
            "removed": [name_of(position) for position in gone],
            "unfinished": unfinished,
            "strangers": list(seen.strangers),
            "exposed": exposed_store(opened),
            "damaged": damaged,
        }
    return (DAMAGED if damaged else FINE), _lines(data), data


def _removed(store: Store, position: Position) -> dict[str, Any]:
    row = {"name": name_of(position), "epoch": position.epoch, "entry": position.number, "state": "removed"}
    found = observe.look(store, *position)
    if found is not None and found.manifest is not None and found.manifest.root is not None:
        moment, root = found.manifest.prefix.moment, found.manifest.root
        files, nbytes = weight(store, found.manifest.prefix.attempt)
        row |= {"update": moment.update, "cursor": moment.cursor, "owners": root.owners}
        row |= {"files": files, "bytes": nbytes, "age": _age(store, position)}
    return {**row, "pinned": False}


def _age(store: Store, position: Position) -> float | None:
    """Return the seconds since the root's file was written. Nothing is decided from it."""
    try:
        found = os.stat(names.entry(*position), dir_fd=store.published.fd, follow_symlinks=False)
    except OSError:
        return None
    return max(0.0, time.time() - found.st_mtime)


def _score(text: str | None) -> float | None:
    return None if text is None else float.fromhex(text)


def _lines(data: dict[str, Any]) -> list[str]:
    rows = data["generations"]
    held = text.count(sum(row["state"] != "removed" for row in rows), "generation")
    lines = [f"store {data['store']}, {data['digest']}, epoch {data['epoch']}, {held}"]
    if data["signature"] != "none":
        lines.append(f"signatures: {data['signature']}")
    table: list[tuple[object, ...]] = [
        ("generation", "update", "cursor", "owners", "files", "size", "age", "state")
    ]
    for row in rows:
        told = [row["state"]] + ["pinned"] * row["pinned"]
        if row.get("score") is not None:
            told.append(f"score {row['score']:g}")
        if "update" in row:
            numbers: tuple[object, ...] = (
                row["update"],
                row["cursor"],
                row["owners"],
                row["files"],
                text.size(row["bytes"]),
            )
            numbers = (*numbers, text.age(row["age"]))
        else:
            numbers = ("?",) * 6
        table.append((row["name"], *numbers, ", ".join(told)))
    if rows:
        lines += text.columns(table, right=(1, 2, 3, 4, 5, 6))
    lines += [f"damaged: {name}: {why}" for name, why in data["damaged"].items()]
    if data["removed"]:
        lines.append(f"removed: {text.count(len(data['removed']), 'generation')} (--removed lists them)")
    lines += [f"warning: {data['exposed']}"] * (data["exposed"] is not None)
    lines += [f"unfinished attempt: {name}" for name in data["unfinished"]]
    lines += [f"stranger: {bounded(name)}" for name in data["strangers"]]
    return lines
