"""Build and judge what power cuts may leave of a store; ends in one line, "N passed, N failed".

Called by ``make durability``, with the interpreter of the environment; tests/durability says how. One
line for each recording says how many states there were. The same seed draws the same states of the
same recording; which rank is faster differs from run to run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from run_tests import BUILD, Results, conclude, tests  # noqa: E402

from alpha_mpi.testing import launch  # noqa: E402

#: Longest time of all, in seconds: for what hangs, not for what is slow on a busy machine.
LIMIT = 3600


def main() -> int:
    """Run the suite; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--bound",
        type=int,
        default=256,
        help="states of one cut up to which all are looked at (default: 256)",
    )
    parser.add_argument("--seed", type=int, default=1, help="what is drawn above the bound (default: 1)")
    parser.add_argument("--only", help="run the tests that this expression of pytest -k selects")
    parser.add_argument("--totals", help="append the closing numbers to this file")
    options = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    launch.clear_shared_memory()
    report = BUILD / "durability.txt"
    report.unlink(missing_ok=True)
    os.environ |= {
        "AM_DURABILITY_BOUND": str(options.bound),
        "AM_DURABILITY_SEED": str(options.seed),
        "AM_DURABILITY_REPORT": str(report),
    }
    begin, results = time.monotonic(), Results()
    print(f"== power cuts, --bound {options.bound} --seed {options.seed}", flush=True)
    chosen = ["-k", options.only] if options.only else []
    tests(results, "durability", ["tests/durability", *chosen], LIMIT)
    if report.exists():
        print("".join(f"   {line}\n" for line in report.read_text().splitlines()), end="")
    return conclude(results, begin, options.totals)


if __name__ == "__main__":
    sys.exit(main())
