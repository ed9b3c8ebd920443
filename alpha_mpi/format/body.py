"""Body: one value of ours as canonical JSON, decoded strictly (docs/format.md, sections 2 and 4).

*Strictly* means: the nesting is bounded before a parser sees it, kind and version are known before
the fields are read, every field has its type, and encoding the decoded value again gives the same
bytes; so a duplicate key, an unknown field, white space or another spelling of a number is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from ..errors import Refused
from ..model.capture import FORMAT_VERSION

#: Deepest nesting of lists and objects in a file of ours.
DEPTH = 64

_ENCODER = msgspec.json.Encoder(order="sorted")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))

T = TypeVar("T")


def encode_body(value: Any) -> bytes:
    """Return canonical JSON of a struct of ours: the bytes `canonical` would give, but faster."""
    body: bytes = _ENCODER.encode(value)
    return body


def is_deeper(body: bytes, depth: int) -> bool:
    """Return whether lists and objects nest deeper than `depth` (or do not close), in linear time.

    Needs no parser and no recursion: with the strings gone, the innermost pairs are taken away
    once for each level.
    """
    if b"\\" in body:
        # Escapes first: afterwards a quote can only begin or end a string.
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    left = body.translate(_BRACKETS, _NOT_BRACKETS).replace(b'""', b"")
    if b'"' in left:
        left = b"".join(left.split(b'"')[::2])
    for _ in range(depth):
        if not left:
            return False
        left, before = left.replace(b"[]", b""), len(left)
        if len(left) == before:
            return True
    return bool(left)


class _PrefixHead(msgspec.Struct):
    version: int


class _Head(msgspec.Struct):
    """What is known of a file before its fields: its kind and its format version."""

    kind: str
    version: int | None = None
    prefix: _PrefixHead | None = None


_HEAD = msgspec.json.Decoder(_Head)


def kind_of(body: bytes, kinds: Sequence[str], *, file: str, code: str) -> str:
    """Return the kind of a body, one of `kinds`, of the version this library reads.

    Raises `Refused` with `code` for another kind or a nesting that is too deep, and with
    `format-version` for a version of ours that this library does not know.
    """
    if is_deeper(body, DEPTH):
        raise Refused(
            "lists and objects nest too deep, or do not close",
            code=code,
            file=file,
            expected=f"at most {DEPTH} levels",
        )
    try:
        head = _HEAD.decode(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Refused(f"not a file of ours: {error}", code=code, file=file) from None
    if head.kind not in kinds:
        raise Refused(
            "a file of another kind", code=code, file=file, expected=" or ".join(kinds), found=head.kind
        )
    version = head.prefix.version if head.prefix is not None else head.version
    if version != FORMAT_VERSION:
        raise Refused(
            "a format version this library does not read",
            code="format-version",
            file=file,
            expected=FORMAT_VERSION,
            found=version,
        )
    return head.kind


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T], *, file: str, code: str) -> T:
    """Return the value of a body whose kind is known. Raises `Refused` with `code`."""
    try:
        value = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Refused(f"not as docs/format.md says: {error}", code=code, file=file) from None
    again = encode_body(value)
    if again != body:
        at = next((i for i, (a, b) in enumerate(zip(again, body, strict=False)) if a != b), 0)
        raise Refused(
            f"not canonical: byte {at} is not what encoding the same value gives",
            code=code,
            file=file,
            expected=again[at : at + 60],
            found=body[at : at + 60],
        )
    return value
