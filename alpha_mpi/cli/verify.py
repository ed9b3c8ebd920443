"""`alpha-mpi verify STORE [GENERATION]`: judge generations by their content, every byte of every file."""

from __future__ import annotations

from typing import Any

import click

from ..errors import Refused, quoted
from ..restore import choose
from ..restore.verify import Report
from ..restore.verify import verify as judge
from ..store.store import Store
from . import text
from .generation import name_of, position_of
from .group import DAMAGED, FINE, GENERATION, STORE, Answer, alpha_mpi, answering, told


@alpha_mpi.command()
@STORE
@GENERATION
@click.option("--all", "every", is_flag=True, help="Verify all generations, abandoned ones too.")
@answering
def verify(store: str, generation: str, every: bool) -> Answer:
    """Read every byte that a generation of STORE names, and compare every digest.

    Exit codes: 0 whole, 1 damaged or refused, 2 wrong usage.
    """
    with Store.open(store) as opened:
        seen = choose.survey(opened)
        if every:
            positions = sorted((*seen.lineage, *seen.abandoned))
            if not positions:
                raise Refused("the store holds no generation yet", code="no-generation", file=opened.path)
        else:
            positions = [position_of(opened, seen, generation)]
        reports = {name_of(position): judge(opened, *position) for position in positions}
    data = [_data(name, report) for name, report in reports.items()]
    lines = [line for name, report in reports.items() for line in _lines(name, report)]
    whole = all(report.whole for report in reports.values())
    return (FINE if whole else DAMAGED), lines, {"whole": whole, "generations": data}


def _data(name: str, report: Report) -> dict[str, Any]:
    return {
        "name": name,
        "whole": report.whole,
        "problems": [
            {**told(error), "role": error.role, "region": error.region} for error in report.problems
        ],
        "non_finite": [{"region": region, "first": list(index)} for region, index in report.non_finite],
        "roles": report.roles,
        "files": report.files,
        "shards": report.shards,
        "bytes": report.nbytes,
    }


def _lines(name: str, report: Report) -> list[str]:
    update = "" if report.root is None else f" (update {report.root.prefix.moment.update})"
    parts = [text.count(report.roles, "role"), text.count(report.files, "file")]
    read = ", ".join([*parts, text.count(report.shards, "shard"), text.size(report.nbytes)])
    verdict = "whole" if report.whole else f"damaged, {text.count(len(report.problems), 'problem')}"
    lines = [f"{name}{update}: {verdict}; read {read}"]
    lines += [f"  {error}" for error in report.problems]
    for region, index in report.non_finite:
        lines.append(
            f"  note: region {quoted(region, 100)} has words that are not finite, first at {index}"
        )
    return lines
