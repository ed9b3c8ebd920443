"""Slurm: what a job's environment and Slurm's own commands say. No MPI.

Slurm may be absent, slow or down: whoever asks gets None then, and goes on as without Slurm.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from .errors import Refused
from .format.claim import Claim

#: Seconds after which a command of Slurm counts as silent.
PATIENCE = 10.0
#: States in which a job's processes are alive, or will go on.
ALIVE = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})

#: Runs a command and returns what it printed; None where it is absent, silent, or failed.
Ask = Callable[[Sequence[str]], str | None]

_LEFT = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]{2})", re.ASCII)
_JOB = re.compile(r"[0-9]{1,18}", re.ASCII)


def ask(words: Sequence[str]) -> str | None:
    """Run a command of Slurm; see `Ask`."""
    try:
        done = subprocess.run(
            list(words), stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def job(env: Mapping[str, str] = os.environ) -> str:
    """Return this job's id, other for each task of an array; empty outside Slurm."""
    return env.get("SLURM_JOB_ID", "")


def restart(env: Mapping[str, str] = os.environ) -> int:
    """Return how often this job was requeued."""
    said = env.get("SLURM_RESTART_COUNT", "0")
    return int(said) if said.isascii() and said.isdigit() else 0


def host(env: Mapping[str, str] = os.environ) -> str:
    """Return this machine's name: Slurm's name for the node, else the host name."""
    return env.get("SLURMD_NODENAME", "") or socket.gethostname()


def selector(env: Mapping[str, str] = os.environ) -> str:
    """Return how Slurm's commands name this job alone, and not the whole array."""
    array, task = env.get("SLURM_ARRAY_JOB_ID", ""), env.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task else job(env)


def left_of(text: str) -> float | None:
    """Return what `squeue -o %L` printed, in seconds; None for UNLIMITED, NOT_SET and the like."""
    found = _LEFT.fullmatch(text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def asked_left(env: Mapping[str, str] = os.environ, ask: Ask = ask) -> float | None:
    """Ask Slurm for the seconds left to this job; None where it does not say."""
    if not job(env):
        return None
    said = ask(["squeue", "-h", "-j", selector(env), "-o", "%L"])
    return None if said is None else left_of(said)


def left(
    env: Mapping[str, str] = os.environ, ask: Ask = ask, wall: Callable[[], float] = time.time
) -> float | None:
    """Return the seconds left to this job: from the environment, else asked for.

    None outside a job, and where the job has no limit or nobody says.
    """
    if not job(env):
        return None
    end = env.get("SLURM_JOB_END_TIME", "")
    if end.isascii() and end.isdigit() and 0 < int(end) < 1 << 40:
        return int(end) - wall()
    return asked_left(env, ask)


def running(job: str, host: str, ask: Ask = ask) -> str | None:
    """Return the name of another job if Slurm says that it runs on that host, else None.

    The host tells it from a job of the same number elsewhere: ids begin anew in each cluster.
    """
    said = ask(["squeue", "-h", "-j", job, "-w", host.partition(".")[0], "-o", "%A|%i|%T"])
    for line in (said or "").splitlines():
        number, _, rest = line.strip().partition("|")
        name, _, state = rest.partition("|")
        if number == job and state in ALIVE:
            return name or job
    return None


def check_held(claim: Claim | None, env: Mapping[str, str] = os.environ, ask: Ask = ask) -> None:
    """Refuse (``held``) to continue after a claim whose job is another one and runs, says Slurm.

    The same job requeued is never refused: the newer one wins. Where Slurm does not answer the
    epochs alone keep two jobs apart.
    """
    if claim is None or _JOB.fullmatch(claim.job) is None or claim.job == job(env) or not claim.host:
        return
    name = running(claim.job, claim.host, ask)
    if name is not None:
        raise Refused(
            f"job {name} holds the newest claim (epoch {claim.epoch}) and is running, says Slurm: let it "
            "end or cancel it; resume(takeover=True) takes the store from it",
            code="held",
            expected=f"this job ({job(env) or 'outside Slurm'}), or one that has ended",
            found=f"job {name} on {claim.host}, restart {claim.restart}",
        )
