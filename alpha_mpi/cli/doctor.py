"""`alpha-mpi doctor [STORE]`: whether what the library stands on is there and works."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

import click

from .. import __version__, slurm
from ..devices.presence import gpus
from ..errors import Refused, bounded
from ..mpi.examine import examine
from ..restore import choose
from ..store import space
from ..store.durable import Directory
from ..store.exposure import exposed_store
from ..store.probe import probe
from ..store.store import Store
from . import ranks, text
from .group import DAMAGED, FINE, Answer, alpha_mpi, answering_together, told
from .words import Folder

_PACKAGES = ("numpy", "mpi4py", "h5py", "xxhash", "msgspec", "ml_dtypes", "click", "blake3")
OK, NOTE, WRONG = "ok", "note", "wrong"


@alpha_mpi.command()
@click.argument("store", required=False, type=Folder())
@answering_together
def doctor(store: str | None) -> Answer:
    """Try out MPI, one-sided reads, the launcher, the GPU, and STORE.

    Start it as the job is started, with mpiexec or srun: then all ranks take part. Exit codes: 0
    nothing is wrong, 1 something is, 2 wrong usage.
    """
    rows = [_versions(), *_mpi(), *_slurm(), _gpu()]
    if store is not None and ranks.rank() == 0:
        rows += _store(store)
    wrong = any(row["verdict"] == WRONG for row in rows)
    lines = text.columns([(row["verdict"], row["what"], row["found"]) for row in rows])
    return (DAMAGED if wrong else FINE), lines, {"wrong": wrong, "checks": rows}


def _row(verdict: str, what: str, found: str) -> dict[str, Any]:
    return {"verdict": verdict, "what": what, "found": bounded(found, 190)}


def _versions() -> dict[str, Any]:
    found = [f"alpha-mpi {__version__}", f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return _row(OK, "versions", ", ".join(found))


def _mpi() -> list[dict[str, Any]]:
    started = ranks.size()
    try:
        found = examine()
    except Exception as error:
        return [_row(WRONG, "MPI", str(told(error)["message"]))]
    if found is None:
        return [_row(NOTE, "MPI", "no MPI library is found: one owner only, as on a login node")]
    enough = found.threads != "SINGLE"
    ranks_ = f"{text.count(found.size, 'rank')} on {text.count(found.nodes, 'node')}"
    rows = [_row(OK, "MPI", f"{found.library}, MPI {found.standard}, {ranks_}")]
    told_ = f"THREAD_{found.threads}"
    rows.append(_row(OK if enough else WRONG, "threads", told_ + ("" if enough else ": no writer may run")))
    if found.seconds is None:
        rows.append(_row(NOTE, "one-sided reads", f"manifests go by messages instead: {found.without}"))
    else:
        microseconds = f"64 KiB by {text.count(found.size, 'rank')} in {1e6 * found.seconds:.0f} us"
        rows.append(_row(OK, "one-sided reads", microseconds))
    if found.size != started:
        rows.append(_row(NOTE, "launcher", f"it says {started} processes, MPI says {found.size}"))
    if hazard := _start_hazard(found.device, os.environ):
        rows.append(_row(NOTE, "start", hazard))
    return rows


def _start_hazard(device: str, env: Mapping[str, str]) -> str | None:
    """Say what makes some starts of MPICH by Slurm's pmi2 on several nodes hang (docs/mpi.md)."""
    by_srun = "PMI_FD" in env and "SLURM_STEP_ID" in env and "HYDI_CONTROL_FD" not in env
    if not by_srun or env.get("SLURM_STEP_NUM_NODES", "1") == "1" or not device.startswith("ch4:"):
        return None
    plain, seen = "FI_PROVIDER='tcp;ofi_rxm'", "docs/mpi.md"
    if "ucx" in device and env.get("MPIR_CVAR_CH4_NETMOD") != "ofi":
        cure = f"MPIR_CVAR_CH4_NETMOD=ofi, without a fast network with {plain}"
        if "ofi" not in device:
            cure = "its own mpiexec inside the job, or srun --mpi=pmix"
        return f"Slurm's pmi2 garbles some addresses of UCX, MPI_Init fails or hangs: {cure} ({seen})"
    if env.get("FI_PROVIDER", "") in ("", "tcp"):
        return f"without a fast network libfabric takes 'tcp', and some starts hang: {plain} ({seen})"
    return None


def _slurm() -> list[dict[str, Any]]:
    job, tasks = slurm.job(), os.environ.get("SLURM_NTASKS", "")
    if not job:
        return [_row(NOTE, "Slurm", "not in a job")]
    step, started = os.environ.get("SLURM_STEP_NUM_TASKS", ""), ranks.size()
    said = f"job {job}, restart {slurm.restart()}, {tasks or '?'} tasks"
    if step.isdigit() and int(step) > 1 and started != int(step):
        row = _row(WRONG, "Slurm", f"{said}: srun started {step} processes, MPI's glue says {started}")
    elif tasks.isdigit() and int(tasks) > 1 and started == 1:
        row = _row(NOTE, "Slurm", f"{said}, and this is one process: start it with srun or mpiexec")
    else:
        row = _row(OK, "Slurm", f"{said}, {text.count(started, 'process', 'processes')}")
    return [row] if ranks.rank() else [row, *_answers()]


def _answers() -> list[dict[str, Any]]:
    """What Slurm's commands say, on the first rank alone."""
    state = slurm.ask(["squeue", "-h", "-j", slurm.selector(), "-o", "%T"])
    if state is None:
        without = "it does not answer: nobody sees whether another job holds a store (docs/slurm.md)"
        rows = [_row(NOTE, "squeue", without)]
    else:
        rows = [_row(OK, "squeue", f"it answers: {state.strip() or 'no such job'}")]
    left = slurm.left()
    if left is None:
        return [*rows, _row(NOTE, "time limit", "none that is known here: no save is due because of it")]
    return [*rows, _row(OK, "time limit", f"{left / 60:.1f} min left")]


def _gpu() -> dict[str, Any]:
    try:
        found = gpus()
    except Exception as error:  # whatever a driver that does not fit raises
        return _row(WRONG, "GPU", f"{type(error).__name__}: {error}")
    if found is None:
        return _row(NOTE, "GPU", "CuPy is not installed")
    return _row(OK if found else NOTE, "GPU", "; ".join(found) or "CuPy sees none")


def _store(path: str) -> list[dict[str, Any]]:
    rows = []
    try:
        with Directory.open(path) as directory:
            given = probe(directory)
            left = space.available(directory)
        way = f"{given.file_system}, names by {given.no_replace}, {text.size(left)} left"
        rows.append(_row(NOTE if given.warnings else OK, "file system", "; ".join([way, *given.warnings])))
    except (OSError, Refused) as error:
        rows.append(_row(WRONG, "file system", str(told(error)["message"])))
        if not os.path.isdir(path):
            return rows
    try:
        with Store.open(path) as opened:
            seen = choose.survey(opened)
            open_to_all = exposed_store(opened)
    except (OSError, Refused) as error:
        return [*rows, _row(WRONG, "store", str(told(error)["message"]))]
    if open_to_all is not None:
        rows.append(_row(NOTE, "access", open_to_all))
    held = text.count(len(seen.lineage), "generation")
    said = f"{opened.id}, {opened.algorithm}, epoch {seen.epoch}, {held} in the lineage"
    if seen.damage is not None:
        rows.append(_row(WRONG, "store", f"{said}; a job is refused: {seen.damage}"))
    else:
        newest = "none yet" if seen.newest is None else seen.newest.name
        rows.append(_row(OK, "store", f"{said}, newest {newest}"))
    return rows
