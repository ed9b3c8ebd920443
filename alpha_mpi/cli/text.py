"""Text: how numbers and tables look on a terminal. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import bounded


def size(nbytes: int) -> str:
    """Return a number of bytes for people: three digits and a binary unit."""
    amount, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1000 or unit == "PiB":
            break
        amount /= 1024
    return f"{nbytes} B" if unit == "B" else f"{amount:.3g} {unit}"


def age(seconds: float | None) -> str:
    """Return how long ago something was, for people: one number and its unit."""
    if seconds is None:
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def columns(rows: Iterable[Sequence[object]], right: Sequence[int] = (), limit: int = 200) -> list[str]:
    """Return lines with aligned columns, two spaces apart; the columns in `right` end flush.

    A cell of more than `limit` characters is cut.
    """
    table = [[bounded(str(cell), limit) for cell in row] for row in rows]
    if not table:
        return []
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def count(number: int, one: str, many: str | None = None) -> str:
    """Return "1 pack" or "3 packs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def plain(data: Any) -> Any:
    """Return labels as people wrote them: `{"$float": ...}` and `{"$int": ...}` as numbers."""
    if isinstance(data, dict):
        try:
            if set(data) == {"$float"}:
                return float.fromhex(data["$float"])
            if set(data) == {"$int"}:
                return int(data["$int"])
        except (TypeError, ValueError, OverflowError):
            return data
        return {key[1:] if key.startswith("$") else key: plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(value) for value in data]
    return data


def labels(data: Mapping[str, Any]) -> str:
    """Return the labels of a learner or a contract that say something, on one line."""
    told = plain(data)
    name = told.pop("label", None)
    told.update(told.pop("labels", None) or {})
    parts = [str(name)] * bool(name)
    for key, value in sorted(told.items()):
        if value not in (None, "", [], {}):
            parts.append(f"{key} {' '.join(map(str, value)) if isinstance(value, list) else value}")
    return ", ".join(parts)


def layout(rule: Any) -> str:
    """Return a layout rule as a call: `rows(axis=0)`."""
    told = dict(rule)
    word = told.pop("rule", "?")
    inner = ", ".join(f"{key}={layout(value) if key == 'of' else value}" for key, value in told.items())
    return f"{word}({inner})"


def accepted(pairs: Iterable[Sequence[str]]) -> list[str]:
    """Return what a claim says was accepted although it differs: one line for each."""
    lines = []
    for kind, subject, reason in pairs:
        name = bounded(repr(subject), 200)
        what = {
            "extra": f"region {name} is dropped",
            "missing": f"region {name} is missing, and keeps the words it had",
        }.get(kind, f"another {kind} ({bounded(subject, 400)})")
        lines.append(f"accepted: {what}, because: {bounded(reason)}")
    return lines
