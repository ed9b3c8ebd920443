"""`alpha-mpi rm STORE GENERATION...`: remove generations by name."""

from __future__ import annotations

import click

from ..restore import choose
from ..store import discard
from . import removing
from .generation import open_to_change, open_to_read, position_of
from .group import DRY_RUN, OFFLINE, STORE, Answer, alpha_mpi, answering
from .words import GenerationType


@alpha_mpi.command()
@STORE
@click.argument("generations", type=GenerationType(), nargs=-1, required=True, metavar="GENERATION...")
@OFFLINE
@removing.NO_VERIFY
@DRY_RUN
@answering
def rm(store: str, generations: tuple[str, ...], offline: bool, no_verify: bool, dry_run: bool) -> Answer:
    """Remove each GENERATION of STORE: first a mark, then its files.

    The newest generation always stays, and pinned ones; what belongs to the last epoch goes only
    with --offline, since the job that owns it may run. The newest one is verified first. A kill in
    between is completed by the next rm, prune or job.

    Exit codes: 0 removed, 1 refused or not all removed, 2 wrong usage.
    """
    with open_to_read(store) if dry_run else open_to_change(store) as opened:
        seen = choose.survey(opened)
        go = sorted({position_of(opened, seen, word) for word in generations})
        for position in go:
            discard.check(opened, position, seen.epoch, seen.lineage, seen.abandoned, offline)
        if not no_verify:
            removing.check_newest(opened, seen)
        return removing.answer(*removing.remove(opened, seen, go, offline, dry_run))
