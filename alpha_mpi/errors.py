"""The one family of errors, and how a cause crosses ranks.

Every failure of this library is a `CheckpointError`. A *cause* is the same failure as plain data:
bounded text and numbers that one role can send to another, from which each owner raises the same
error. Nothing is pickled.
"""

from __future__ import annotations

import dataclasses
import errno as _errno
import os
import sys
import warnings
from typing import ClassVar

#: Longest text of one field of a cause, in characters; longer text is cut with an ellipsis.
TEXT_LIMIT = 1200
#: Longest name of a region or a file inside a cause, in characters.
NAME_LIMIT = 480


def bounded(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return `text` on one line, printable, and at most `limit` characters long."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    line = line.encode("utf-8", "backslashreplace").decode("utf-8")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shortened(text: str, limit: int = NAME_LIMIT) -> str:
    """Return `bounded` text, cut in its middle: of a long path the end says most."""
    line = bounded(text, len(text) * 10 + 1)
    head = limit // 3
    return line if len(line) <= limit else f"{line[:head]}…{line[len(line) - (limit - head - 1) :]}"


def quoted(name: str, limit: int = NAME_LIMIT) -> str:
    """Return a name in quotes, escaped, on one line, and at most `limit` characters long."""
    text = repr(str(name))
    return text if len(text) <= limit else f"{text[: limit - 2]}…{text[-1]}"


@dataclasses.dataclass(frozen=True)
class Cause:
    """A failure as plain data (see the module's docstring). `kind` is a key of `KINDS`."""

    kind: str
    code: str
    message: str
    retryable: bool = False
    role: int | None = None
    region: str | None = None
    file: str | None = None
    expected: str | None = None
    found: str | None = None
    stage: str | None = None
    errno: int | None = None
    visible: bool | None = None

    def bounded(self) -> Cause:
        """Return this cause with every text cut to what a message may hold.

        The region keeps its name as it is, unescaped, so that it can be compared.
        """

        def cut(value: str | None) -> str | None:
            return None if value is None else shortened(value)

        region = self.region
        if region is not None:
            region = region.encode("utf-8", "backslashreplace").decode("utf-8")
            region = region if len(region) <= NAME_LIMIT else region[: NAME_LIMIT - 1] + "…"
        return dataclasses.replace(
            self,
            message=bounded(self.message),
            region=region,
            file=cut(self.file),
            expected=cut(self.expected),
            found=cut(self.found),
        )


class CheckpointError(Exception):
    """Base of all errors of this library.

    Attributes
    ----------
    code : str
        Short and stable: what a program compares.
    retryable : bool
        Whether the same processes may call `save` again.
    role : int or None
        The owner that is at fault, where one is.
    region, file : str or None
        What it concerns.
    expected, found : str or None
        The two sides of a disagreement.
    """

    kind: ClassVar[str] = "error"
    default_code: ClassVar[str] = "error"
    default_retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retryable: bool | None = None,
        role: int | None = None,
        region: str | None = None,
        file: str | os.PathLike[str] | None = None,
        expected: object = None,
        found: object = None,
        stage: str | None = None,
        errno: int | None = None,
        visible: bool | None = None,
    ) -> None:
        self.message = message
        self.code = code or self.default_code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.role = role
        self.region = region
        self.file = None if file is None else os.fspath(file)
        self.expected = None if expected is None else str(expected)
        self.found = None if found is None else str(found)
        self.stage = stage
        self.errno = errno
        self.visible = visible
        super().__init__(message)

    def __str__(self) -> str:
        where = []
        if self.role is not None:
            where.append(f"role {self.role}")
        if self.region is not None:
            where.append(f"region {quoted(self.region)}")
        if self.file is not None:
            where.append(f"file {shortened(self.file)}")
        text = bounded(self.message)
        if where:
            text = f"{', '.join(where)}: {text}"
        sides = (("expected", self.expected), ("found", self.found))
        told = [f"{word} {shortened(side or '-')}" for word, side in sides if side is not None]
        if told:
            text += f" ({', '.join(told)})"
        return f"{text} [{self.code}]"

    def cause(self) -> Cause:
        """Return this failure as plain, bounded data."""
        return Cause(
            kind=self.kind,
            code=self.code,
            message=self.message,
            retryable=self.retryable,
            role=self.role,
            region=self.region,
            file=self.file,
            expected=self.expected,
            found=self.found,
            stage=self.stage,
            errno=self.errno,
            visible=self.visible,
        ).bounded()


class Refused(CheckpointError):
    """The checkpoint or the declaration is wrong; `code` says in which way."""

    kind = "refused"
    default_code = "refused"


class Absent(Refused, KeyError):
    """There is no such thing in the store: a `KeyError` too, for what is looked up by a name."""


class Superseded(Refused):
    """A newer continuation took over; this job can add nothing to the lineage any more."""

    kind = "superseded"
    default_code = "superseded"


class CommitFailed(CheckpointError):
    """The disk said no. `stage` names the step, `errno` the reason; nothing was published."""

    kind = "commit-failed"
    default_code = "commit-failed"
    default_retryable = True


class PeerFailed(CheckpointError):
    """A role is lost, silent, or failed in its own code; `role` names it."""

    kind = "peer-failed"
    default_code = "peer-failed"


class InDoubt(CheckpointError):
    """Published or not, the store cannot say; `visible` tells whether the root can be seen now."""

    kind = "in-doubt"
    default_code = "in-doubt"


KINDS: dict[str, type[CheckpointError]] = {
    cls.kind: cls for cls in (CheckpointError, Refused, Superseded, CommitFailed, PeerFailed, InDoubt)
}


def error_of(cause: Cause) -> CheckpointError:
    """Return the exception a cause stands for: the same on every owner."""
    return KINDS.get(cause.kind, CheckpointError)(
        cause.message,
        code=cause.code,
        retryable=cause.retryable,
        role=cause.role,
        region=cause.region,
        file=cause.file,
        expected=cause.expected,
        found=cause.found,
        stage=cause.stage,
        errno=cause.errno,
        visible=cause.visible,
    )


def cause_of(error: BaseException, role: int | None = None) -> Cause:
    """Return any exception as a cause, blamed on `role` unless it names another.

    Called where one role's failure (also in the user's code, also `SystemExit`) must become
    everybody's: the text crosses, bounded; the object never does.
    """
    if isinstance(error, CheckpointError):
        cause = error.cause()
        return cause if cause.role is not None else dataclasses.replace(cause, role=role)
    if isinstance(error, OSError) and error.errno is not None:
        code = {
            _errno.ENOSPC: "no-space",
            _errno.EDQUOT: "no-space",
            _errno.EROFS: "read-only",
            _errno.EACCES: "no-permission",
            _errno.EPERM: "no-permission",
        }.get(error.errno, "io-error")
        stage = getattr(error, "stage", None)
        text = error.strerror or os.strerror(error.errno)
        return Cause(
            kind=CommitFailed.kind,
            code=code,
            message=f"{stage}: {text}" if stage else text,
            retryable=True,
            role=role,
            file=None if error.filename is None else os.fsdecode(error.filename),
            stage=stage,
            errno=error.errno,
        ).bounded()
    return Cause(
        kind=PeerFailed.kind,
        code="user-code",
        message=f"{type(error).__name__}: {error}",
        retryable=True,
        role=role,
    ).bounded()


def warn_user(warning: Warning) -> None:
    """Give a warning where the user's code called: at the first frame outside of this package."""
    package = __name__.partition(".")[0]
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
