"""`alpha-mpi pin STORE GENERATION`: neither retention nor a command removes it."""

from __future__ import annotations

from ..restore import choose
from ..store import discard
from .generation import find, open_to_change, open_to_read
from .group import DRY_RUN, FINE, GENERATION, STORE, Answer, alpha_mpi, answering


@alpha_mpi.command()
@STORE
@GENERATION
@DRY_RUN
@answering
def pin(store: str, generation: str, dry_run: bool) -> Answer:
    """Pin a GENERATION of STORE: neither retention nor prune nor rm removes it.

    Also while a job runs. Exit codes: 0 pinned, 1 refused, 2 wrong usage.
    """
    with open_to_read(store) if dry_run else open_to_change(store) as opened:
        found = find(opened, choose.survey(opened), generation)
        done = discard.read_pin(opened, found.position) is None
        if not dry_run:
            done = discard.pin(opened, found.position)
    line = f"{found.name} {'would be' * (dry_run and done)} {'pinned' if done else 'was pinned already'}"
    return FINE, [line.replace("  ", " ")], {"name": found.name, "changed": done, "dry_run": dry_run}
