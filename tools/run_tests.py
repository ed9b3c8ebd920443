"""Run every check in order and end in one line, "N passed, N failed".

Called by ``make test``, with ``--slow`` by ``make test-slow``, and with ``--campaign`` by ``make
faults``, with the interpreter of the environment. A stage that dies or outlives its limit counts as
one failure more. Exit status 0 only if something ran and nothing failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alpha_mpi.testing import launch  # noqa: E402

BUILD = ROOT / "build"
SIZES = (1, 2, 3, 4, 8)
#: Folders of serial tests that take long: a stage of their own, beside the others.
LONG = ("cli", "devices", "durability", "protocol", "qualification", "shim")
#: Longest time of a stage, in seconds: for what hangs, not for what is slow on a busy machine.
LIMITS = {"check": 300, "serial": 900, "mpi": 600, "gates": 900, "slow": 2400, "campaign": 7200}


class Stage(NamedTuple):
    """One run of pytest: `kind` as --only names it, and the ranks it runs on (0: no mpiexec)."""

    kind: str
    name: str
    arguments: list[str]
    limit: int
    ranks: int = 0


class Results:
    """Sums the stages and prints one line for each."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def add(self, stage: str, passed: int, failed: int, seconds: float, why: str = "") -> None:
        self.passed += passed
        self.failed += failed
        note = f"  ({why})" if why else ""
        print(f"== {stage}: {passed} ok, {failed} not ok, {seconds:.0f} s{note}", flush=True)

    @property
    def cpu(self) -> float:
        """Processor time so far: the steady measure, where wall time depends on who else is here."""
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime


def run(command: list[str], limit: int, output: pathlib.Path | None = None, **more: str) -> tuple[int, str]:
    """Run one command in its own process group; return (status, why it was ended or "")."""
    sink = output.open("wb") if output else None
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=launch.environment(more),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT if sink else None,
            start_new_session=True,
        )
        try:
            return process.wait(limit), ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return 124, f"ended after {limit} s"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    finally:
        if sink:
            sink.close()


def check(results: Results, stage: str, *commands: list[str]) -> None:
    """One check (a linter): its commands in order; counts as one."""
    begin = time.monotonic()
    for command in commands:
        status, why = run(command, LIMITS["check"])
        if status:
            results.add(stage, 0, 1, time.monotonic() - begin, why or f"exit status {status}")
            return
    results.add(stage, 1, 0, time.monotonic() - begin)


def ctest(results: Results) -> None:
    """Build and run the C unit tests through ctest; counts the cases that they report."""
    begin = time.monotonic()
    work, log = BUILD / "ctest", BUILD / "ctest.log"
    beside = pathlib.Path(sys.executable).parent / "cmake"
    cmake = str(beside) if beside.exists() else "cmake"
    # A cache made by another CMake or from another folder cannot be used again.
    shutil.rmtree(work, ignore_errors=True)
    passed = failed = 0
    why = ""
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(work), "-DAM_EXTENSION=OFF", "-DAM_TESTS=ON"],
        [cmake, "--build", str(work)],
        [str(pathlib.Path(cmake).with_name("ctest")), "--test-dir", str(work), "--verbose"],
    ):
        status, why = run(command, LIMITS["check"], log)
        text = log.read_text(errors="replace")
        passed, failed = (
            len(re.findall(rf"^[0-9]+: {word} ", text, re.MULTILINE)) for word in ("ok", "NOT OK")
        )
        if status:
            print(text)
            why = why or f"exit status {status}"
            failed = failed or 1
            break
    if not passed + failed:
        failed, why = 1, "ctest ran nothing"
    results.add("C tests", passed, failed, time.monotonic() - begin, why)


def tests(
    results: Results, stage: str, arguments: list[str], limit: int, ranks: int = 0, aside: bool = False
) -> None:
    """One run of pytest, under mpiexec if `ranks`; counts its tests, each once for all ranks.

    What it prints goes to a file if it runs `aside` of other stages.
    """
    begin = time.monotonic()
    label = re.sub(r"\W+", "-", stage)
    tally = BUILD / "tally" / label
    shutil.rmtree(tally, ignore_errors=True)
    tally.mkdir(parents=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", *arguments]
    command = pytest
    if ranks:
        # Ranks above 0 report into files: their lines would mix with those of rank 0.
        command = [*launch.mpiexec(ranks), sys.executable, str(ROOT / "tools" / "rank_output.py"), str(tally)]
        command += [*pytest, "--with-mpi", "--only-mpi", "--timeout", "120", "--timeout-method", "thread"]
    output = tally / "output.txt" if aside else None
    status, why = run(command, limit, output, AM_TEST_TALLY=str(tally))

    outcomes: dict[str, str] = {}
    inside: set[str] = set()
    ended = 0
    for file in sorted(tally.glob("rank-*.jsonl")):
        running = ""
        for text in file.read_text().splitlines():
            line = json.loads(text)
            if "begin" in line:
                running = line["begin"]
                continue
            running = ""
            if "end" in line:
                ended += 1
            elif outcomes.get(line["test"]) != "failed":
                outcomes[line["test"]] = line["outcome"]
        if running:
            inside.add(running)
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    failed = sum(outcome == "failed" for outcome in outcomes.values())
    skipped = len(outcomes) - passed - failed
    if not why and ended < max(ranks, 1):
        why = f"{max(ranks, 1) - ended} of {max(ranks, 1)} processes died, exit status {status}"
    if not why and status and not failed:
        why = f"exit status {status}" + (", no tests were found" if status == 5 else "")
    if why:
        failed += 1
        why += f", inside {', '.join(sorted(inside))}" if inside else ""
    if failed and output is not None:
        print(f"---- output of {stage}:\n{output.read_text(errors='replace')[-20000:]}")
    if failed and ranks:
        for file in sorted(tally.glob("rank-*.txt")):
            print(f"---- output of {file.stem}:\n{file.read_text(errors='replace')[-6000:]}")
    notes = [why] if why else []
    if skipped:
        notes.append(f"{skipped} skipped")
    results.add(stage, passed, failed, time.monotonic() - begin, ", ".join(notes))


def lane(results: Results, stages: collections.deque[Stage], first: bool) -> None:
    """Run stages from one end until none is left; a fault of this program counts as a failure too."""
    while True:
        try:
            stage = stages.popleft() if first else stages.pop()
        except IndexError:
            return
        try:
            tests(results, stage.name, stage.arguments, stage.limit, stage.ranks, aside=first)
        except BaseException as error:
            results.add(stage.name, 0, 1, 0, f"{type(error).__name__}: {error}")
            raise


def conclude(results: Results, begin: float, totals: str | None) -> int:
    """Say what all stages came to, and append it to the file `totals`; return the exit status."""
    print(f"== {time.monotonic() - begin:.0f} s in all, {results.cpu:.0f} s CPU")
    if totals:
        with open(totals, "a") as file:
            file.write(f"{results.passed} {results.failed}\n")
    print(f"{results.passed} passed, {results.failed} failed", flush=True)
    return 0 if results.passed and not results.failed else 1


def main() -> int:
    """Run the suite; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slow", action="store_true", help="run the slow suite instead of the ordinary one")
    parser.add_argument("--campaign", action="store_true", help="run the long sweeps instead")
    parser.add_argument(
        "--only", action="append", help="run these stages alone: check, serial, mpi, gates, survivors"
    )
    parser.add_argument("--sizes", help="rank counts of the MPI tests, for example 2,4")
    parser.add_argument("--lanes", type=int, default=3, help="stages at a time (default: 3)")
    parser.add_argument("--totals", help="append the closing numbers to this file")
    options = parser.parse_args()
    chosen = set(options.only or ("check", "serial", "mpi", "gates"))
    sizes = [int(n) for n in options.sizes.split(",")] if options.sizes else SIZES

    BUILD.mkdir(exist_ok=True)
    launch.clear_shared_memory()
    results = Results()
    python = sys.executable
    begin = time.monotonic()
    if options.slow or options.campaign:
        mark = "campaign" if options.campaign else "slow"
        others = [f"--ignore={ROOT / 'tests' / 'mpi'}"]
        tests(results, f"{mark} tests", ["tests", *others, "-m", mark, "--timeout", "1800"], LIMITS[mark])
    else:
        if "check" in chosen:
            ctest(results)
            check(results, "ruff check", [python, "-m", "ruff", "check", "."])
            check(results, "ruff format", [python, "-m", "ruff", "format", "--check", "."])
            check(results, "mypy", [python, "-m", "mypy"])
        quick = ["-m", "not slow and not campaign and not slurm"]
        apart = ("mpi", "gates", "survivors", "slurm", *LONG)
        others = [f"--ignore={ROOT / 'tests' / name}" for name in apart]
        long = [f"tests/{name}" for name in LONG]
        every = [
            Stage("gates", "gates", ["tests/gates", *quick], LIMITS["gates"]),
            Stage("serial", "serial tests", ["tests", *others, *quick], LIMITS["serial"]),
            Stage("serial", "serial tests, long", [*long, *quick], LIMITS["serial"]),
            # Only with an MPI that lets the others live when one rank dies; asked for by .ci/run.
            Stage("survivors", "survivors", ["tests/survivors"], LIMITS["gates"]),
            *(
                Stage("mpi", f"MPI tests, {n} ranks", ["tests/mpi", *quick], LIMITS["mpi"], n)
                for n in sorted(sizes)
            ),
        ]
        # Several at a time, from both ends: ranks mostly wait, and whoever is done first takes what is left.
        stages = collections.deque(stage for stage in every if stage.kind in chosen)
        aside = [
            threading.Thread(target=lane, args=(results, stages, True)) for _ in range(options.lanes - 1)
        ]
        for thread in aside:
            thread.start()
        lane(results, stages, first=False)
        for thread in aside:
            thread.join()
    return conclude(results, begin, options.totals)


if __name__ == "__main__":
    sys.exit(main())
