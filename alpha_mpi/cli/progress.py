"""Progress: how far a long command is, on the terminal of the first rank."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from . import ranks, text

if TYPE_CHECKING:
    from typing_extensions import Self

#: Nothing is shown before a command has run so long, in seconds.
PATIENCE = 1.0
#: Time between two lines, in seconds.
PAUSE = 0.2


class Progress:
    """Call it with (bytes done, bytes in all). Shows nothing unless standard error is a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty() and ranks.rank() == 0
        self._next = time.monotonic() + PATIENCE
        self._width = 0

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is, now and then."""
        if not self._shown or (now := time.monotonic()) < self._next:
            return
        self._next = now + PAUSE
        share = f"{100 * done // total:3d} %" if total else ""
        line = f"{self._what} {share} ({text.size(done)} of {text.size(total)})"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
