"""`alpha-mpi qualify PATH`: whether a file system, and this machine's ranks, keep what a store promises.

With `--gpu`: whether saves and resumes hold on the GPUs of this machine.
"""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import sys
from typing import TYPE_CHECKING

import click

from ..devices.presence import identities
from ..errors import Refused
from . import ranks as started
from .group import DAMAGED, FINE, Answer, alpha_mpi, answering_together
from .words import Folder

if TYPE_CHECKING:
    from ..qualification.report import Report


@alpha_mpi.command()
@click.argument("path", type=Folder(), required=False)
@click.option("--gpu", is_flag=True, help="Qualify the GPUs that this process sees, and not the store.")
@click.option("--in", "folder", type=Folder(), hidden=True)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Also write an HTML page."
)
@click.option(
    "--minutes", type=click.FloatRange(0.1, 600), default=5.0, show_default=True, help="About how long."
)
@click.option(
    "--size", "megabytes", type=click.IntRange(1), help="MiB of each rank to measure with (64; GPU: 1024)."
)
@click.option(
    "--ranks", type=click.IntRange(1, 1024), help="Ranks to start where it runs alone (4; GPU: one each)."
)
@click.option("--quick", is_flag=True, help="A first look in seconds; no qualification.")
@answering_together
def qualify(
    path: str | None,
    gpu: bool,
    folder: str | None,
    output: str | None,
    minutes: float,
    megabytes: int | None,
    ranks: int | None,
    quick: bool,
) -> Answer:
    """Try in a scratch directory at PATH what a store there needs. Under mpiexec or srun with all ranks.

    Reports what was expected and found, and a row for docs/qualification.md. PATH may be a store in
    use, or not exist yet: all but the scratch stays as it is. Exit codes: 0 nothing failed (what was
    not tried is named), 1 a check failed, 2 wrong usage.
    """
    if path is None and not gpu:
        raise click.UsageError("PATH is missing: where stores will lie (or --gpu)")
    if started.size() > 1 and ranks is not None and not gpu:
        raise click.UsageError(
            "--ranks is for a command that starts its ranks itself: the launcher has started them"
        )
    if gpu and (quick or minutes != 5.0):
        raise click.UsageError("--quick and --minutes are for stores: with --gpu give a smaller --size")
    if output is not None and not _writable(output):
        raise click.UsageError(f"-o {output}: no file can be written there")
    place = path or folder or "."
    words = [f"--size {megabytes}"] * (megabytes is not None) + [f"--ranks {ranks}"] * (ranks is not None)
    words += ["--quick"] * quick + [f"--minutes {minutes:g}"] * (minutes != 5.0)
    if gpu:
        return _gpu(place, output, megabytes or 1024, ranks)
    # Loaded here: no other command needs a learner.
    from ..qualification.check import Plan
    from ..qualification.conduct import Conductor, launcher_name

    plan = Plan.of(minutes, (megabytes or 0) << 20, quick)
    command = " ".join(["alpha-mpi", "qualify", shlex.quote(place), *words])

    def say(found: Report) -> None:
        _at_once(found, output)

    if started.size() == 1:
        return _answer(Conductor(place, plan, command, ranks, say).alone(), output)
    under = f"{launcher_name()} -n {started.size()} {command}"
    report = Conductor(place, plan, under, say=say).under_launcher()
    return (FINE, [], {}) if report is None else _answer(report, output)


def _answer(report: Report, output: str | None) -> Answer:
    lines = report.lines()
    if output is not None:
        from ..qualification.page import page

        try:
            pathlib.Path(output).write_text(page(report), encoding="utf-8")
        except OSError as error:
            lines.append(f"the page could not be written: {output}: {error.strerror}")
            return DAMAGED, lines, report.as_data()
        lines.append(f"page: {output}")
    return (FINE if report.fine else DAMAGED), lines, report.as_data()


def _writable(output: str) -> bool:
    """Say whether the page can be written, before minutes go by."""
    where = output if os.path.lexists(output) else os.path.dirname(output) or "."
    return os.access(where, os.W_OK)


def _at_once(report: Report, output: str | None) -> None:
    """Give a report out and end all ranks: this one hangs, and nothing else would."""
    _, lines, data = _answer(report, output)
    click.echo(json.dumps(data, indent=1) if "--json" in sys.argv else "\n".join(lines))
    sys.stdout.flush()


def _gpu(place: str, output: str | None, megabytes: int, ranks: int | None) -> Answer:
    if started.rank() != 0:
        return FINE, [], {}
    devices = identities()
    if not devices:
        raise Refused(
            "nothing was qualified: " + ("CuPy is not installed" if devices is None else "CuPy sees no GPU"),
            code="no-gpu",
            expected="a GPU, its driver, and CuPy (pip install 'alpha-mpi[gpu-cuda12]')",
            found="none",
        )
    from ..qualification.gpu import report_of
    from ..testing import qualify as qualification

    rows = qualification.Qualification(pathlib.Path(place), devices, ranks, megabytes << 20).rows()
    command = f"alpha-mpi qualify {shlex.quote(place)} --gpu --size {megabytes}"
    command += f" --ranks {ranks}" if ranks else ""
    return _answer(report_of(rows, command), output)
