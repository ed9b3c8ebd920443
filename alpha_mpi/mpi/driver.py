"""Driver: carries out what a publication machine asks for, until its attempt has ended on this role.

One thread polls the ports, takes the reports of the workers and lets time pass; it never blocks.
Signals whose handlers are Python functions are handled between two steps, so that an interrupt can
neither tear a step nor lose a message: it aborts the attempt while this role may still abort alone,
and its exception is raised once the attempt has ended.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from ..errors import CheckpointError, cause_of
from ..model.capture import Attempt
from ..protocol.events import (
    Disturbed,
    Effect,
    End,
    Entered,
    Event,
    Failed,
    LookAtNextEntry,
    NextEntry,
    PublishRoot,
    Received,
    Send,
    SendPayload,
    StopWriting,
    Tick,
    WriteManifest,
    WriteShards,
)
from .families import Families
from .ports import FLUSH, Actions, Ports
from .star import StarPorts
from .tree import TreePorts
from .waiting import Nap

#: Seconds between two ticks.
TICK = 5e-3

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Machine(Protocol):
    """What the driver needs of a machine of `protocol.publication`."""

    attempt: Attempt
    later: list[Received]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what to do."""


def ports_of(families: Families) -> Ports:
    """Return the ports of this owner; made once, when the store is opened."""
    return StarPorts(families) if families.star else TreePorts(families)


def run(
    machine: Machine,
    ports: Ports,
    actions: Actions,
    entered: Entered,
    *,
    clock: Callable[[], float] = time.monotonic,
    flush: float = FLUSH,
) -> End:
    """Drive one attempt to its end on this role; called by every owner, once per save.

    `entered` is the machine's first event: the own capture, or the cause of having none. Returns
    how the attempt ended here, after the last words have left (for at most `flush` seconds). Raises
    what a signal's handler raised meanwhile (`KeyboardInterrupt`); the end is then in the machine's
    `outcome`. A second interrupt is raised at once.
    """
    return _Run(machine, ports, actions, clock).drive(entered, flush)


class _Run:
    def __init__(self, machine: Machine, ports: Ports, actions: Actions, clock: Callable[[], float]) -> None:
        self._machine = machine
        self._ports = ports
        self._actions = actions
        self._clock = clock
        self._reports: collections.deque[Event] = collections.deque()
        self._woken = threading.Event()
        self._end: End | None = None
        self._interrupt: BaseException | None = None

    def drive(self, entered: Entered, flush: float) -> End:
        ports = self._ports
        with _Signals() as signals:
            ports.begin(self._machine.attempt)
            try:
                self._step(entered)
                kept, ports.later = ports.later, []
                for event in kept:
                    self._step(event)
                end = self._wait(signals)
            finally:
                ports.later += self._machine.later
                # A peer lost only now changes nothing for this attempt; the next one meets it first.
                with contextlib.suppress(CheckpointError):
                    ports.finish(flush)
        if self._interrupt is not None:
            raise self._interrupt
        return end

    def _wait(self, signals: _Signals) -> End:
        nap, ticked = Nap(), self._clock()
        while self._end is None:
            busy = self._take_messages()
            busy |= self._take_reports(0.0 if busy else nap.length())
            if busy:
                nap.reset()
            now = self._clock()
            if now - ticked >= TICK:
                ticked = now
                self._step(Tick(self._actions.written()))
            self._handle(signals)
        return self._end

    def _take_messages(self) -> bool:
        try:
            events = self._ports.poll()
        except Exception as error:  # a peer's process is gone, or sent what no peer sends
            self._step(Disturbed(cause_of(error, self._ports.me)))
            return False
        for event in events:
            self._step(event)
        return bool(events)

    def _report(self, event: Event) -> None:
        """Take what a worker has to say; from any thread."""
        self._reports.append(event)
        self._woken.set()

    def _take_reports(self, patience: float) -> bool:
        # Not SimpleQueue.get: interrupted by a signal past its time, it waits for ever (Python 3.11).
        if patience:
            self._woken.wait(patience)
        self._woken.clear()
        busy = bool(self._reports)
        while self._reports:
            self._step(self._reports.popleft())
        return busy

    def _handle(self, signals: _Signals) -> None:
        """Let the handlers run that signals have asked for."""
        try:
            signals.deliver()
        except BaseException as error:
            if self._interrupt is not None:
                raise
            self._interrupt = error
            self._step(Disturbed(cause_of(error, self._ports.me)))

    def _step(self, event: Event) -> None:
        for effect in self._machine.handle(event, self._clock()):
            try:
                self._do(effect)
            except Exception as error:  # the other effects must still be carried out
                self._not_done(effect, error)

    def _do(self, effect: Effect) -> None:
        actions, report = self._actions, self._report
        match effect:
            case Send():
                self._ports.send(effect.to, effect.message)
            case WriteShards():
                self._ports.write(actions, report)
            case SendPayload():
                self._ports.contribute(actions, report)
            case WriteManifest():
                actions.write_manifest(effect.children, report)
            case PublishRoot():
                actions.publish_root(effect.children, effect.entry, report)
            case StopWriting():
                self._ports.stop(actions, report)
            case LookAtNextEntry():
                actions.look_at_next_entry(effect.entry, report)
            case End():
                self._end = effect

    def _not_done(self, effect: Effect, error: Exception) -> None:
        if isinstance(effect, LookAtNextEntry):
            self._report(NextEntry(None, None))
        elif isinstance(effect, Send):  # says nothing about the own work, which may be a rename
            self._report(Disturbed(cause_of(error, self._ports.me)))
        else:  # what could not be started has surely not happened
            self._report(Failed(cause_of(error, self._ports.me)))


class _Signals:
    """Holds back the Python handlers of signals while an attempt runs; in the main thread alone."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._asked: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler) and not isinstance(handler, signal.Handlers):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.deliver()

    def deliver(self) -> None:
        """Call the handlers of the signals that came; raises what they raise."""
        while self._asked:
            number, frame = self._asked.pop(0)
            self._handlers[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked.append((number, frame))
