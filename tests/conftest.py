"""What all tests share: the tally that tools/run_tests.py sums, and one outcome for all ranks."""

from __future__ import annotations

import json
import os
import pathlib
import time

import pytest

#: A folder where each rank appends one line per test; set by tools/run_tests.py.
TALLY = os.environ.get("AM_TEST_TALLY")


def _rank() -> int:
    for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


class Tally:
    """Writes (test, outcome) as each test ends, so that a run that dies leaves what it knew."""

    def __init__(self, folder: str) -> None:
        self.path = pathlib.Path(folder) / f"rank-{_rank()}.jsonl"
        self.outcome: dict[str, str] = {}

    def _append(self, line: dict[str, object]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._append({"begin": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.outcome[report.nodeid] = "failed"
        elif report.when == "call" or report.skipped:
            self.outcome.setdefault(report.nodeid, report.outcome)
        if report.when == "teardown":
            outcome = self.outcome.pop(report.nodeid, "passed")
            self._append({"test": report.nodeid, "outcome": outcome})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._append({"test": report.nodeid or "collection", "outcome": "failed"})

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._append({"end": int(exitstatus)})


class OneOutcome:
    """A test that failed on one rank has failed on all: they leave it together."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm = MPI.COMM_WORLD.Dup()
        self.failed = False

    def pytest_runtest_setup(self) -> None:
        self.failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):  # type: ignore[no-untyped-def]
        report = yield
        self.failed = self.failed or report.failed
        if call.when == "teardown":
            ranks = self._ranks_that_failed()
            if ranks and not self.failed:
                report.outcome = "failed"
                report.longrepr = f"{item.nodeid} failed on rank {', '.join(map(str, ranks))}"
        return report

    def _ranks_that_failed(self) -> list[int]:
        # Polled: a blocking wait would take the core from a rank that still works.
        mine = bytearray([self.failed])
        everyone = bytearray(self.comm.size)
        request = self.comm.Iallgather(mine, everyone)
        while not request.Test():
            time.sleep(0.001)
        return [rank for rank, failed in enumerate(everyone) if failed]


def pytest_configure(config: pytest.Config) -> None:
    if TALLY:
        config.pluginmanager.register(Tally(TALLY))
    if config.getoption("--with-mpi", default=False):
        plugin = OneOutcome()
        if plugin.comm.size > 1:
            config.pluginmanager.register(plugin)
