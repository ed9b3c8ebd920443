"""`alpha-mpi why STORE`: what a job would resume, and why it would take no other generation."""

from __future__ import annotations

from typing import Any

from ..errors import Refused
from ..restore import choose
from ..store import observe
from ..store.observe import Position
from ..store.store import Store
from . import text
from .generation import name_of, open_to_read
from .group import DAMAGED, FINE, STORE, Answer, alpha_mpi, answering, told


@alpha_mpi.command()
@STORE
@answering
def why(store: str) -> Answer:
    """Say which generation of STORE `resume` would take, and why each other one not.

    Reads claims and roots; whether every byte is whole is what `verify` says. Exit codes: 0 a job
    would resume or start afresh, 1 it would be refused, 2 wrong usage.
    """
    with open_to_read(store) as opened:
        seen = choose.survey(opened)
        takes, reason = _takes(seen)
        others = _others(opened, seen)
        claims = [_claim(epoch, seen) for epoch in sorted(seen.claims)]
    data: dict[str, Any] = {
        "takes": takes,
        "reason": reason,
        "epoch": seen.epoch,
        "claims": claims,
        "others": others,
    }
    if seen.damage is not None:
        data["error"] = told(seen.damage)
    return (FINE if seen.damage is None else DAMAGED), _lines(data), data


def _takes(seen: choose.Survey) -> tuple[str | None, str]:
    if seen.damage is not None:
        return None, f"a job is refused: {seen.damage}"
    if seen.newest is None:
        return None, "a fresh start: no epoch of this store has published or continued anything"
    if seen.newest.epoch == seen.epoch:
        return seen.newest.name, f"it is the last generation of the newest epoch, {seen.epoch}"
    return seen.newest.name, f"epoch {seen.epoch} continues it, and has published nothing itself"


def _others(store: Store, seen: choose.Survey) -> list[dict[str, Any]]:
    damaged = dict(seen.damaged)
    rows: dict[Position, dict[str, Any]] = {}
    newest = seen.lineage[0] if seen.lineage else None
    for position in seen.lineage:
        rows[position] = {"state": "lineage", "why": "a newer generation of the lineage follows it"}
    for position in seen.abandoned:
        rows[position] = {"state": "abandoned", "why": _abandoned(seen, position)}
    for position, row in rows.items():
        try:
            row["update"] = seen.candidate(store, position).manifest.prefix.moment.update
        except Refused as error:
            damaged.setdefault(position, error)
    for position in observe.listing(store).removed:
        if observe.is_removed(store, position):
            rows[position] = {"state": "removed", "why": "retention or a command removed it"}
            damaged.pop(position, None)
    for position, damage in damaged.items():
        rows[position] = {"state": "damaged", "why": str(damage)}
    if newest is not None and rows[newest]["state"] != "damaged":
        del rows[newest]
    return [{"name": name_of(p), **rows[p]} for p in sorted(rows)]


def _abandoned(seen: choose.Survey, position: Position) -> str:
    claim = seen.claims.get(position.epoch + 1)
    if claim is None:
        return "a later epoch did not continue it"
    job = claim.job or "a job without a name"
    if claim.base is None:
        return f"epoch {claim.epoch} ({job}) started afresh"
    return f"epoch {claim.epoch} ({job}) continued {name_of(Position(*claim.base))}"


def _claim(epoch: int, seen: choose.Survey) -> dict[str, Any]:
    claim = seen.claims[epoch]
    return {
        "epoch": epoch,
        "continues": None if claim.base is None else name_of(Position(*claim.base)),
        "job": claim.job,
        "host": claim.host,
        "restart": claim.restart,
        "owners": claim.owners,
        "skipped": [list(pair) for pair in claim.skipped],
        "fork": claim.fork is not None,
        "accepted": [list(one) for one in claim.accepted],
    }


def _lines(data: dict[str, Any]) -> list[str]:
    lines = [f"{data['takes'] or 'nothing'}: {data['reason']}"]
    for claim in data["claims"]:
        base = claim["continues"] or "nothing"
        fork = ", asked for by name" if claim["fork"] else ""
        job = f"{claim['job'] or 'no name'}{' on ' + claim['host'] if claim['host'] else ''}"
        owners = text.count(claim["owners"], "owner")
        lines.append(f"epoch {claim['epoch']} continues {base}{fork}; job {job}, {owners}")
        lines += [f"  passed over {name}: {code}" for name, code in claim["skipped"]]
        lines += [f"  {line}" for line in text.accepted(claim["accepted"])]
    table = [
        ("not " + row["name"], f"update {row['update']}" if "update" in row else "", row["state"], row["why"])
        for row in data["others"]
    ]
    return lines + text.columns(table)
