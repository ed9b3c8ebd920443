"""`alpha-mpi probe PATH`: what the file system at PATH gives a store."""

from __future__ import annotations

import click

from ..store import space
from ..store.durable import Directory
from ..store.exposure import exposed
from ..store.probe import probe as ask
from . import text
from .group import FINE, Answer, alpha_mpi, answering
from .words import Folder


@alpha_mpi.command()
@click.argument("path", type=Folder())
@answering
def probe(path: str) -> Answer:
    """Try at PATH, an existing directory, whether its file system can keep what a store promises.

    Makes a scratch directory there and removes it. Exit codes: 0 it can, 1 it cannot, 2 wrong usage.
    """
    with Directory.open(path) as directory:
        found = ask(directory)
        left = space.available(directory)
        open_to_all = exposed([directory])
    warnings = [*found.warnings, *([open_to_all] if open_to_all is not None else [])]
    data = {
        "path": directory.path,
        "file_system": found.file_system,
        "no_replace": found.no_replace,
        "free_bytes": found.free_bytes,
        "available_bytes": left,
        "free_files": found.free_files,
        "warnings": warnings,
    }
    ways = {"rename": "renameat2 with no-replace", "link": "link, then unlink"}
    quota = "" if left >= found.free_bytes else f"; a quota leaves {text.size(left)}"
    lines = text.columns(
        [
            ("file system", found.file_system),
            ("a name is taken by", ways[found.no_replace]),
            ("directories", "can be synced"),
            ("free", f"{text.size(found.free_bytes)}, {found.free_files:,} files{quota}"),
        ]
    )
    return FINE, [*lines, *(f"warning: {w}" for w in warnings)], data
