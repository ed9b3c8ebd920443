"""Programs under test: the user's training as words of a command that runs in fresh processes.

A *leg* is one run of the program: into a store, of a training of so many updates, ended after one.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import Refused
from .launch import start

#: What a training is given as: the words of a command, one line of a shell, "module:function" or
#: "file.py:function", or a function that can be found by its name.
Training = Sequence[str] | str | Callable[..., Any]

_CALL = "alpha_mpi.testing.call"
_PLACES = re.compile(r"\{(store|updates|stop)\}")
#: Lines of a failed run's output that its error shows.
_LINES = 15


class Program:
    """A training that can be started again and again; `words` are its command with placeholders."""

    def __init__(self, training: Training) -> None:
        self.words = _words(training)
        #: More environment: a function's process finds what this one can import.
        self.env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} if _CALL in self.words else {}
        text = " ".join(self.words)
        for name in ("{store}", "{updates}"):
            if name not in text:
                raise Refused(
                    "the command must say where the store goes and up to which update it trains",
                    code="argument",
                    expected="the placeholders {store} and {updates}",
                    found=text,
                )
        #: Whether the program is told the length of the training and this leg's end apart.
        self.knows_stop = "{stop}" in text

    def __str__(self) -> str:
        return shlex.join(word.replace(sys.executable, "python") for word in self.words)

    def leg(self, store: pathlib.Path, updates: int, stop: int) -> list[str]:
        """Return the words of one leg."""
        length = updates if self.knows_stop else stop
        values = {"{store}": str(store), "{updates}": str(length), "{stop}": str(stop)}
        return [_PLACES.sub(lambda place: values[place[0]], word) for word in self.words]


def run(words: Sequence[str], owners: int, log: pathlib.Path, timeout: float, env: Mapping[str, str]) -> None:
    """Run a leg on `owners` ranks of a job of its own; return when it has ended well.

    Raises `Refused`: ``run-failed`` with the end of its output, ``run-hung`` after `timeout` seconds,
    when every process of the job has been killed.
    """
    with open(log, "wb") as sink:
        job = start(owners, words, extra=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
        try:
            code = job.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Refused(
                f"the run on {owners} owners had not ended after {timeout:g} s and was killed{_end_of(log)}",
                code="run-hung",
                file=log,
            ) from None
        finally:
            if job.process.poll() is None:  # also when somebody interrupts the test
                job.kill()
    if code != 0:
        raise Refused(
            f"the run on {owners} owners ended with code {code}{_end_of(log)}", code="run-failed", file=log
        )


def _end_of(log: pathlib.Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return "".join(f"\n    {line[:200]}" for line in lines[-_LINES:])


def _words(training: Training) -> list[str]:
    if isinstance(training, str):
        if "{store}" in training:
            return shlex.split(training)
        return _calling(training)
    if callable(training):
        return _calling(_found_by_name(training))
    words = [os.fspath(word) for word in training]
    if not words:
        raise Refused("an empty command", code="argument", expected="the words of a command")
    return words


def _calling(name: str) -> list[str]:
    place, colon, function = name.rpartition(":")
    if not colon or not place or not function.replace(".", "").isidentifier():
        raise Refused(
            "neither a command nor a function's name",
            code="argument",
            expected='words with {store} and {updates}, or "module:function", or "file.py:function"',
            found=name,
        )
    # Through mpi4py, which ends all ranks when one of them raises.
    call = [sys.executable, "-m", "mpi4py", "-m", _CALL]
    return [*call, name, "{store}", "{updates}", "{stop}"]


def _found_by_name(function: Callable[..., Any]) -> str:
    """Return "file.py:function": a fresh process gets the name of a function, never the object."""
    name = getattr(function, "__qualname__", "")
    file = None
    with contextlib.suppress(TypeError):
        file = inspect.getsourcefile(function)
    if file is None or not name or "<" in name:
        raise Refused(
            "a fresh process could not find this function by its name",
            code="argument",
            expected="a function at the top of a file",
            found=name or repr(function)[:80],
        )
    return f"{os.path.abspath(file)}:{name}"
