"""Scratch: the one directory in which a qualification works, made in the path and removed at the end.

Its name is none that a store gives, so a job that uses the store meets a stranger and leaves it alone.
"""

from __future__ import annotations

import os
import pathlib
import secrets
import shutil
import time

from ..errors import Refused

PREFIX = "qualify-"
#: The folders inside.
PARTS = ("race", "seen", "learners", "speed", "store")


class Scratch:
    """The directory. `path` is what the user named, `home` where everything lies once it is made."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.home = os.path.join(self.path, f"{PREFIX}{secrets.token_hex(8)}")
        self._above: list[str] = []
        self._made = False

    def make(self) -> None:
        """Make it, and whatever is missing above it. Raises OSError, or `Refused` ``not-a-directory``."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise Refused("a directory is needed here", code="not-a-directory", file=self.path)
        missing = []
        at = self.path
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for directory in reversed(missing):
            os.mkdir(directory)
            self._above.append(directory)
        os.mkdir(self.home, 0o700)
        self._made = True
        for part in PARTS:
            os.mkdir(self.part(part))

    def part(self, name: str) -> str:
        """Return the path of one of the `PARTS`, or of a file beside them."""
        return os.path.join(self.home, name)

    def earlier(self) -> list[str]:
        """Return the scratches of other runs: at work now, or left behind."""
        found = pathlib.Path(self.path).glob(f"{PREFIX}{'[0-9a-f]' * 16}")
        return sorted(str(p) for p in found if str(p) != self.home)

    def remove(self) -> list[str]:
        """Remove it, and the directories above that were made for it; return what is left.

        Tried for some seconds: a process that is being killed may still make a file.
        """
        left = []
        if self._made:
            for pause in (0.0, 0.1, 0.5, 2.0):
                time.sleep(pause)
                shutil.rmtree(self.home, ignore_errors=True)
                if not os.path.lexists(self.home):
                    break
            else:
                left = [self.home, *(str(path) for path in sorted(pathlib.Path(self.home).rglob("*"))[:9])]
        for directory in reversed(self._above):
            try:
                os.rmdir(directory)
            except OSError:
                if not left:
                    left.append(directory)
        return left
