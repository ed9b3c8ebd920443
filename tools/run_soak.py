"""The long test: one training, many jobs, faults at random; ends in one line, "N passed, N failed".

Called by ``make soak``, with the interpreter of the environment. SOAK_MINUTES (30) is how long faults
are injected. Under a Slurm of its own where there is one or it can be installed, else under mpiexec.
The same ``--seed`` chooses the same faults; when they strike depends on the machine too.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools")]

from run_slurm import end, fits, installed  # noqa: E402
from slurm.cluster import Cluster  # noqa: E402
from slurm.soak import PROMISES, Alone, Campaign, Report, UnderSlurm  # noqa: E402

from alpha_mpi.testing import launch  # noqa: E402


def campaign(folder: pathlib.Path, seed: int, seconds: float, slurm: bool) -> Report:
    """Run one campaign; return what it has seen."""
    rng, run = random.Random(seed), folder / "run"
    run.mkdir()
    if not slurm:
        return Campaign(run, rng, Alone(run, rng)).run(seconds)
    with Cluster(folder / "slurm", nodes=5, cpus=4) as cluster:
        return Campaign(run, rng, UnderSlurm(cluster, run, rng)).run(seconds)


def main() -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES") or 30))
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="to see a run again")
    parser.add_argument("--alone", action="store_true", help="under mpiexec, without Slurm")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    parser.add_argument("--totals", help="append the closing numbers to this file")
    options = parser.parse_args()
    why = "as asked" if options.alone else installed() or fits()
    where = "in a Slurm of its own" if why is None else f"under mpiexec, without Slurm: {why}"
    print(f"== {options.minutes:g} minutes {where}, --seed {options.seed}", flush=True)

    launch.clear_shared_memory()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="am-soak-"))
    try:
        report = campaign(folder, options.seed, 60 * options.minutes, why is None)
    finally:
        if options.keep:
            print(f"== left: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for line in report.lines():
        print(f"== {line}")
    for promise in PROMISES:
        problem = report.problems.get(promise)
        print(f"== {promise}: {'ok' if problem is None else 'not ok: ' + problem}")
    failed = len(report.problems)
    return end(len(PROMISES) - failed, failed, options.totals)


if __name__ == "__main__":
    sys.exit(main())
