"""`alpha-mpi h5 STORE [GENERATION]`: a generation as an HDF5 file, as a view of its packs or as a copy."""

from __future__ import annotations

import os
from typing import Any

import click

from ..errors import quoted
from ..restore import choose
from ..restore.generation import Generation
from ..restore.verify import verify as judge
from ..store import names
from . import ranks, text
from .generation import find, open_to_read
from .group import FINE, GENERATION, STORE, Answer, alpha_mpi, answering_together, key_file
from .progress import Progress


@alpha_mpi.command()
@STORE
@GENERATION
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="The file; by default in STORE.")
@click.option("--copy", is_flag=True, help="Write a file that needs no store, not a view of its packs.")
@click.option("--compress", is_flag=True, help="Pack the datasets of a copy with gzip.")
@click.option("--no-verify", is_flag=True, help="Make the view of what is there, whole or not; it says so.")
@click.option("--replace", is_flag=True, help="Replace FILE if it exists.")
@answering_together
def h5(
    store: str,
    generation: str,
    output: str | None,
    copy: bool,
    compress: bool,
    no_verify: bool,
    replace: bool,
) -> Answer:
    """Show a generation of STORE as an HDF5 file whose data are the packs of STORE: no word is copied.

    Reads and verifies every byte first, since HDF5 reads a damaged pack as if it were whole. In the
    store's folder any HDF5 tool opens the file at once; from elsewhere set
    HDF5_EXTFILE_PREFIX='${ORIGIN}'. With --copy the file stands for itself, and -o names it; under
    mpiexec or srun all ranks write a copy together.

    Exit codes: 0 fine, 1 damaged or refused, 2 wrong usage.
    """
    from ..interop import hdf5  # only now: no other command needs h5py

    if copy and output is None:
        raise click.UsageError("a copy does not lie in the store: name it with -o FILE")
    if compress and not copy:
        raise click.UsageError("--compress is for copies: give --copy")
    if copy and no_verify:
        raise click.UsageError("a copy is verified while it is written: --no-verify is for views")
    together = copy and ranks.size() > 1
    if ranks.rank() and not together:
        return FINE, [], {}  # one process makes a view
    with open_to_read(store) as opened:
        found = find(opened, choose.survey(opened), generation)
        target = output or os.path.join(opened.path, names.view(*found.position))
        if not together:  # else all ranks learn it
            hdf5.check_target(target, replace)
        if not copy and not no_verify:
            with Progress(f"verify {found.name}") as progress:
                report = judge(opened, *found.position, progress)
            if not report.whole:
                raise report.problems[0]
        read = Generation.open(opened, *found.position)
        if together:
            from ..exporting import export_copy

            with Progress(f"copy {found.name}") as progress:
                made = export_copy(
                    opened.path,
                    found.position,
                    target,
                    compress=compress,
                    replace=replace,
                    progress=progress,
                    key=key_file(),
                )
        elif copy:
            with Progress(f"copy {found.name}") as progress:
                made = hdf5.write_copy(read, target, compress=compress, replace=replace, progress=progress)
        else:
            made = hdf5.write_view(read, target, verified=not no_verify, replace=replace)
    data: dict[str, Any] = {
        "path": made.path,
        "generation": made.generation,
        "kind": "copy" if copy else "view",
        "verified": copy or not no_verify,
        "bytes": os.path.getsize(made.path),
        "datasets": made.datasets,
        "bits": list(made.bits),
        "missing": list(made.missing),
        "environment": {} if copy else {hdf5.PREFIX_VARIABLE: hdf5.PREFIX},
    }
    return FINE, _lines(data), data


def _lines(data: dict[str, Any]) -> list[str]:
    verified = "verified" if data["verified"] else "not verified"
    facts = [text.count(len(data["datasets"]), "dataset"), text.size(data["bytes"]), verified]
    lines = [f"{data['generation']}: {data['kind']} {data['path']}, {', '.join(facts)}"]
    for name in data["bits"]:
        lines.append(
            f"  region {quoted(name, 100)}: HDF5 has no such numbers, shown as their bits (--copy: float32)"
        )
    for name in data["missing"]:
        lines.append(
            f"  region {quoted(name, 100)}: left out, in more pieces than a view can name (--copy holds it)"
        )
    for name, value in data["environment"].items():
        lines.append(f"from another folder than the file's: export {name}='{value}'")
    return lines
