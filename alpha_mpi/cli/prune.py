"""`alpha-mpi prune STORE --keep N`: remove what retention would not keep."""

from __future__ import annotations

import click

from ..errors import Refused
from ..restore import choose
from ..store import names
from ..store.keep import Keep, Scored
from ..store.observe import Position
from ..store.store import Store
from . import removing, text
from .generation import name_of, open_to_change, open_to_read
from .group import DRY_RUN, OFFLINE, STORE, Answer, alpha_mpi, answering


@alpha_mpi.command()
@STORE
@click.option("--keep", required=True, type=click.IntRange(1), metavar="N", help="Keep the newest N.")
@click.option("--every", type=click.IntRange(1), metavar="M", help="Keep also each M-th update.")
@click.option("--best", type=click.IntRange(0), default=0, metavar="K", help="Keep also the K best by score.")
@click.option("--highest", is_flag=True, help="The highest score is best (otherwise the lowest).")
@click.option("--abandoned", is_flag=True, help="Remove abandoned generations too.")
@OFFLINE
@removing.NO_VERIFY
@DRY_RUN
@answering
def prune(
    store: str,
    keep: int,
    every: int | None,
    best: int,
    highest: bool,
    abandoned: bool,
    offline: bool,
    no_verify: bool,
    dry_run: bool,
) -> Answer:
    """Remove generations of STORE beyond the newest N of the lineage.

    Pinned ones stay, abandoned ones only go with --abandoned, and what belongs to the last epoch
    only with --offline, since the job that owns it may run. The newest one is verified first.

    Exit codes: 0 removed, 1 refused or not all removed, 2 wrong usage.
    """
    with open_to_read(store) if dry_run else open_to_change(store) as opened:
        seen = choose.survey(opened)
        if not no_verify:
            removing.check_newest(opened, seen)
        go = _beyond(opened, seen, Keep(keep, every, best, highest))
        if abandoned:
            go += seen.abandoned
        pinned = {p for p in go if opened.published.exists(names.pinned(*p))}
        held = {p for p in go if not offline and p.epoch >= seen.epoch} - pinned
        go = sorted(set(go) - pinned - held)
        code, data = removing.remove(opened, seen, go, offline, dry_run)
    data["pinned"], data["open"] = ([name_of(p) for p in sorted(one)] for one in (pinned, held))
    code, lines, data = removing.answer(code, data)
    if pinned:
        lines.append(f"{text.count(len(pinned), 'pinned generation')} stay{'s' * (len(pinned) == 1)}")
    if held:
        told, stay = text.count(len(held), "generation"), "stays" if len(held) == 1 else "stay"
        lines.append(f"{told} of the last epoch {stay}: --offline says that no job runs")
    return code, lines, data


def _beyond(store: Store, seen: choose.Survey, keep: Keep) -> list[Position]:
    """Return what of the lineage no rule keeps; what cannot be read stays."""
    stay = set(seen.lineage[: keep.last])
    scored = []
    for position in seen.lineage:
        try:
            root = seen.candidate(store, position).manifest
        except Refused as error:
            if error.code not in ("removed-generation", "missing-root"):
                stay.add(position)
            continue
        assert root.root is not None
        score = None if root.root.score is None else float.fromhex(root.root.score)
        scored.append(Scored(position, root.prefix.moment.update, score))
    found = {g.position for g in scored}
    stay |= keep.stays(scored)
    return [p for p in seen.lineage if p in found and p not in stay]
