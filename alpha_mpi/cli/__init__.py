"""The command line, `alpha-mpi`: looks at a store, and keeps it in order, on a login node too.

A *command* is one file here. Its GENERATION is an entry's name (`e000001-000003`), an update
(`u120` or `120`), or `latest`. Exit codes: 0 fine, 1 damaged, refused or different, 2 wrong usage.
What they print is made of an exit code, lines and JSON data (`group.Answer`). docs/commands.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def alpha_mpi() -> click.Group:
    """Return the group of all commands; only now is anything loaded."""
    # Each adds itself to the group.
    from . import (  # noqa: F401
        cp,
        diff,
        doctor,
        h5,
        import_,
        interval,
        ls,
        pin,
        plan,
        probe,
        prune,
        qualify,
        rm,
        show,
        unpin,
        verify,
        why,
    )
    from .group import alpha_mpi as group

    return group


def main() -> None:
    """Run the command line; the entry point of the script `alpha-mpi`."""
    alpha_mpi().main(prog_name="alpha-mpi")
