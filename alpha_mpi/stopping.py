"""Stopping: how a signal on any rank, the job's time limit, or a clock becomes one agreed decision.

A *look* is one small collective after an update: every owner says whether a stop was asked of it,
owner 0 says what its clock says, and all get the same answer at the same update. A handler only
takes a note; nothing is saved inside it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import msgspec

from . import slurm
from .arguments import refuse_other
from .errors import Refused
from .exits import Exit
from .mpi.agreement import bcast
from .mpi.look import largest
from .opening import Run, everybody
from .timing import Every, Limit, Pace, Wants, seconds_of

#: In place of a signal's number: the program has asked, the limit is near.
PROGRAM, LIMIT = 1 << 20, 1 << 21
#: Room for the rank beside the number.
_RANKS = 1 << 32
#: `stop_requested` has no update.
_NONE = -1


class Signals:
    """Handlers that take a note, around the user's own.

    Attributes
    ----------
    noted : int
        Number of the signal that came last; 0 if none did.
    """

    def __init__(self) -> None:
        self.noted = 0
        self._kept: dict[int, Any] = {}

    def install(self, numbers: Sequence[int]) -> None:
        """Begin to take notes. Only in the main thread.

        Raises `Refused` (``signals``) in another thread, for what cannot be caught, and for a signal
        with a handler that is not Python's: it could be neither called nor put back.
        """
        if numbers and threading.current_thread() is not threading.main_thread():
            raise Refused(
                "signal handlers are installed in the main thread alone: open the checkpointer there",
                code="signals",
                found=threading.current_thread().name,
            )
        try:
            for number in numbers:
                self._install(number)
        except BaseException:
            self.restore()
            raise

    def _install(self, number: int) -> None:
        before = signal.getsignal(number)
        if before is None:
            raise Refused(
                "this signal has a handler that is not Python's", code="signals", found=_named(number)
            )
        try:
            signal.signal(number, self._note)
        except (OSError, ValueError) as error:
            raise Refused("this signal cannot be caught", code="signals", found=_named(number)) from error
        self._kept[number] = before

    def restore(self, stopped: bool = False) -> None:
        """Put back the handlers that stood there, where ours still stands. Only in the main thread.

        With `stopped` ours stays where the signal would have ended the process: it is ending, and
        its exit code must not be lost to a second signal.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._kept.items():
            ends = stopped and before is signal.SIG_DFL
            if signal.getsignal(number) == self._note and not ends:
                signal.signal(number, before)
        self._kept.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self.noted = self.noted == number, number
        before = self._kept.get(number)
        # Ctrl-C once asks for a stop; who insists is interrupted.
        if callable(before) and (again or before is not signal.default_int_handler):
            before(number, frame)


def numbers_of(signals: Sequence[str | int]) -> tuple[int, ...]:
    """Return the numbers of signals given by name or number. Raises `Refused` (``argument``)."""
    given = (signals,) if isinstance(signals, str | int) else tuple(signals)
    found = []
    for one in given:
        try:
            found.append(int(signal.Signals[one] if isinstance(one, str) else signal.Signals(one)))
        except (KeyError, ValueError, TypeError):
            raise Refused(
                "signals= takes names or numbers of signals",
                code="argument",
                expected='("SIGUSR1", "SIGTERM")',
                found=repr(one)[:80],
            ) from None
    return tuple(dict.fromkeys(found))


def _named(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return str(number)


class Stopping:
    """What a checkpointer knows of due saves and of stopping. Every method is called by every owner.

    Parameters
    ----------
    run : Run
        The opened job.
    every : Every
        When saves are due.
    signals : sequence of int
        Which signals ask for a stop.
    time_limit : None, "slurm", or a length of time
        When the program must have ended, from now; owner 0's counts.
    left, again : callable
        Return the seconds that Slurm leaves to this job, as it says itself, and asked anew.

    Attributes
    ----------
    reason : str or None
        Why all owners stop, once that is agreed.
    """

    def __init__(
        self,
        run: Run,
        every: Every,
        signals: Sequence[int],
        time_limit: Any,
        *,
        left: Callable[[], float | None] = slurm.left,
        again: Callable[[], float | None] = slurm.asked_left,
    ) -> None:
        self._run, self._every = run, every
        self._signals = Signals()
        self._program = False
        self.reason: str | None = None
        self._saved = False
        self._told: Wants | None = None
        self._readers: set[str] = set()

        def limit() -> Limit | None:
            if time_limit == "slurm":
                found = left() if run.world.rank == 0 else None
                return None if found is None else Limit(found, again)
            return None if time_limit is None else Limit(seconds_of(time_limit, "time_limit"))

        given = everybody(run.world, limit, run.deadline)
        self._pace = Pace(every, given)
        mine = {
            "every": msgspec.to_builtins(every),
            "signals": list(signals),
            "time_limit": None if time_limit is None else str(time_limit),
        }
        theirs, limited = self._first((mine, given is not None))

        def same() -> None:
            refuse_other(mine, theirs, run.world.rank)
            self._signals.install(signals)

        try:
            everybody(run.world, same, run.deadline)
        except BaseException:
            self._signals.restore()
            raise
        #: Whether `due` is a collective: otherwise the count alone tells.
        self.together = bool(signals) or every.by_time or limited

    def _first(self, mine: tuple[dict[str, Any], bool]) -> tuple[dict[str, Any], bool]:
        world = self._run.world
        data = msgspec.msgpack.encode(mine) if world.rank == 0 else None
        return msgspec.msgpack.decode(
            bcast(world, data, 0, self._run.deadline), type=tuple[dict[str, Any], bool]
        )

    # ------------------------------------------------ what the checkpointer passes on

    def due(self, update: int) -> bool:
        """Return whether a save is due after this update."""
        counted = self._every.counts(update)
        if not self.together:
            return counted
        if self.reason is None and self._look("due", update):
            return True
        return counted or (self.reason is not None and not self._saved)

    def requested(self) -> bool:
        """Return whether all owners stop now."""
        if self.reason is None:
            self._look("stop", _NONE)
        return self.reason is not None

    def request(self) -> None:
        """Ask for a stop; on any rank, also from a handler or another thread."""
        self._program = True

    @property
    def save_seconds(self) -> float | None:
        """How long a save takes, as measured here."""
        return self._pace.save_seconds

    @property
    def code(self) -> Exit:
        """What the job script should hear."""
        if self.reason is None:
            return Exit.FINISHED
        return Exit.SAVED if self._saved else Exit.NOT_SAVED

    def began(self) -> None:
        """Note that a resume has ended."""
        self._pace.began()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measure a save; one that raises was not published."""
        begin, published = self._pace.now(), False
        try:
            yield
            published = True
        finally:
            self._pace.saved(self._pace.now() - begin, published)
            self._saved |= published and self.reason is not None

    def restore(self) -> None:
        """Put back the user's handlers."""
        self._signals.restore(self.reason is not None)

    # ------------------------------------------------ the look

    def _look(self, reader: str, update: int) -> bool:
        """Look, unless the other method has just done so; return whether a save is due.

        Each look serves `due` once and `stop_requested` once: called one after the other they cost
        one collective. The calls are the same on every owner, and so is who communicates.
        """
        if self._told is None or reader in self._readers:
            self._told, self._readers = self._agree(update), set()
        self._readers.add(reader)
        return self._told.due

    def _agree(self, update: int) -> Wants:
        world = self._run.world
        wants = self._pace.wants() if world.rank == 0 else Wants(False, False)
        asked = PROGRAM if self._program else self._signals.noted
        if wants.stop:
            asked = LIMIT
        # Of several ranks the lowest is named.
        asked = asked and asked * _RANKS + (_RANKS - 1 - world.rank)
        words = (asked, int(wants.due), update, -update)
        asked, due, most, least = largest(world, words, self._run.deadline, "every owner's update to end")
        if most != -least:
            raise Refused(
                "due and stop_requested are called by every owner, alike, after the same update",
                code="mixed-moments",
                expected=_called(most),
                found=_called(-least),
            )
        if asked:
            number, rank = asked // _RANKS, _RANKS - 1 - asked % _RANKS
            who = {PROGRAM: f"the program on rank {rank}", LIMIT: "the time limit"}
            self.reason = who.get(number) or f"{_named(number)} on rank {rank}"
            due = 1
        return Wants(bool(due), bool(asked))


def _called(update: int) -> str:
    return "stop_requested()" if update == _NONE else f"due({update})"
