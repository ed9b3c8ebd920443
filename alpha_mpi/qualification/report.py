"""Report: what all checks found, as text for people, as data for programs, and as a row for a page."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from .check import FAILED, HELD, NOT_TRIED, PARTLY, Check, shorten

#: The columns of docs/qualification.md for stores.
COLUMNS = (
    *("date", "where", "ranks on nodes", "names", "seen after, median / most", "kills"),
    *(
        "bits refused",
        "resumed the same",
        "save / plain, GB/s",
        "resume / plain, GB/s",
        "save of 4 KiB",
        "command",
    ),
)


@dataclasses.dataclass(frozen=True)
class Report:
    """What a qualification found.

    Attributes
    ----------
    subject : str
        What was qualified: a path, or the GPUs of a machine.
    facts : tuple of (str, str)
        Where and with what it was run.
    checks : tuple of Check
        In the order in which people read them.
    command : str
        As it was started.
    date : str
        The day, ISO 8601.
    rows : tuple of str
        What a site appends to docs/qualification.md.
    left : tuple of str
        What could not be removed.
    quick : bool
        Whether it was a first look, which qualifies nothing and has no row.
    """

    subject: str
    facts: tuple[tuple[str, str], ...]
    checks: tuple[Check, ...]
    command: str
    date: str
    rows: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    quick: bool = False

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.verdict == FAILED]

    @property
    def open(self) -> list[Check]:
        """The checks that were not tried, or not to their end."""
        return [check for check in self.checks if check.verdict in (NOT_TRIED, PARTLY)]

    @property
    def qualified(self) -> bool:
        """Whether something was tried, and nothing failed, in more than a first look."""
        return self.fine and not self.quick

    @property
    def fine(self) -> bool:
        """Whether something was tried, and nothing failed."""
        return not self.failed and any(check.verdict == HELD for check in self.checks) and not self.left

    @property
    def verdict(self) -> str:
        """One sentence: qualified or not, and what was not covered."""
        if not self.fine:
            why = [f"{check.title.lower()} ({check.verdict})" for check in self.failed]
            why += ["something could not be removed"] if self.left else []
            return f"NOT QUALIFIED: {'; '.join(why) or 'nothing was tried'}"
        rest = [f"{check.title.lower()} ({check.verdict})" for check in self.open]
        told = "NOTHING FAILED, in a first look, which qualifies nothing" if self.quick else "QUALIFIED"
        told += f", but not covered: {'; '.join(rest)}" if rest else ""
        warned = [warning for check in self.checks for warning in check.figures.get("warnings", ())]
        return told + (f". WARNING: {'; '.join(warned)}" if warned else "")

    def lines(self) -> list[str]:
        """Return the report for people."""
        lines = [f"Qualification of {self.subject}"]
        facts = (*self.facts, ("command", self.command))
        width = max(len(name) for name, _ in facts)
        lines += [f"  {name.ljust(width)}  {value}" for name, value in facts]
        for check in self.checks:
            took = f" ({shorten(check.seconds)})" if check.seconds else ""
            lines += ["", f"{check.verdict.upper():<10} {check.title}{took}"]
            if check.expected:
                lines.append(f"  expected: {check.expected}")
            lines.append(f"  found:    {check.found}")
            lines += [f"  note:     {note}" for note in check.notes if note != check.found]
            lines += [f"  to do:    {check.remedy}"] if check.remedy else []
        lines += ["", self.verdict]
        lines += [f"could not be removed: {path}" for path in self.left]
        if self.rows:
            lines += ["", "For docs/qualification.md:", *self.rows]
        return lines

    def as_data(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "subject": self.subject,
            "qualified": self.qualified,
            "quick": self.quick,
            "verdict": self.verdict,
            "facts": dict(self.facts),
            "checks": [check.as_data() for check in self.checks],
            "command": self.command,
            "date": self.date,
            "rows": list(self.rows),
            "left": list(self.left),
        }


def today() -> str:
    """Return the day, ISO 8601."""
    return datetime.date.today().isoformat()


def row(where: str, checks: Sequence[Check], command: str, date: str) -> str:
    """Return the row of a store for docs/qualification.md, in the order of `COLUMNS`."""
    by_key = {check.key: check for check in checks}

    def cell(key: str, text: str) -> str:
        check = by_key.get(key)
        if check is None or (check.verdict == NOT_TRIED and not check.figures):
            return "not tried"
        try:
            told = text.format(**{**check.figures, "most": check.figures.get("most") or 0.0})
        except (KeyError, TypeError, ValueError):
            told = ""
        if check.verdict == FAILED:
            return "**no**" + (f" ({told})" if told else "")
        return f"{told} ({check.verdict})" if check.verdict == PARTLY else told

    def figures(key: str) -> dict[str, Any]:
        check = by_key.get(key)
        return {} if check is None else check.figures

    seen, fast = figures("visibility"), figures("speed")
    visible = "not tried"
    if seen.get("median") is not None:
        visible = f"{shorten(seen['median'])} / {shorten(seen['most'])}"
        visible += "" if seen.get("across") else " (one node)"
    check = by_key.get("visibility")
    if check is not None and check.verdict == FAILED:
        visible = f"**no** ({visible})"
    rates = {
        name: f"{fast[f'{a}_bytes_per_second'] / 1e9:.2f} / {fast[f'{b}_bytes_per_second'] / 1e9:.2f}"
        for name, a, b in (("save", "save", "write"), ("resume", "resume", "read"))
        if f"{a}_bytes_per_second" in fast
    }
    small = fast.get("small_save_seconds")
    missing = "**no**" if any(c.key == "speed" and c.verdict == FAILED for c in checks) else "not tried"
    cells = (
        *(date, where, cell("shared", "{ranks} on {nodes}"), cell("race", "{names:,}"), visible),
        *(cell("kills", "{kills}"), cell("damage", "{tried}"), cell("equivalence", "{trainings}")),
        *(rates.get("save", missing), rates.get("resume", missing)),
        *(missing if small is None else shorten(small), f"`{command}`"),
    )
    return f"| {' | '.join(' '.join(one.replace('|', '/').split()) for one in cells)} |"
