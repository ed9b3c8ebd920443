"""GPU: the rows of `testing.qualify` as a report."""

from __future__ import annotations

from collections.abc import Sequence

from ..testing.qualify import Row
from .check import FAILED, HELD, Check, Plot, Table
from .report import Report, today

#: What each check of a device is called, and what is expected.
EXPECTED = {
    "resume": "five updates in one run, and three and two in fresh processes, publish the same words",
    "shadow": "the same learner with NumPy has the same bits",
    "wrong device": "a resume on another device is refused",
    "corrupt chunk": "one changed bit is refused in a fresh process",
}


def report_of(rows: Sequence[Row], command: str) -> Report:
    """Return the report of the rows of all devices."""
    checks = []
    for number, row in enumerate(rows):
        where = f"device {number}"
        for name, found in row.checks.items():
            verdict = HELD if found == "yes" else FAILED
            checks.append(
                Check(f"{where} {name}", f"{where}: {name}", verdict, EXPECTED.get(name, ""), found)
            )
        rates = {name: value / 1e9 for name, value in row.speeds.items()}
        lines = tuple((name, f"{value:.2f}") for name, value in rates.items())
        checks.append(
            Check(
                f"{where} speed",
                f"{where}: bandwidth",
                HELD,
                "measured, and yours to judge",
                ", ".join(f"{name} {value} GB/s" for name, value in lines),
                tables=(Table("the best of three", ("run", "GB/s"), lines),),
                plots=(
                    Plot("bars", "bandwidth", "GB/s", tuple((n, (round(v, 2),)) for n, v in rates.items())),
                ),
                figures={"device": row.device._asdict(), "ranks": row.ranks, "bytes_per_second": row.speeds},
            )
        )
    facts = tuple((f"device {n}", str(row.device)) for n, row in enumerate(rows))
    return Report(
        "the GPUs of this machine",
        facts,
        tuple(checks),
        command,
        today(),
        tuple(r.line(command) for r in rows),
    )
