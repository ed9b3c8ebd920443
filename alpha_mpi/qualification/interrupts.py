"""Interrupts: SIGTERM and Ctrl-C end a qualification by way of its cleaning, and nothing swallows them."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

#: Seconds after which an interrupt that somebody caught is raised again.
AGAIN = 0.5
#: Seconds that a rank which is told to end waits for the first one to clean up.
PATIENCE = 20.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupts:
    """Within its block the first SIGTERM or SIGINT raises KeyboardInterrupt; until `quiet` is set.

    With `again` it is raised again and again, since a library that must leave no rank waiting makes
    any exception on one an error on all. Without, no later signal disturbs who is ending processes.
    """

    def __init__(self) -> None:
        self.again = False
        self.quiet = threading.Event()
        self._told = False
        self._before: dict[int, Any] = {}

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.quiet.is_set():
            return
        if self._told and not self.again:
            return
        if self.again and not self._told:
            threading.Thread(target=self._repeat, args=(number,), daemon=True).start()
        self._told = True
        raise KeyboardInterrupt

    def _repeat(self, number: int) -> None:
        while not self.quiet.wait(AGAIN):
            os.kill(os.getpid(), number)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._interrupt) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.quiet.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)


def outlive() -> None:
    """Let the first rank clean up before this one ends: a launcher kills all when one has ended."""

    def later(number: int, frame: FrameType | None) -> None:
        timer = threading.Timer(PATIENCE, os._exit, [1])
        timer.daemon = True
        timer.start()

    for number in _SIGNALS:
        signal.signal(number, later)
