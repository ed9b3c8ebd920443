"""The group of commands, and how each one ends: 0 fine, 1 damaged, refused or different, 2 wrong usage."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import click

from ..errors import CheckpointError, bounded
from ..store.store import culprit
from . import ranks
from .words import Folder, GenerationType

FINE, DAMAGED, USAGE = 0, 1, 2

#: What a command returns: its exit code, its lines for people, and the same as JSON data.
Answer = tuple[int, list[str], dict[str, Any]]


def answering(command: Callable[..., Answer]) -> Callable[..., None]:
    """Make a function that returns an `Answer` into a click callback with `--json` and `--debug`.

    A refusal, a failing disk and a fault of our own each end in one line on standard error. Under a
    launcher the first rank alone does the work.
    """
    return _callback(command, together=False)


def answering_together(command: Callable[..., Answer]) -> Callable[..., None]:
    """As `answering`, but every rank does its part; only the first one says anything."""
    return _callback(command, together=True)


def _callback(command: Callable[..., Answer], together: bool) -> Callable[..., None]:
    @functools.wraps(command)
    def run(as_json: bool, debug: bool, **arguments: Any) -> None:
        first = ranks.rank() == 0
        if not first and not together:
            return
        try:
            code, lines, data = command(**arguments)
        except click.ClickException:
            raise
        except Exception as error:
            if debug:
                traceback.print_exc()
            if first and as_json:
                click.echo(json.dumps({"error": told(error)}))
            if not first and isinstance(error, CheckpointError):
                return  # the first rank has it too: a launcher that sees our code may end it before it speaks
            who = "" if first else f"rank {ranks.rank()}: "
            click.echo(f"alpha-mpi: {who}{told(error)['message']}", err=True)
            sys.exit(DAMAGED)
        if first:
            click.echo(json.dumps(_finite(data), indent=1) if as_json else "\n".join(lines))
            sys.exit(code)

    run = click.option("--debug", is_flag=True, help="On an error, show where it came from.")(run)
    return click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")(run)


def _finite(data: Any) -> Any:
    """Return data with numbers that JSON has no form for (a document may hold them) as texts."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def told(error: Exception) -> dict[str, str | None]:
    """Return an error as one line, its code and its file."""
    if isinstance(error, CheckpointError):
        return {"message": str(error), "code": error.code, "file": error.file}
    if isinstance(error, OSError):
        name = None if error.filename is None else str(error.filename)
        reason = error.strerror or str(error)
        if isinstance(error, NotADirectoryError) and name is not None:
            reason = f"{reason}: {culprit(name)}"
        return {"message": bounded(f"{name}: {reason}" if name else reason), "code": "io-error", "file": name}
    text = f"internal error, please report it: {type(error).__name__}: {error}"
    return {"message": bounded(text), "code": "internal", "file": None}


_KEY = "alpha_mpi.key"


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_KEY] = value


def STORE(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument STORE, and the option that names its key (`key_file`)."""
    option = click.option(
        "--key",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        expose_value=False,
        callback=_remember,
        help="The key of STORE: a root or claim that it did not sign is refused.",
    )
    return click.argument("store", type=Folder())(option(command))


def key_file() -> str | None:
    """Return the file that the running command was given as key."""
    found: str | None = click.get_current_context().meta.get(_KEY)
    return found


GENERATION = click.argument("generation", type=GenerationType(), required=False, default="latest")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
OFFLINE = click.option(
    "--offline", is_flag=True, help="I say that no job uses the store: its last epoch may be changed too."
)


class Commands(click.Group):
    """The group. Wrong usage ends as every failure does: in one line of the first rank, or in JSON."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; ends the process, as click does, unless `standalone_mode` is False."""
        words = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
        first = ranks.rank() == 0
        words = words or ["--help"]
        try:
            with contextlib.ExitStack() as stack:
                if not first:  # help and version are printed by click: once is enough
                    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                code = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
            sys.exit(code or FINE)
        except click.Abort:
            if first:
                click.echo("alpha-mpi: interrupted", err=True)
            sys.exit(DAMAGED)
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            name = context.command_path if context is not None else "alpha-mpi"
            message = bounded(f"{error.format_message()} (see {name} --help)")
            if first and "--json" in words:
                click.echo(json.dumps({"error": {"message": message, "code": "usage", "file": None}}))
            if first:
                click.echo(f"alpha-mpi: {message}", err=True)
            sys.exit(error.exit_code if first else FINE)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="alpha-mpi")
def alpha_mpi() -> None:
    """Look at a store of checkpoints, and keep it in order. Needs no MPI.

    GENERATION is an entry's name (e000001-000003), an update (u120 or 120), or latest.

    Exit codes: 0 fine, 1 damaged, refused or different, 2 wrong usage.
    """
