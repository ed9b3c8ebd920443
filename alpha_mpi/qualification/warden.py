"""Warden: starts short lives on one owner, each in a process of its own, and sees them die.

``python -m alpha_mpi.qualification.warden WHAT STORE OPTIONS``: a process that has no MPI, knows
nothing of any store, and forks, so that no compiler, no launcher and no second start of Python is
needed for each death. Started by `steps`, outside of the launcher's variables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

#: Variables by which launchers and Slurm tell a process that it is one of many.
FOREIGN = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "HYDRA_", "MPIR_", "I_MPI_", "PALS_", "FLUX_", "SLURM_", "MPI_")

Say = Callable[[dict[str, Any]], None]


def alone() -> None:
    """Make this process one owner, whatever started it: no MPI library is found from now on."""
    sys.modules["mpi4py"] = None  # type: ignore[assignment]
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]


def words(what: str, *more: str) -> list[str]:
    """Return the command that starts a warden."""
    return [sys.executable, "-m", "alpha_mpi.qualification.warden", what, *more]


def environment(values: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a warden: none of a launcher, one thread."""
    kept = {name: value for name, value in values.items() if not name.startswith(FOREIGN)}
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path]))
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclasses.dataclass
class Life:
    """What one process said, and how it ended: 0, 1 after an error of ours, minus the signal."""

    said: list[dict[str, Any]]
    code: int

    def last(self, name: str, default: Any = None) -> Any:
        """Return the last value it said under this name."""
        return next((line[name] for line in reversed(self.said) if name in line), default)


class Killer:
    """When a life is killed from outside: so many seconds after it began, or after it said a word."""

    def __init__(self, seconds: float, after: str = "") -> None:
        self.seconds, self.after = seconds, after


def live(work: Callable[[Say], None], limit: float, killer: Killer | None = None) -> Life:
    """Do `work` in a process of its own, and return what it said. Past `limit` seconds it is killed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    begin = time.monotonic()
    end, armed = begin + limit, None
    if killer is not None and not killer.after:
        armed = begin + killer.seconds
    data = b""
    try:
        while True:
            now = time.monotonic()
            stop = min(end, armed) if armed is not None else end
            if now >= stop:
                os.kill(pid, signal.SIGKILL)
                armed, end = None, now + limit  # its pipe closes when it is gone
                if now - begin > 2 * limit:
                    data += b'{"hung": true}\n'
                    break
            ready, _, _ = select.select([reading], [], [], max(0.0, stop - now))
            if not ready:
                continue
            piece = os.read(reading, 1 << 16)
            if not piece:
                break
            data += piece
            if killer is not None and armed is None and killer.after and killer.after.encode() in piece:
                armed = time.monotonic() + killer.seconds
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(reading)
    said = [json.loads(line) for line in data.split(b"\n")[:-1]]
    return Life(said, os.waitstatus_to_exitcode(status))


def _work(work: Callable[[Say], None], writing: int) -> None:
    """Be the process: do it, and end without anything of the parent's."""
    from ..errors import CheckpointError

    def say(line: dict[str, Any]) -> None:
        os.write(writing, json.dumps(line).encode() + b"\n")

    code = 0
    try:
        work(say)
    except CheckpointError as error:
        say({"refused": error.code, "file": error.file, "message": str(error)[:400]})
    except BaseException as error:
        say({"error": f"{type(error).__name__}: {error}"[:400], "trace": traceback.format_exc()[-800:]})
        code = 1
    finally:
        os._exit(code)


def main(arguments: list[str]) -> None:
    """Do what is asked for, and print its check as JSON."""
    alone()
    what, store, options = arguments
    told = json.loads(options)
    random.seed(told.pop("seed", None))
    from . import damage, kills
    from .check import Plan

    plan = Plan(**told.pop("plan"))
    with contextlib.redirect_stdout(sys.stderr):
        tried = {"kills": kills.kills, "damage": damage.damage}[what](store, plan)
    print(json.dumps(tried.as_data()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
