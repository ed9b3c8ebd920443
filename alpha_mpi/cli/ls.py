"""`alpha-mpi ls STORE`: the generations of a store, and what else lies in it."""

from __future__ import annotations

from typing import Any

from ..errors import Refused, bounded
from ..restore import choose
from ..store import names, observe
from ..store.store import Store
from . import text
from .generation import name_of, state_of, weight
from .group import DAMAGED, FINE, STORE, Answer, alpha_mpi, answering


@alpha_mpi.command()
@STORE
@answering
def ls(store: str) -> Answer:
    """List the generations of STORE, oldest first. Opens roots, and no other file of a generation.

    Exit codes: 0 fine, 1 something is damaged or STORE is none, 2 wrong usage.
    """
    with Store.open(store) as opened:
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
            rows.append({**row, "attempt": names.attempt(found.attempt)})
        known, _ = choose.named(opened, seen)
        attempts = [names.parse_attempt(name) for name in opened.data.names()]
        unfinished = [
            names.attempt(a) for a in sorted(a for a in attempts if a is not None) if a not in known
        ]
        data = {
            "store": opened.id,
            "path": opened.path,
            "digest": opened.algorithm,
            "epoch": seen.epoch,
            "generations": rows,
            "unfinished": unfinished,
            "strangers": list(seen.strangers),
            "damaged": damaged,
        }
    return (DAMAGED if damaged else FINE), _lines(data), data


def _lines(data: dict[str, Any]) -> list[str]:
    rows = data["generations"]
    held = text.count(len(rows), "generation")
    lines = [f"store {data['store']}, {data['digest']}, epoch {data['epoch']}, {held}"]
    table: list[tuple[object, ...]] = [("generation", "update", "cursor", "owners", "files", "size", "")]
    for row in rows:
        told = [row["state"]] * (row["state"] != "kept") + ["pinned"] * row["pinned"]
        if "update" in row:
            numbers = (row["update"], row["cursor"], row["owners"], row["files"], text.size(row["bytes"]))
        else:
            numbers = ("?",) * 5
        table.append((row["name"], *numbers, ", ".join(told)))
    if rows:
        lines += text.columns(table, right=(1, 2, 3, 4, 5))
    lines += [f"damaged: {name}: {why}" for name, why in data["damaged"].items()]
    lines += [f"unfinished attempt: {name}" for name in data["unfinished"]]
    lines += [f"stranger: {bounded(name)}" for name in data["strangers"]]
    return lines
