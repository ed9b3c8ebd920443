"""Envelope: how every JSON file ends (docs/format.md, section 4).

A file is a *body* (canonical JSON, one line), a newline, the body's digest, a newline, and nothing
else. The digest line is read before the body, so no field of a damaged file is ever looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .. import digest
from ..errors import Refused

#: Longest group manifest or root, in bytes: also the longest message MPI carries safely.
MANIFEST_LIMIT = 1 << 30
#: Longest store file, claim or mark, in bytes.
SMALL_LIMIT = 1 << 20

_DIGEST = re.compile(r"xxh3-128:[0-9a-f]{32}|sha256:[0-9a-f]{64}|blake3:[0-9a-f]{64}", re.ASCII)

#: True of a well-formed digest text of a known algorithm.
is_digest = _DIGEST.fullmatch


_DIGITS = b"0123456789abcdef"


def are_digests(texts: Sequence[str]) -> bool:
    """Whether all texts are digests of one known algorithm: `is_digest` of each, for very many."""
    algorithm, _, _ = texts[0].partition(":")
    if algorithm not in digest.SIZES:
        return False
    line = f"\n{algorithm}:".encode()
    if set(map(len, texts)) != {len(line) - 1 + 2 * digest.SIZES[algorithm]}:
        return False
    try:
        joined = "\n".join(["", *texts]).encode("ascii")
    except UnicodeEncodeError:
        return False
    # With the digits gone as many line ends are left as there are texts, so that none is within one.
    left = line.translate(None, _DIGITS) * len(texts)
    return joined.count(line) == len(texts) and joined.translate(None, _DIGITS) == left


def seal(body: bytes, algorithm: str = digest.DEFAULT) -> bytes:
    """Return the bytes of the file that holds `body`, a canonical JSON value on one line."""
    if b"\n" in body or not body:
        raise ValueError("a body is one line of canonical JSON")
    return b"%b\n%b\n" % (body, digest.of(body, algorithm).encode())


def open_envelope(
    data: bytes, *, file: str, limit: int = MANIFEST_LIMIT, code: str = "corrupt-manifest"
) -> tuple[bytes, str]:
    """Return (body, digest text of the body) of a whole file.

    Called by every decoder of a JSON file before anything else. Raises `Refused` with `too-large`
    above `limit` bytes, `truncated` where the digest line is missing or incomplete, and `code`
    where the digest is not that of the body or anything follows it.
    """
    if len(data) > limit:
        raise Refused(
            "the file is longer than any of its kind",
            code="too-large",
            file=file,
            expected=f"at most {limit} bytes",
            found=f"{len(data)} bytes",
        )
    lines = data.count(b"\n")
    if lines < 2:
        raise Refused(
            "the file ends before its digest line does",
            code="truncated",
            file=file,
            expected="a body, a newline, a digest and a newline",
            found=f"{len(data)} bytes with {lines} newlines",
        )
    if lines > 2 or not data.endswith(b"\n"):
        raise Refused(
            "something stands after the digest line",
            code=code,
            file=file,
            expected="2 lines",
            found=f"{lines} newlines in {len(data)} bytes",
        )
    end = data.index(b"\n")
    body, line = data[:end], data[end + 1 : -1].decode("utf-8", "backslashreplace")
    if not is_digest(line):
        raise Refused(
            "the last line is not a digest",
            code=code,
            file=file,
            expected="one of " + ", ".join(digest.ALGORITHMS),
            found=line[:100],
        )
    found = digest.of(body, line.partition(":")[0])
    if found != line:
        raise Refused("the body has another digest", code=code, file=file, expected=line, found=found)
    return body, line
