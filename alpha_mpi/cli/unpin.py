"""`alpha-mpi unpin STORE GENERATION`: retention may remove it again."""

from __future__ import annotations

from ..restore import choose
from ..store import discard
from .generation import name_of, open_to_change, open_to_read, position_of
from .group import DRY_RUN, FINE, GENERATION, STORE, Answer, alpha_mpi, answering


@alpha_mpi.command()
@STORE
@GENERATION
@DRY_RUN
@answering
def unpin(store: str, generation: str, dry_run: bool) -> Answer:
    """Take the pin of a GENERATION of STORE away.

    Exit codes: 0 not pinned any more, 1 refused, 2 wrong usage.
    """
    with open_to_read(store) if dry_run else open_to_change(store) as opened:
        position = position_of(opened, choose.survey(opened), generation)
        done = discard.read_pin(opened, position) is not None
        if not dry_run:
            done = discard.unpin(opened, position)
    name = name_of(position)
    line = f"{name} {'would be' * (dry_run and done)} {'unpinned' if done else 'was not pinned'}"
    return FINE, [line.replace("  ", " ")], {"name": name, "changed": done, "dry_run": dry_run}
