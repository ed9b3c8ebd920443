"""`alpha-mpi verify STORE [GENERATION]`: judge generations by their content, every byte of every file.

Whichever generation is meant, the small files of the store (roots, claims, seals, marks, pins) are
judged too: they say what the generation is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..errors import CheckpointError, Refused, quoted
from ..restore import choose
from ..restore.asked import named
from ..restore.verify import Report
from ..restore.verify import verify as judge
from ..store import check
from ..store.observe import Position
from ..store.store import Store
from . import ranks, text
from .generation import name_of, open_to_read, position_of
from .group import DAMAGED, FINE, GENERATION, STORE, Answer, alpha_mpi, answering_together, key_file, told
from .progress import Progress

#: A generation's verification: its report, None on every rank but the first.
_Judge = Callable[[Store, Position, Progress], Report | None]


@alpha_mpi.command()
@STORE
@GENERATION
@click.option("--all", "every", is_flag=True, help="Verify all generations, abandoned ones too.")
@answering_together
def verify(store: str, generation: str, every: bool) -> Answer:
    """Read every byte that a generation of STORE names, and compare every digest.

    Of the rest of STORE every root, claim and mark is read. Says file, region and role of whatever
    is wrong. Under mpiexec or srun the packs are dealt to all ranks.

    Exit codes: 0 whole, 1 damaged or refused, 2 wrong usage.
    """
    if ranks.size() > 1:
        reports, around = _together(store, generation, every)
    else:
        with open_to_read(store) as opened:
            around = check.faults(opened)
            positions = _positions(opened, generation, every)
            reports = _reports(opened, positions, lambda s, p, progress: judge(s, *p, progress), every)
    signatures = _signatures(reports)
    data = [_data(name, report) for name, report in reports.items()]
    lines = [line for name, report in reports.items() for line in _lines(name, report)]
    known = {error.file for report in reports.values() for error in report.problems}
    around = [error for error in around if error.file not in known]
    if around:
        lines += [f"the store around it: damaged, {text.count(len(around), 'problem')}"]
        lines += [f"  {error}" for error in around]
    if signatures == "not checked":
        lines.append("note: signatures are there and were not checked: give the key with --key")
    whole = not around and all(report.whole for report in reports.values())
    told_around = [_problem(error) for error in around]
    return (
        (FINE if whole else DAMAGED),
        lines,
        {"whole": whole, "generations": data, "problems": told_around, "signatures": signatures},
    )


def _signatures(reports: dict[str, Report]) -> str:
    roots = [report.root.root for report in reports.values() if report.root is not None]
    if not any(root is not None and root.signed for root in roots):
        return "none"
    return "not checked" if key_file() is None else "checked"


def _positions(store: Store, generation: str, every: bool) -> list[Position]:
    """Return which generations are meant; of all, the newest first."""
    seen = choose.survey(store)
    if not every:
        return [named(generation) or position_of(store, seen, generation)]
    if not seen.lineage:
        raise Refused("the store holds no generation yet", code="no-generation", file=store.path)
    return [seen.lineage[0], *sorted((*seen.lineage[1:], *seen.abandoned))]


def _reports(store: Store, positions: list[Position], judge: _Judge, every: bool) -> dict[str, Report]:
    reports: dict[Position, Report] = {}
    for position in positions:
        name = name_of(position)
        with Progress(f"verify {name}") as progress:
            report = judge(store, position, progress)
        if report is None:
            continue
        codes = [error.code for error in report.problems]
        if every and (
            codes == ["removed-generation"] or (codes == ["missing-root"] and position != positions[0])
        ):
            continue  # retention was faster, or it is a claim's base that went
        reports[position] = report
    return {name_of(position): reports[position] for position in sorted(reports)}


def _together(path: str, generation: str, every: bool) -> tuple[dict[str, Report], list[CheckpointError]]:
    from ..restore import verify_together as together

    world = together.open_all()
    try:
        with together.everywhere(world, lambda: open_to_read(path)) as store:
            around = check.faults(store) if world.rank == 0 else []
            positions = together.from_first(world, lambda: _positions(store, generation, every))
            reports = _reports(store, positions, lambda s, p, t: together.verify(world, s, *p, t), every)
            return reports, around
    finally:
        world.free()


def _data(name: str, report: Report) -> dict[str, Any]:
    return {
        "name": name,
        "whole": report.whole,
        "problems": [_problem(error) for error in report.problems],
        "non_finite": [{"region": region, "first": list(index)} for region, index in report.non_finite],
        "roles": report.roles,
        "files": report.files,
        "shards": report.shards,
        "bytes": report.nbytes,
    }


def _problem(error: CheckpointError) -> dict[str, Any]:
    return {**told(error), "role": error.role, "region": error.region}


def _lines(name: str, report: Report) -> list[str]:
    update = "" if report.root is None else f" (update {report.root.prefix.moment.update})"
    parts = [text.count(report.roles, "role"), text.count(report.files, "file")]
    read = ", ".join([*parts, text.count(report.shards, "shard"), text.size(report.nbytes)])
    verdict = "whole" if report.whole else f"damaged, {text.count(len(report.problems), 'problem')}"
    lines = [f"{name}{update}: {verdict}; read {read}"]
    lines += [f"  {error}" for error in report.problems]
    for region, index in report.non_finite:
        lines.append(f"  note: region {quoted(region, 100)} has words that are not finite, first at {index}")
    return lines
