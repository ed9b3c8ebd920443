"""Probe: ask the file system for what a store must promise, instead of guessing from its name.

Asked in a scratch directory inside the store: that a file can get a *free* name, that it cannot get
a *taken* one and leaves what is there untouched, and that a directory can be synced. A file system
may refuse the flag of a no-replace rename, or ignore it, so both names are tried.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re

from ..errors import Refused
from . import names
from .durable import Directory, Target

_MINE = b"taken by the probe\n"
_OTHER = b"must not be seen\n"
#: File systems that keep nothing through a power cut.
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_MOUNTS = "/proc/self/mountinfo"
_NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclasses.dataclass(frozen=True)
class Probe:
    """What the file system gives.

    Attributes
    ----------
    no_replace : str
        ``rename`` or ``link``: how a final name is taken.
    free_bytes, free_files : int
        What an unprivileged user may still use; a quota may allow less.
    file_system : str
        Its type as the kernel calls it, or ``unknown``. For people; nothing is decided from it
        but what `warnings` says.
    warnings : tuple of str
        Sentences for the user: promises that cannot be kept, though every call succeeds.
    """

    no_replace: str
    free_bytes: int
    free_files: int
    file_system: str
    warnings: tuple[str, ...] = ()


def probe(directory: Directory) -> Probe:
    """Try the file system under `directory`, and set its `by_link` accordingly.

    Called once per job, by the root owner, before anything is written. Leaves nothing behind.
    Raises `Refused` ``unsupported-file-system``, ``read-only``, ``no-permission``; any other failure
    (no space) as the `OSError` it is.
    """
    kind, options = _mount(directory.fd)
    if kind == "overlay" and "volatile" in options:
        # Every call would succeed there, and a sync does nothing.
        raise _unsupported(directory, "syncs that are carried out", "overlay mounted with 'volatile'")
    try:
        manner = _try(directory)
    except OSError as error:
        if error.errno == errno.EROFS:
            raise Refused("the store cannot be written", code="read-only", file=directory.path) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise Refused(
                "this user may not write the store", code="no-permission", file=directory.path
            ) from error
        if error.errno in _NOT_SUPPORTED and _stage(error) == "sync-directory":
            raise _unsupported(directory, "a directory that can be synced", error.strerror) from error
        raise
    directory.by_link = manner == "link"
    room = os.fstatvfs(directory.fd)
    warnings = []
    if kind in _VOLATILE:
        warnings.append(f"{directory.path} lies in memory ({kind}): nothing there survives a power cut")
    return Probe(manner, room.f_bavail * room.f_frsize, room.f_favail, kind, tuple(warnings))


def _unsupported(directory: Directory, expected: str, found: str | None) -> Refused:
    return Refused(
        "the file system cannot keep what a store promises",
        code="unsupported-file-system",
        file=directory.path,
        expected=expected,
        found=found,
    )


def _try(directory: Directory) -> str:
    name = names.temporary("probe")
    try:
        with directory.sub(name, create=True) as scratch:
            try:
                return _manner(scratch)
            finally:
                for made in scratch.names():
                    scratch.unlink(made)
    finally:
        # Best effort: an empty directory that stays is a leftover, the probe's answer is the news.
        try:
            directory.rmdir(name)
        except OSError:
            pass


def _manner(scratch: Directory) -> str:
    """Return how a name is taken: by a rename where that works, else by a link."""
    found = []
    for first in ("rename", "link"):
        scratch.by_link = first == "link"
        try:
            manner = _take(scratch, first, _MINE)
        except OSError as error:
            # Files can be made here, so EPERM is the answer of a file system without links.
            if error.errno not in (*_NOT_SUPPORTED, errno.EPERM) or _stage(error) != "rename":
                raise
            found.append(f"{first}: {error.strerror}")
            continue
        if not scratch.exists(first):
            found.append(f"{manner}: done, it said, but the name is missing")
            continue
        try:
            _take(scratch, first, _OTHER)
        except FileExistsError:
            if scratch.read(first, len(_MINE) + len(_OTHER)) == _MINE:
                scratch.sync()
                return manner
        found.append(f"{manner}: a taken name was replaced")
    raise _unsupported(scratch, "a rename or a link that never replaces", "; ".join(found))


def _take(scratch: Directory, name: str, data: bytes) -> str:
    """Commit one file; return the manner that its commit used in the end."""
    with Target(scratch, name) as target:
        target.write(data)
        target.commit(sync_directory=False)
        return target.manner


def _stage(error: OSError) -> str | None:
    return getattr(error, "stage", None)


def _mount(fd: int) -> tuple[str, frozenset[str]]:
    """Return the type and the options of the mount that an open file lies on, if the kernel tells."""
    try:
        with open(f"/proc/self/fdinfo/{fd}") as file:
            match = re.search(r"^mnt_id:\s*([0-9]+)$", file.read(), re.MULTILINE)
        with open(_MOUNTS) as file:
            table = file.read()
    except OSError:
        return "unknown", frozenset()
    if match is not None:
        for line in table.splitlines():
            left, _, right = line.partition(" - ")
            if left.split(" ", 1)[0] == match[1] and right:
                kind, _, *rest = right.split(" ")
                return kind, frozenset(",".join(rest).split(","))
    return "unknown", frozenset()
