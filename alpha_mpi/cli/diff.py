"""`alpha-mpi diff STORE A B`: in which words two generations differ."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import click

from ..comparing import Difference, compare
from ..model.identity import Contract, Learner
from ..restore import choose
from ..restore.generation import Generation
from ..store.store import Store
from . import text
from .generation import find, open_to_read
from .group import DAMAGED, FINE, STORE, Answer, alpha_mpi, answering
from .progress import Progress
from .words import Folder, GenerationType


@alpha_mpi.command()
@STORE
@click.argument("a", metavar="A", type=GenerationType())
@click.argument("b", metavar="B", type=GenerationType())
@click.option("--in", "other", type=Folder(), metavar="STORE", help="B lies in STORE.")
@answering
def diff(store: str, a: str, b: str, other: str | None) -> Answer:
    """Compare the words of generations A and B, saved on whatever owners and layouts.

    Bits decide, so 0.0 and -0.0 differ. Words that both name by the same digests are not read.
    Exit codes: 0 the same, 1 different, damaged or refused, 2 wrong usage.
    """
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(open_to_read(store))
        two = one if other is None else stack.enter_context(open_to_read(other))
        mine, theirs = _open(one, a), _open(two, b)
        progress = stack.enter_context(Progress("diff"))
        with mine.present(), theirs.present():
            found = list(compare(mine, theirs, progress))
        data = _data(mine, theirs, found)
    return (FINE if data["same"] else DAMAGED), _lines(data, found), data


def _open(store: Store, word: str) -> Generation:
    position = find(store, choose.survey(store), word).position
    return Generation.open(store, *position)


def _data(a: Generation, b: Generation, found: list[Difference]) -> dict[str, Any]:
    notes = [
        f"learner: {line}"
        for line in Learner.from_data(a.root.learner).difference(Learner.from_data(b.root.learner))
    ]
    notes += [
        f"contract: {line}"
        for line in Contract.from_data(a.root.contract).difference(Contract.from_data(b.root.contract))
    ]
    return {
        "same": all(one.same for one in found) and not notes,
        "a": _side(a),
        "b": _side(b),
        "notes": notes,
        "regions": [{**dataclasses.asdict(one), "same": one.same} for one in found],
    }


def _side(generation: Generation) -> dict[str, Any]:
    candidate = generation.candidate
    moment = candidate.manifest.prefix.moment
    return {"name": candidate.name, "store": generation.store.id, "update": moment.update}


def _lines(data: dict[str, Any], found: list[Difference]) -> list[str]:
    names = [f"{side['name']} (update {side['update']})" for side in (data["a"], data["b"])]
    lines = [f"{names[0]} and {names[1]}: {'the same' if data['same'] else 'different'}"]
    lines += [f"first: {one}" for one in found if not one.same][:1]
    lines += data["notes"]
    table: list[tuple[object, ...]] = [("region", "differing", "words", "largest")]
    for row in data["regions"]:
        if not row["same"]:
            largest = "" if row["largest"] is None else f"{row['largest']:.6g}"
            told = row["why"] or row["path"] or f"{row['differing']:,}"
            words = f"{row['words']:,}" if row["words"] else ""
            table.append((row["region"], told, words, largest))
    if len(table) > 1:
        lines += text.columns(table, right=(2, 3))
    return lines
