"""`alpha-mpi import FILE STORE`: publish the datasets of an HDF5 file as a generation."""

from __future__ import annotations

import os

import click

from ..model.identity import Learner
from .group import FINE, STORE, Answer, alpha_mpi, answering_together, key_file
from .progress import Progress


@alpha_mpi.command("import")
@click.argument("file", type=click.Path())
@STORE
@click.option("--update", type=click.IntRange(min=0), help="The update; by default the one FILE tells.")
@click.option("--cursor", type=click.IntRange(min=0), help="The cursor; by default the one FILE tells.")
@click.option("--learner", help="The learner's label; by default the one FILE tells.")
@answering_together
def import_(file: str, store: str, update: int | None, cursor: int | None, learner: str | None) -> Answer:
    """Publish the datasets of the HDF5 file FILE as the next generation of STORE, made if it is missing.

    FILE is what h5 wrote, or any file of numbers. Under mpiexec or srun each rank is an owner and
    reads its part; otherwise there is one.

    Exit codes: 0 fine, 1 refused, 2 wrong usage.
    """
    from ..importing import import_hdf5  # only now: no other command needs h5py

    with Progress(f"import {os.path.basename(file)}") as progress:
        made = import_hdf5(
            file,
            store,
            update=update,
            cursor=cursor,
            learner=None if learner is None else Learner(learner),
            progress=progress,
            key=key_file(),
        )
    data = {
        "name": made.name,
        "update": made.moment.update,
        "cursor": made.moment.cursor,
        "root": made.root,
    }
    line = f"{made.name}: update {made.moment.update}, cursor {made.moment.cursor}, published in {store}"
    return FINE, [line], data
