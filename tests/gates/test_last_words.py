"""What a rank says last reaches the user, also when the launcher's proxy is late to hear of it, and the
code says what happened, also when srun's SIGTERM or a Ctrl-C comes meanwhile."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
import sys

from alpha_mpi.testing import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Without the pause before an Abort, a fourth of such starts lost all (Hydra 5.0.2).
STARTS = 12

#: One rank fails while the process that carries its words stands still: as on a busy machine.
FAILS = """
import os, signal, subprocess, sys, time
import alpha_mpi as am
from mpi4py import MPI

def main():
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        proxy = os.getppid()
        os.kill(proxy, signal.SIGSTOP)
        with open(os.devnull, "r+") as nothing:
            me = os.getpid()
            go_on = ["sh", "-c", f"sleep 0.3; kill -CONT {proxy}; sleep 0.3; kill -TERM {me}; kill -INT {me}"]
            subprocess.Popen(go_on, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
        time.sleep(0.1)
        print("the report")
        raise RuntimeError("the reason")
    time.sleep(60)

am.run(main)
"""


def start(_: int) -> subprocess.CompletedProcess[str]:
    env = launch.environment({"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])})
    words = [*launch.mpiexec(2), sys.executable, "-c", FAILS]
    return subprocess.run(
        words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_reason_is_not_lost_on_the_way() -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for told in pool.map(start, range(STARTS)):
            assert told.returncode == 1, told
            assert "the report" in told.stdout and "RuntimeError: the reason" in told.stderr, told
