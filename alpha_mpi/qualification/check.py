"""Check: what was tried, what was expected, and what was found. Plan: how much is tried. Plain data."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

from ..errors import bounded

HELD, FAILED, PARTLY, NOT_TRIED = "held", "failed", "partly", "not tried"

#: The checks by key, in the order of the report, and what each is called.
TITLES = {
    "probe": "What the file system gives",
    "shared": "One directory on all nodes",
    "race": "One winner for each name",
    "visibility": "A fresh name is seen from other nodes",
    "kills": "Killed around the rename",
    "damage": "Damage is refused, and the file named",
    "equivalence": "A resumed training is the uninterrupted one",
    "speed": "Bandwidth beside plain writes",
}


#: What to do where a check failed, by key.
REMEDIES = {
    "probe": "give rights or room, or name another place: on a file system that lacks a promise put no store",
    "shared": "name a directory that every node mounts: /tmp and the like are each node's own",
    "race": "give room or rights where they lack; else no store here: two jobs could take one name",
    "visibility": "set visibility= above what was found, or mount without cached negative entries",
    "kills": "give room or rights where they lack; else no store here: acknowledged saves can be lost",
    "damage": "report it to the makers of the library, with this page",
    "equivalence": "report it to the makers of the library, with this page",
    "speed": "no store here where other words came back; a smaller --size where room was missing",
}


@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers of a check: a title, the heads of the columns, and rows of texts."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Plot:
    """A picture of a check: for each label some values. `kind` is ``bars`` (one value each) or ``dots``."""

    kind: str
    title: str
    unit: str
    series: tuple[tuple[str, tuple[float, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Check:
    """One check and how it ended.

    Attributes
    ----------
    key : str
        As in `TITLES`, or of a device.
    title : str
        What it is called.
    verdict : str
        ``held``, ``failed``, ``partly`` or ``not tried``.
    expected, found : str
        One sentence each.
    notes : tuple of str
        What else is to be said: each fault, each warning.
    tables, plots : tuple
        Numbers and pictures.
    figures : dict
        The numbers that programs and the row want, by name.
    seconds : float
        How long it took.
    """

    key: str
    title: str
    verdict: str
    expected: str
    found: str
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def remedy(self) -> str:
        """What to do where it failed, else empty."""
        return REMEDIES.get(self.key, "") if self.verdict == FAILED else ""

    def as_data(self) -> dict[str, Any]:
        """Return the same as JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Check:
        """Return the check that `as_data` of another process told."""
        told = dict(data)
        told["notes"] = tuple(told["notes"])
        told["tables"] = tuple(
            Table(t["title"], tuple(t["heads"]), tuple(tuple(row) for row in t["rows"]))
            for t in told["tables"]
        )
        told["plots"] = tuple(
            Plot(p["kind"], p["title"], p["unit"], tuple((n, tuple(v)) for n, v in p["series"]))
            for p in told["plots"]
        )
        return cls(**told)


def ended(key: str, verdict: str, expected: str, found: str, **more: Any) -> Check:
    """Return a check of `TITLES`; its texts are bounded, and at most 10 notes are kept."""
    notes = [bounded(str(note), 400) for note in more.pop("notes", ())]
    if len(notes) > 10:
        notes = [*notes[:10], f"and {len(notes) - 10} more"]
    return Check(key, TITLES[key], verdict, bounded(expected, 400), bounded(found, 400), tuple(notes), **more)


def not_tried(key: str, why: str, expected: str = "") -> Check:
    """Return a check that was not tried, and why."""
    return ended(key, NOT_TRIED, expected, f"not tried: {why}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is tried.

    Attributes
    ----------
    minutes : float
        About how long all of it may take; each check has its share. What is over its share stops,
        and says so; what is over its share by a minute hangs, and has failed.
    names : int
        Names that all ranks race for.
    rounds : int
        Fresh names for each way of looking.
    kills : int
        Kills at a moment by chance, beside those at each stage.
    size : int
        Bytes of each rank's share of the state that is saved to measure with.
    repeats : int
        Saves and restores of it.
    quick : bool
        A short form, for a first look.
    visibility : float
        Seconds within which a fresh name must be seen.
    """

    minutes: float = 5.0
    names: int = 1000
    rounds: int = 20
    kills: int = 30
    size: int = 64 << 20
    repeats: int = 5
    quick: bool = False
    visibility: float = 30.0

    @classmethod
    def of(cls, minutes: float, size: int, quick: bool) -> Plan:
        """Return the plan that a user asks for; `size` in bytes, 0 for the usual one."""
        if quick:
            return cls(minutes, 60, 3, 2, size or 1 << 20, 2, True)
        return cls(minutes=minutes, size=size or cls.size)

    def share(self, key: str) -> float:
        """Return the seconds that a check may take."""
        parts = {"probe": 1, "shared": 1, "race": 4, "visibility": 4, "kills": 4, "damage": 2}
        parts |= {"equivalence": 4, "speed": 5}
        return max(1.0, 60 * self.minutes * parts[key] / sum(parts.values()))

    def limit(self, key: str) -> float:
        """Return the seconds after which a check counts as hanging."""
        return self.share(key) + 60.0

    @property
    def all_limits(self) -> float:
        """Seconds after which the whole counts as hanging."""
        return sum(self.limit(key) for key in TITLES)


class Clock:
    """Counts down the seconds that something may take."""

    def __init__(self, seconds: float) -> None:
        self._begin = time.monotonic()
        self._end = self._begin + seconds

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._end

    @property
    def taken(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin


def shorten(seconds: float) -> str:
    """Return a time for people: three digits and its unit."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def many(number: int, word: str) -> str:
    """Return "1 rank" or "3 ranks"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def middle_and_most(values: Sequence[float]) -> str:
    """Return median and maximum of times, for people."""
    return f"median {shorten(statistics.median(values))}, at most {shorten(max(values))}"
