"""`alpha-mpi cp STORE GENERATION DST`: publish a copy in another store."""

from __future__ import annotations

import os

import click

from .. import copying
from ..restore import choose
from ..restore.generation import Generation
from ..store import names
from ..store.signing import read_key
from ..store.store import Store
from . import text
from .generation import find, name_of, open_to_read, weight
from .group import DRY_RUN, FINE, OFFLINE, STORE, Answer, alpha_mpi, answering
from .progress import Progress
from .words import Folder, GenerationType


@alpha_mpi.command()
@STORE
@click.argument("generation", type=GenerationType())
@click.argument("dst", type=Folder())
@click.option("--to-key", type=click.Path(dir_okay=False), metavar="FILE", help="The key of DST.")
@OFFLINE
@DRY_RUN
@answering
def cp(store: str, generation: str, dst: str, to_key: str | None, offline: bool, dry_run: bool) -> Answer:
    """Copy a GENERATION of STORE into the store DST, made if it is missing.

    It is verified first, and every byte once more as it is copied. There it is published as a new
    generation with an epoch of its own, as durable as a save; into a store that was used it goes
    only with --offline, since a job that runs there would be superseded. With --to-key the copy is
    signed.

    Exit codes: 0 copied, 1 damaged or refused, 2 wrong usage.
    """
    key = None if to_key is None else read_key(to_key)
    with open_to_read(store) as source:
        chosen = find(source, choose.survey(source), generation)
        with Progress(f"verify {chosen.name}") as progress:
            copying.check_source(source, chosen, progress)
        data = {"name": chosen.name, "to": os.path.abspath(dst), "dry_run": dry_run}
        if dry_run:
            if os.path.lexists(os.path.join(dst, names.STORE_FILE)):
                with Store.open(dst, key=key) as found:
                    copying.check_destination(choose.survey(found), found, chosen, offline)
            files, nbytes = weight(source, chosen.attempt)
            data |= {"files": files, "bytes": nbytes}
            line = f"would copy {chosen.name} to {dst}: {text.count(files, 'file')}, {text.size(nbytes)}"
            return FINE, [line], data
        with (
            Generation.open(source, *chosen.position).present(),
            copying.open_destination(dst, source.algorithm, key) as destination,
            Progress(f"copy {chosen.name}") as progress,
        ):
            made = copying.copy(source, chosen, destination, offline, progress)
    data |= {"published": name_of(made.position), "root": made.root, "bytes": made.nbytes}
    return (
        FINE,
        [f"copied {chosen.name} to {dst} as {name_of(made.position)}, {text.size(made.nbytes)}"],
        data,
    )
