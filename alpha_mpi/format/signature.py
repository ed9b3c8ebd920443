"""Signature: the third line of a root or a claim in a store that has a key (docs/format.md, section 4).

The line is made of the digest line and of the *place* for which it was written, so that a file that
is copied to another name, or another store, has none. It is checked before the body is parsed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple

from ..canonical import canonical
from ..errors import Refused

#: Digest algorithms that a signature may stand on.
ALGORITHMS = ("sha256", "blake3")
#: Fewest and most bytes of a key.
LEAST, MOST = 32, 4096

_LINE = re.compile(rb"(hmac-sha256:[0-9a-f]{64}):([0-9a-f]{16})")
_LENGTH = len("hmac-sha256:") + 64 + 1 + 16


class Place(NamedTuple):
    """What a signature is for: a ``root`` at an entry, or a ``claim`` of an epoch (entry 0)."""

    kind: str
    store: str
    epoch: int
    entry: int


class Key:
    """A secret that signs and checks; never shown. Raises `Refused` (``key-file``) for another length."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not LEAST <= len(secret) <= MOST:
            raise Refused(
                "a key of this length signs nothing",
                code="key-file",
                expected=f"{LEAST} to {MOST} bytes",
                found=f"{len(secret)} bytes",
            )
        self._secret = bytes(secret)

    def __repr__(self) -> str:
        return "Key(...)"

    def sign(self, data: bytes, place: Place) -> bytes:
        """Return a root's or claim's file with its signature line. Raises `Refused` (``weak-digest``)."""
        digest = _digest_line(data)
        if digest.partition(":")[0] not in ALGORITHMS:
            raise weak(digest.partition(":")[0])
        line = self._line(digest, place)
        return data + b"%b:%b\n" % (line, _check(line))

    def made(self, data: bytes, line: bytes, place: Place) -> bool:
        """Return whether `line` is the signature of a file without it, `data`, at `place`."""
        digest = _digest_line(data)
        if digest.partition(":")[0] not in ALGORITHMS:
            return False
        return hmac.compare_digest(line, self._line(digest, place))

    def _line(self, digest: str, place: Place) -> bytes:
        text = canonical(["signature", [*place, digest]])
        return b"hmac-sha256:" + hmac.new(self._secret, text, hashlib.sha256).hexdigest().encode()


def split(data: bytes, *, file: str, code: str) -> tuple[bytes, bytes | None]:
    """Return (the file without its signature line, the signature), None where it has no such line.

    Raises `Refused` with `code` for a line whose own check value is wrong: a damaged one.
    """
    start = len(data) - _LENGTH - 1
    if start < 1 or data[-1:] != b"\n" or data[start - 1 : start] != b"\n":
        return data, None
    found = _LINE.fullmatch(data, start, len(data) - 1)
    if found is None:
        return data, None
    if _check(found[1]) != found[2]:
        raise Refused(
            "the signature line is damaged",
            code=code,
            file=file,
            expected=_check(found[1]).decode(),
            found=found[2].decode(),
        )
    return data[:start], found[1]


def weak(algorithm: str) -> Refused:
    """Return the refusal of a store whose digests a signature cannot stand on."""
    return Refused(
        "a signature says nothing where another file can have the same digest: make a new store with "
        'digest="sha256", and copy what is there with alpha-mpi cp',
        code="weak-digest",
        expected=" or ".join(ALGORITHMS),
        found=algorithm,
    )


def _check(line: bytes) -> bytes:
    """Whoever has no key finds a damaged line by this."""
    return hashlib.sha256(line).hexdigest()[:16].encode()


def _digest_line(data: bytes) -> str:
    """The second line of a file of two; what is no such file has none that anybody signed."""
    end = data.rfind(b"\n", 0, len(data) - 1)
    return data[end + 1 : -1].decode("utf-8", "backslashreplace")[:200]
