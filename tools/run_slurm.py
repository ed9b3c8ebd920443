"""Run the tests that need Slurm, each file in a Slurm of its own; ends in one line, "N passed, N failed".

Called by ``make test-slurm``, with the interpreter of the environment. Where Slurm is missing it is
installed, if this is Debian or Ubuntu and we are root. Where it cannot be had that is said, and is a
failure; with ``--if-possible`` it is said in one line, "Slurm: not run here, because ...", and counts for
nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

from run_tests import BUILD, Results, tests  # noqa: E402
from slurm.cluster import missing  # noqa: E402

from alpha_mpi.testing import launch  # noqa: E402

PACKAGES = ("slurm-wlm", "munge")
#: Files at once: they mostly wait for Slurm's own times.
BESIDE = 3
#: Longest time of one file, in seconds: for what hangs.
LIMIT = 900
#: These begin first, so that none of them is alone at the end.
LONGEST = ("jobscripts", "loss", "instances")


class Summed(Results):
    """Results of several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, *what: object, **more: object) -> None:
        with self._lock:
            super().add(*what, **more)  # type: ignore[arg-type]


def installed() -> str | None:
    """Whether Slurm is there; it is installed where it can be. Returns None, or why it is not there."""
    if not missing():
        return None
    if shutil.which("apt-get") is None:
        return f"{', '.join(missing())} not found, and this is neither Debian nor Ubuntu"
    if os.geteuid() != 0:
        names = " and ".join(PACKAGES)
        return f"{', '.join(missing())} not found, and only root can install {names}"
    print(f"== installing {' and '.join(PACKAGES)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # An index that is out of reach may be of other packages, or there from before: the installation tells.
    patience = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30"]
    for words in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        told = subprocess.run(
            ["apt-get", "-q", *patience, *words], env=environment, capture_output=True, text=True, check=False
        )
    if told.returncode:
        why = " ".join((told.stderr or told.stdout).split())[-600:]
        return f"{', '.join(missing())} not found, and apt-get install failed: {why}"
    return None if not missing() else f"installed, but {', '.join(missing())} not found"


def fits() -> str | None:
    """Return why the MPI of this environment cannot be started by `srun`, None if it can."""
    try:
        found = launch.family(launch.launcher())
    except FileNotFoundError as error:
        return str(error)
    if found == "mpich":
        return None
    return f"srun starts MPICH here, not {found}: make test-slurm MPI=mpich VENV=.venv-mpich"


def end(passed: int, failed: int, totals: str | None) -> int:
    """Print the closing line; return the exit status."""
    if totals:
        with open(totals, "a") as file:
            file.write(f"{passed} {failed}\n")
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


def main() -> int:
    """Run the suite; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--if-possible", action="store_true", help="no failure where Slurm cannot be installed"
    )
    parser.add_argument("--totals", help="append the closing numbers to this file")
    parser.add_argument("--only", help="run the files whose names contain this")
    options = parser.parse_args()
    why = installed() or fits()
    if why is not None:
        print(f"== Slurm: not run here, because {why}", flush=True)
        return end(0, 0 if options.if_possible else 1, options.totals)

    BUILD.mkdir(exist_ok=True)
    launch.clear_shared_memory()
    results, begin = Summed(), time.monotonic()
    files = sorted((ROOT / "tests" / "slurm").glob("test_*.py"))
    files = [file for file in files if (options.only or "") in file.name]
    files.sort(key=lambda file: not any(word in file.name for word in LONGEST))
    with concurrent.futures.ThreadPoolExecutor(BESIDE) as pool:
        jobs = [
            pool.submit(
                tests,
                results,
                file.stem.removeprefix("test_").replace("_", " "),
                [str(file.relative_to(ROOT)), "-m", "slurm", "--timeout", "300"],
                LIMIT,
                aside=True,
            )
            for file in files
        ]
        for job in jobs:
            job.result()
    print(f"== {time.monotonic() - begin:.0f} s in all, {results.cpu:.0f} s CPU")
    return end(results.passed, results.failed or int(not results.passed), options.totals)


if __name__ == "__main__":
    sys.exit(main())
