"""Timing: when a save is due by time, decided from measured times. No MPI, no files.

The *interval* is the time from the end of one save to the beginning of the next. The *limit* is
when the job must have ended. The clock is monotonic; only owner 0 asks it, and decides for all.

Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974, 530-531.
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22(3), 2006, 303-312.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import time
from collections.abc import Callable
from typing import Any

from .errors import Refused

#: The last save before the limit is given so many times the longest of the last saves.
MARGIN = 2.0
#: Saves and updates that count as the last ones.
LAST = 8
#: Seconds kept free for the end of the program, and the time of a save that was never measured;
#: both smaller where little time was left at the beginning.
RESERVE, UNMEASURED = 30.0, 60.0
#: Seconds after which an expired limit is asked for again: it may have been extended.
AGAIN = 60.0

_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.ASCII)
_SLURM = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]{1,2}):([0-9]{2})|([0-9]+)-([0-9]{1,2})", re.ASCII)


def seconds_of(value: Any, name: str = "time") -> float:
    """Return a length of time in seconds: a number, ``"90s"``, ``"10min"``, ``"2h"``, ``"1-12:00:00"``.

    Raises `Refused` (``argument``) for what is none, or not above zero.
    """
    found = math.nan
    if isinstance(value, str):
        text = value.strip().lower()
        length, slurm = _LENGTH.fullmatch(text), _SLURM.fullmatch(text)
        if length is not None and length[2] in _UNITS:
            found = float(length[1]) * _UNITS[length[2]]
        elif slurm is not None:
            found = _clock_face(*(int(part or 0) for part in slurm.groups()))
    elif not isinstance(value, bool):
        try:
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    if not (math.isfinite(found) and found > 0):
        raise Refused(
            f"{name}: a time is a positive number of seconds, or a text",
            code="argument",
            expected='90, "90s", "10min", "2h", "1-12:00:00"',
            found=repr(value)[:80],
        )
    return found


def _clock_face(days: int, hours: int, minutes: int, seconds: int, alone: int, rest: int) -> float:
    return float(((days + alone) * 24 + hours + rest) * 3600 + minutes * 60 + seconds)


@dataclasses.dataclass(frozen=True)
class Every:
    """When saves are due: as soon as any of the rules says so.

    Parameters
    ----------
    updates : int, optional
        At each update that is a multiple of it.
    seconds : float or str, optional
        When so much time has passed since the last save: seconds, or ``"10min"``.
    mtbf : float or str, optional
        Mean time between failures of this whole job: the interval is then Daly's, from the measured
        time of a save. The first save is due at once, so that there is a measure.
    """

    updates: int | None = None
    seconds: float | str | None = None
    mtbf: float | str | None = None

    def __post_init__(self) -> None:
        updates = self.updates
        if updates is not None and (isinstance(updates, bool) or not isinstance(updates, int) or updates < 1):
            raise Refused(
                "every is a whole number of at least 1, a time, or an Every",
                code="argument",
                expected='10, "10min", Every(mtbf="24h")',
                found=repr(updates)[:80],
            )
        for name in ("seconds", "mtbf"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, seconds_of(getattr(self, name), f"every: {name}"))

    @classmethod
    def of(cls, value: Any) -> Every:
        """Return what ``every=`` stands for. Raises `Refused` (``argument``)."""
        if value is None or isinstance(value, cls):
            return value or cls()
        if isinstance(value, str):
            return cls(seconds=value)
        if not isinstance(value, bool) and hasattr(value, "__index__"):
            value = value.__index__()
        return cls(updates=value)

    @property
    def by_time(self) -> bool:
        """Whether a clock is needed to tell."""
        return self.seconds is not None or self.mtbf is not None

    def counts(self, update: int) -> bool:
        """Return whether a save is due by count; the same on every owner without a message."""
        return self.updates is not None and update > 0 and update % self.updates == 0


def young(save: float, mtbf: float) -> float:
    """Return Young's interval in seconds, sqrt(2 C M), from the time of a save and the MTBF."""
    return math.sqrt(2 * save * mtbf)


def daly(save: float, mtbf: float) -> float:
    """Return Daly's interval in seconds (his equation 37); the MTBF where a save takes twice as long."""
    if save >= 2 * mtbf:
        return mtbf
    x = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - save


def lost_share(save: float, interval: float, mtbf: float) -> float:
    """Return the share of time lost to saves and to work done twice, to first order (Young 1974)."""
    return save / (interval + save) + (interval + save) / (2 * mtbf)


class Limit:
    """When the job must have ended.

    Parameters
    ----------
    left : float
        Seconds from now.
    again : callable, optional
        Asked for the seconds left when they seem to be over, at most once in `AGAIN` seconds; None
        means that it does not know.
    """

    def __init__(
        self,
        left: float,
        again: Callable[[], float | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.whole = max(left, 0.0)
        self._clock, self._again = clock, again
        self._end = clock() + left
        self._asked = -math.inf

    def left(self) -> float:
        """Return the seconds left."""
        return self._end - self._clock()

    def over(self, need: float) -> bool:
        """Return whether less than `need` seconds are left, also when asked again."""
        if self.left() >= need:
            return False
        now = self._clock()
        if self._again is not None and now - self._asked >= AGAIN:
            self._asked = now
            told = self._again()
            if told is not None:
                self._end = self._clock() + told
        return self.left() < need


@dataclasses.dataclass(frozen=True)
class Wants:
    """What owner 0's clock says after an update: a save is due; the job must stop after it."""

    due: bool
    stop: bool


class Pace:
    """Owner 0's clock: what it says after each update. Pure, with an injected clock."""

    def __init__(
        self, every: Every, limit: Limit | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._limit, self._clock = every, limit, clock
        self._saves: collections.deque[float] = collections.deque(maxlen=LAST)
        self._updates: collections.deque[float] = collections.deque(maxlen=LAST)
        self._rested = clock()  # the end of the last save, or of the resume
        self._looked: float | None = None

    @property
    def save_seconds(self) -> float | None:
        """The median of the last measured saves, in seconds."""
        return sorted(self._saves)[len(self._saves) // 2] if self._saves else None

    def interval(self) -> float | None:
        """Return the interval in seconds as it stands now; None: by no time. 0: measure first."""
        found = []
        if self._every.seconds is not None:
            found.append(float(self._every.seconds))
        if self._every.mtbf is not None:
            save = self.save_seconds
            found.append(0.0 if save is None else daly(save, float(self._every.mtbf)))
        return min(found, default=None)

    def need(self) -> float:
        """Return the seconds that must be left for one more update, a save, and the end."""
        whole = math.inf if self._limit is None else self._limit.whole
        save = MARGIN * max(self._saves) if self._saves else min(UNMEASURED, whole / 10)
        return max(self._updates, default=0.0) + save + min(RESERVE, whole / 20)

    def now(self) -> float:
        """Return the clock's seconds."""
        return self._clock()

    def began(self) -> None:
        """Note that the training begins (a resume has ended)."""
        self._rested, self._looked = self._clock(), None

    def saved(self, seconds: float, published: bool) -> None:
        """Note that a save has ended after `seconds`."""
        if published:
            self._saves.append(seconds)
            self._rested = self._clock()
        if self._looked is not None:  # a save is no part of an update
            self._looked += seconds

    def wants(self) -> Wants:
        """Say whether a save is due by time, and whether the job must stop. Called after an update."""
        now = self._clock()
        if self._looked is not None:
            self._updates.append(max(now - self._looked, 0.0))
        stop = self._limit is not None and self._limit.over(self.need())
        interval = self.interval()
        due = stop or (interval is not None and now - self._rested >= interval)
        self._looked = self._clock()
        return Wants(due, stop)
