"""Stages: the commit of a file, one stage at a time, so that a process can die between two of them.

The library does the four stages in one C function, which nobody can enter; here they are done in
the same order from Python, in a process that is about to kill itself. Nothing else uses this.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable
from typing import Any

from ..store import durable, names

_NO_REPLACE = 1
#: The name by which `store.durable` calls the C module.
_SEAM = "_durable"


def kind_of(name: str) -> str | None:
    """Return which kind of file a final name is; None for the probe's, and for marks."""
    if names.parse_claim(name) is not None:
        return "claim"
    published = names.parse_published(name)
    if published is not None:
        return "entry" if published[2] == "entry" else None
    found = names.parse_data(name)
    return None if found is None else found[1]


class Staged:
    """Stands for the C module: the commit in stages, everything else as it is.

    `at` is called with (kind, moment) between the stages of each file of the store.
    """

    def __init__(self, inner: Any, at: Callable[[str, str], None]) -> None:
        self._inner, self._at = inner, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(
        self,
        directory: int,
        fd: int,
        temporary: str,
        name: str,
        size: int,
        by_link: bool,
        sync_directory: bool,
        path: str,
    ) -> bool:
        """Commit as the C function does; say whether a link took the name."""
        kind = kind_of(name)

        def at(moment: str) -> None:
            if kind is not None:
                self._at(kind, moment)

        at("written")
        os.fdatasync(fd)
        at("synced")
        os.close(fd)
        at("closed")
        if not by_link:
            by_link = not _rename(directory, temporary, name, path)
        if by_link:
            try:
                os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                raise _failed(error.errno or errno.EIO, path) from None
            at("renamed")
            os.fsync(directory)
            os.unlink(temporary, dir_fd=directory)
        else:
            at("renamed")
        if sync_directory:
            os.fsync(directory)
            at("directory synced")
        return by_link


def _rename(directory: int, temporary: str, name: str, path: str) -> bool:
    """Rename without replacing; False where the C library or the file system has no such call."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if not call(directory, os.fsencode(temporary), directory, os.fsencode(name), _NO_REPLACE):
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise _failed(number, path)


def _failed(number: int, path: str) -> OSError:
    error = OSError(number, os.strerror(number), path)
    error.stage = "rename"  # type: ignore[attr-defined]
    return error


def watch(at: Callable[[str, str], None]) -> None:
    """Call `at` with (kind, moment) between the stages of every commit of this process, from now on."""
    setattr(durable, _SEAM, Staged(getattr(durable, _SEAM), at))


def die_at(kind: str, moment: str, count: int = 1) -> None:
    """Make this process kill itself at a moment of its `count`-th commit of a file of this kind."""
    left = count

    def at(found: str, when: str) -> None:
        nonlocal left
        if (found, when) == (kind, moment):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    watch(at)
