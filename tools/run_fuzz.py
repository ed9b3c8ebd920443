"""Fuzz the decoders and whole stores for some minutes; ends in one line, "N passed, N failed".

Called by ``make fuzz``, with the interpreter of the environment. A target that crashed is printed
with its smallest case, fails, and is not tried again. FUZZ_SECONDS (300) is for all of them together.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import hypothesis  # noqa: E402
from fuzz.targets import TARGETS, tidy  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

#: Examples between two looks at the clock.
ROUND = 50


def fuzz(name: str, seed: int) -> None:
    """Run one round of one target; raises what it found, on its smallest case."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def case(data: st.DataObject) -> None:
        TARGETS[name](data)

    case()


def main() -> int:
    """Run every target in turns; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS") or 300))
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="to see a run again")
    parser.add_argument("--totals", help="append the closing numbers to this file")
    options = parser.parse_args()
    seed = options.seed
    print(f"== {len(TARGETS)} targets for {options.seconds:.0f} s, --seed {seed}", flush=True)
    spent = dict.fromkeys(TARGETS, 0.0)
    rounds = dict.fromkeys(TARGETS, 0)
    failed: set[str] = set()
    while sum(spent.values()) < options.seconds and len(failed) < len(TARGETS):
        name = min((n for n in TARGETS if n not in failed), key=lambda n: spent[n])
        begin = time.monotonic()
        try:
            fuzz(name, seed + rounds[name])
        except KeyboardInterrupt:
            break
        except BaseException:
            print(f"---- {name}, round {rounds[name]} of --seed {seed}:", flush=True)
            traceback.print_exc()
            failed.add(name)
        rounds[name] += 1
        spent[name] += time.monotonic() - begin
    tidy()
    for name in TARGETS:
        outcome = "not ok" if name in failed else "ok"
        print(f"== {name}: {outcome}, {rounds[name] * ROUND} cases, {spent[name]:.0f} s")
    never = sum(rounds[name] == 0 for name in TARGETS)
    passed = len(TARGETS) - len(failed) - never
    if options.totals:
        with open(options.totals, "a") as file:
            file.write(f"{passed} {len(failed) + never}\n")
    print(f"{passed} passed, {len(failed) + never} failed", flush=True)
    return 0 if not failed and not never else 1


if __name__ == "__main__":
    sys.exit(main())
