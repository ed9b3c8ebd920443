"""`alpha-mpi interval --save T --mtbf T`: how often to save, and what that follows from."""

from __future__ import annotations

from typing import Any

import click

from ..errors import Refused
from ..timing import daly, lost_share, seconds_of, young
from . import text
from .group import FINE, Answer, alpha_mpi, answering


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Return a length of time in seconds, or say what is expected."""
    try:
        return None if value is None else seconds_of(value)
    except Refused as error:
        raise click.BadParameter(f"{error.message}: {error.expected}") from error


@alpha_mpi.command()
@click.option("--save", callback=_seconds, required=True, metavar="TIME", help="How long one save takes.")
@click.option(
    "--mtbf", callback=_seconds, required=True, metavar="TIME", help="Mean time between failures of a node."
)
@click.option(
    "--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes of the job; any one ends it."
)
@click.option("--update", callback=_seconds, metavar="TIME", help="How long one update takes.")
@answering
def interval(save: float, mtbf: float, nodes: int, update: float | None) -> Answer:
    """Advise how often to save, by Young (1974) and Daly (2006).

    TIME is a number of seconds or a text: 40s, 10min, 2h, 365d, 1-12:00:00. The time of a save is
    what `Checkpointer.save_seconds` says. Exit codes: 0 advice, 2 wrong usage.
    """
    whole = mtbf / nodes
    best, rough = daly(save, whole), young(save, whole)
    data: dict[str, Any] = {
        "save": save,
        "mtbf": mtbf,
        "nodes": nodes,
        "job_mtbf": whole,
        "young": rough,
        "daly": best,
        "lost_share": lost_share(save, best, whole),
        "update": update,
        "updates": None if update is None else max(1, round(best / update)),
    }
    return FINE, _lines(data), data


def _lines(data: dict[str, Any]) -> list[str]:
    nodes = text.count(data["nodes"], "node")
    rows: list[tuple[object, ...]] = [
        ("one save", length(data["save"]), "given"),
        ("a node fails once in", length(data["mtbf"]), "given"),
        ("the job fails once in", length(data["job_mtbf"]), f"{nodes}, each on its own"),
        ("interval, Young", length(data["young"]), "sqrt(2 C M)"),
        ("interval, Daly", length(data["daly"]), "from the end of one save to the next"),
        ("time lost", f"{100 * data['lost_share']:.1f} %", "to saves, and to work done twice"),
    ]
    advice = f'every="{data["daly"]:.{0 if data["daly"] >= 100 else 1}f}s"'
    if data["update"] is not None:
        rows.insert(1, ("one update", length(data["update"]), "given"))
        advice += f", or every={data['updates']}"
    measured = f'every=am.Every(mtbf="{data["job_mtbf"]:.0f}s")'
    lines = text.columns(rows, right=(1,))
    if data["job_mtbf"] <= 2 * data["save"]:
        return [*lines, "a save takes half the time between failures or more: no interval will do"]
    return [*lines, f"advice: {advice}; {measured} measures the saves itself"]


def length(seconds: float) -> str:
    """Return a length of time for people."""
    for unit, one in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * one:
            return f"{seconds / one:.1f} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
