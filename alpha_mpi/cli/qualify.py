"""`alpha-mpi qualify --gpu`: whether saves and resumes hold on the GPUs of this machine."""

from __future__ import annotations

import pathlib
from typing import Any

import click

from ..devices.presence import identities
from ..errors import Refused
from . import text
from .group import DAMAGED, FINE, Answer, alpha_mpi, answering
from .words import Folder


@alpha_mpi.command()
@click.option("--gpu", is_flag=True, required=True, help="On the GPUs that this process sees.")
@click.option("--in", "folder", type=Folder(), default=".", help="Where to make scratch stores (here).")
@click.option("--ranks", type=click.IntRange(1), help="Ranks that train together (one per GPU, at least 2).")
@click.option("--size", "megabytes", type=click.IntRange(1), default=1024, help="MiB to measure with.")
@answering
def qualify(gpu: bool, folder: str, ranks: int | None, megabytes: int) -> Answer:
    """Train, save, resume, damage and move small jobs on every GPU, and measure the staging.

    Every job runs in fresh processes. Prints a row for docs/qualification.md for each GPU. Exit codes: 0
    all held, 1 something did not, or there is no GPU and nothing was tried, 2 wrong usage.
    """
    devices = identities()
    if not devices:
        raise Refused(
            "nothing was qualified: " + ("CuPy is not installed" if devices is None else "CuPy sees no GPU"),
            code="no-gpu",
            expected="a GPU, its driver, and CuPy (pip install 'alpha-mpi[gpu-cuda12]')",
            found="none",
        )
    # Loaded here: no other command needs a learner.
    from ..testing import qualify as qualification

    rows = qualification.Qualification(pathlib.Path(folder), devices, ranks, megabytes << 20).rows()
    command = f"alpha-mpi qualify --gpu --size {megabytes}" + (f" --ranks {ranks}" if ranks else "")
    lines, data = [], []
    for row in rows:
        lines += [str(row.device)]
        lines += text.columns([(f"  {name}", found) for name, found in row.checks.items()])
        lines += text.columns([(f"  {name}", f"{v / 1e9:.2f} GB/s") for name, v in row.speeds.items()])
        lines += [row.line(command)]
        one: dict[str, Any] = {"device": row.device._asdict(), "ranks": row.ranks, "date": row.date}
        data.append({**one, "checks": row.checks, "bytes_per_second": row.speeds})
    return (FINE if all(row.fine for row in rows) else DAMAGED), lines, {"rows": data, "command": command}
