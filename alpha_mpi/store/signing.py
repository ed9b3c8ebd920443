"""Signing: the key of a store, and which files of it were written by who has the key.

Roots and claims are signed, each for the name it stands under; the chain of digests below a root
carries that to every other byte of a generation. Done by the root owner and by commands, which
alone read entries.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import Refused
from ..format.signature import LEAST, MOST, Key, Place, split
from .store import Store


def read_key(path: str | os.PathLike[str]) -> Key:
    """Return the key in a file: all its bytes.

    Raises `Refused` ``key-file``: missing, no regular file, readable by others than owner and
    group, writable by others than the owner, or not of 32 to 4096 bytes.
    """
    file = os.path.abspath(os.fspath(path))
    try:
        # Not blocking: a FIFO that nobody writes must not hang the job.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        reason = error.strerror or errno.errorcode.get(error.errno or 0, "?")
        raise Refused(f"the key cannot be read: {reason}", code="key-file", file=file) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("a key is a regular file", code="key-file", file=file, expected="regular file")
        if found.st_mode & 0o027:
            raise Refused(
                "others may read or change the key, so it proves nothing",
                code="key-file",
                file=file,
                expected="mode 0600, 0400 or 0640",
                found=f"mode {stat.S_IMODE(found.st_mode):04o}",
            )
        secret = os.read(fd, MOST + 1)
    finally:
        os.close(fd)
    try:
        return Key(secret)
    except Refused as error:
        raise Refused(
            error.message, code="key-file", file=file, expected=error.expected, found=error.found
        ) from None


def signed(store: Store, data: bytes, kind: str, epoch: int, entry: int) -> bytes:
    """Return a root or claim as it is written: with a signature if the store has a key."""
    if store.key is None:
        return data
    return store.key.sign(data, Place(kind, store.id, epoch, entry))


def unsigned(store: Store, data: bytes, places: list[Place], *, file: str, code: str) -> tuple[bytes, bool]:
    """Return (the file without its signature line, whether it has one).

    `places` are what may stand there. With a key the signature is checked, before a byte of the
    body is looked at. Raises `Refused`: ``unsigned``, ``forged-signature``, and `code` for damage.
    """
    plain, line = split(data, file=file, code=code)
    key = store.key
    if key is None:
        return plain, line is not None
    if line is None:
        raise Refused(
            "nobody signed this: it was written without the key, or is damaged", code="unsigned", file=file
        )
    if not any(key.made(plain, line, place) for place in places):
        raise Refused(
            "the signature is not that of this key for this file under this name",
            code="forged-signature",
            file=file,
        )
    return plain, True


def check_signed(said: bool, found: bool, *, file: str, code: str) -> None:
    """Refuse (`code`) a file that says it is signed and is not, or the other way round."""
    if said != found:
        raise Refused(
            "the signature line was cut off" if said else "a signature line was added",
            code=code,
            file=file,
            expected=f"{'a' if said else 'no'} signature line",
            found="none" if said else "one",
        )


__all__ = ["LEAST", "MOST", "Key", "Place", "check_signed", "read_key", "signed", "unsigned"]
