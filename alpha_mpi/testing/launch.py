"""Find the launcher that fits this interpreter; start MPI jobs; kill a whole job at once.

Called by tests, benchmarks and the demo; never by the library itself. Needs no MPI to import.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

#: Names the launcher when the one beside the interpreter or on the path is not the right one.
OVERRIDE = "ALPHA_MPI_MPIEXEC"

#: Variables by which a launcher tells a process its rank in the world.
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")

# One thread per rank: ranks outnumber cores in tests, and the bits of a product may depend on it.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Open MPI starts neither as root (containers) nor with more ranks than cores unless told twice.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_osc": "^ucx",
}


def launcher() -> str:
    """Return the path of the launcher.

    In this order: the variable `ALPHA_MPI_MPIEXEC`, the one beside the interpreter (an MPI wheel in a
    virtual environment), the one on the path (a site's MPI). Raises FileNotFoundError otherwise.
    """
    named = os.environ.get(OVERRIDE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise FileNotFoundError(f"{OVERRIDE} names {named}, which cannot be run")
        return found
    beside = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
    found = beside or shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError(
            "no mpiexec beside the interpreter or on the path: load a module or pip install mpich"
        )
    return found


@functools.cache
def family(path: str) -> str:
    """Return "openmpi", "mpich" (also its descendants), or "other" for the launcher at `path`."""
    told = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=60, check=False, env=environment()
    )
    text = (told.stdout + told.stderr).lower()
    if "open mpi" in text or "openrte" in text or "prrte" in text:
        return "openmpi"
    return "mpich" if "hydra" in text or "mpich" in text or "intel(r) mpi" in text else "other"


def mpiexec(ranks: int) -> list[str]:
    """Return the words before the program that start it on `ranks` ranks, more than cores or not."""
    path = launcher()
    more = ["--oversubscribe"] if family(path) == "openmpi" else []
    return [path, *more, "-n", str(ranks)]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment, made fit for a job of many ranks on few cores."""
    # A launcher started from inside a rank must not take itself for one.
    values = {
        name: value
        for name, value in os.environ.items()
        if name not in RANK_VARIABLES and not name.startswith(("PMI_", "PMIX_", "OMPI_COMM_WORLD_"))
    }
    values.update(dict.fromkeys(_ONE_THREAD, "1"))
    values.update(_OPEN_MPI)
    # The launcher's own directory first, so that its helper programs are found beside it.
    first = os.path.dirname(sys.executable)
    values["PATH"] = first + os.pathsep + values.get("PATH", os.defpath)
    values.update(extra or {})
    return values


def start(ranks: int, program: Sequence[str], extra: Mapping[str, str] | None = None, **how: object) -> Job:
    """Start `program` on `ranks` ranks in a session of its own; `how` goes to `subprocess.Popen`."""
    command = [*mpiexec(ranks), *program]
    process = subprocess.Popen(command, env=environment(extra), start_new_session=True, **how)  # type: ignore[call-overload]
    return Job(process)


class Job:
    """A job started here. `process` is its launcher."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def members(self) -> list[int]:
        """Return the launcher and every process below it that lives now."""
        return [self.process.pid, *descendants(self.process.pid)]

    def kill(self) -> None:
        """End the whole job with SIGKILL, as a power cut would, and wait until it is gone.

        Everything is stopped first: a launcher that dies must not find time to end its ranks politely.
        """
        seen: set[int] = set()
        while True:
            new = [pid for pid in self.members() if pid not in seen]
            if not new:
                break
            for pid in new:
                _signal(pid, signal.SIGSTOP)
            seen.update(new)
        for pid in seen:
            _signal(pid, signal.SIGKILL)
        self.process.wait()
        while any(_lives(pid) for pid in seen):  # a rank may still be finishing its last system call
            time.sleep(0.005)


def clear_shared_memory(folder: str = "/dev/shm", age: float = 60.0) -> list[str]:
    """Remove the segments of MPICH that killed ranks have left; return their names.

    A rank that is killed leaves some megabytes of memory under a name, and a later job that comes to
    the same name waits for ever in MPI_Init. Only ours, that no process has mapped and that are older
    than `age` seconds.
    """
    mapped: set[str] = set()
    left = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/maps", errors="replace") as file:
                    mapped.update(line.split()[-1] for line in file if "/mpich_shm_" in line)
            except OSError:
                continue
    for entry in os.scandir(folder) if os.path.isdir(folder) else ():
        try:
            told = entry.stat(follow_symlinks=False)
            old = time.time() - told.st_mtime > age
            ours = entry.name.startswith("mpich_shm_") and told.st_uid == os.getuid()
            if ours and old and entry.path not in mapped:
                os.unlink(entry.path)
                left.append(entry.name)
        except OSError:
            continue  # it went away meanwhile
    return left


def descendants(pid: int) -> list[int]:
    """Return every living process below `pid`, found through /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        parent = _parent(int(name)) if name.isdigit() else None
        if parent is not None:
            children.setdefault(parent, []).append(int(name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


def _parent(pid: int) -> int | None:
    """Return the parent of a living process; None for a dead one, a zombie included."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except OSError:
        return None
    return None if state in (b"Z", b"X") else int(parent)


def _lives(pid: int) -> bool:
    return _parent(pid) is not None


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
