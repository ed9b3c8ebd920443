"""Documents: a user's JSON-able value as canonical bytes, and back (docs/format.md, section 8).

Every float, not-a-number and the infinities included, and every integer comes back as it was:
``{"$float": "0x1p+0"}``, ``{"$int": "..."}`` above 2**53. A user's key that starts with ``$`` is
written with one ``$`` more. Tuples come back as lists, subclasses and NumPy numbers as the plain
values they equal; whatever else JSON does not know is refused, naming where it stands.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import numpy as np

from ..canonical import EXACT
from ..errors import Refused
from .body import is_deeper

#: Deepest nesting of a document, each wrapped number counting one level.
DEPTH = 128
#: Longest document, in bytes.
LIMIT = 1 << 30
#: Most decimal digits of an integer.
DIGITS = 4000

_is_int = re.compile(rf"-?[1-9][0-9]{{0,{DIGITS - 1}}}", re.ASCII).fullmatch
_is_float = re.compile(r"-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}|-?0x0\.0p\+0|-?inf|nan", re.ASCII).fullmatch


def encode_document(value: Any) -> bytes:
    """Return the canonical bytes of a user's value.

    Called on each owner that holds the document, at each save. Raises `Refused` (`document`) that
    names the place of a value JSON does not know, such as ``$.betas[1]``.
    """
    plain = _plain(value, "$", 0)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_document(data: bytes, file: str | None = None) -> Any:
    """Return the value of a document's bytes, equal to the one that was encoded.

    Raises `Refused` (`corrupt-document`, `too-large`) on anything `encode_document` cannot have
    written.
    """
    if len(data) > LIMIT:
        raise Refused("a document is too long", code="too-large", file=file, expected=LIMIT, found=len(data))
    if is_deeper(data, DEPTH):
        _corrupt(f"deeper than {DEPTH} levels, or not closed", file)
    try:
        plain = json.loads(data.decode(), parse_float=_never, parse_constant=_never, parse_int=_short)
        value = _value(plain)
        again = encode_document(value)
    except (ValueError, ArithmeticError, RecursionError) as error:
        _corrupt(str(error), file)
    except Refused as error:
        _corrupt(error.message, file)
    if again != data:
        _corrupt("not the canonical bytes of its value", file)
    return value


def _corrupt(what: str, file: str | None) -> NoReturn:
    raise Refused(f"not a document: {what}", code="corrupt-document", file=file) from None


def _no(path: str, what: str, cure: str) -> NoReturn:
    raise Refused(f"a document holds JSON's values only: {path} is {what}; {cure}", code="document")


def _plain(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, np.generic):
        value = _number(value, path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        return _integer(int(value), path, depth)
    if depth >= DEPTH:
        _no(path, "too deep", f"at most {DEPTH} levels of lists and dicts")
    if isinstance(value, float):
        return {"$float": float(value).hex()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
    if isinstance(value, dict):
        return _object(value, path, depth)
    _no(path, f"of type {type(value).__name__}", "give numbers, texts, lists and dicts of them")


def _number(value: np.generic, path: str) -> bool | int | float:
    if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        _no(path, f"of NumPy type {value.dtype}", "give a plain number")
    plain: bool | int | float = value.item()
    return plain


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        _no(path, "a text with an unpaired surrogate", "give text that UTF-8 can hold")
    return str(value)


def _integer(value: int, path: str, depth: int) -> Any:
    if abs(value) <= EXACT:
        return value
    if depth >= DEPTH:
        _no(path, "too deep", f"at most {DEPTH} levels of lists and dicts")
    if value.bit_length() > math.floor((DIGITS - 1) * math.log2(10)):
        _no(path, f"an integer of {value.bit_length()} bits", f"at most {DIGITS - 1} digits")
    return {"$int": str(value)}


def _object(value: dict[Any, Any], path: str, depth: int) -> dict[str, Any]:
    plain = {}
    for key, v in value.items():
        if not isinstance(key, str):
            _no(path, f"a dict with a key of type {type(key).__name__}", "make each key a text")
        shown = key if len(key) <= 40 else key[:39] + "…"
        name = _text(key, f"a key of {path}")
        plain["$" + name if name.startswith("$") else name] = _plain(v, f"{path}.{shown}", depth + 1)
    if len(plain) != len(value):
        _no(path, "a dict with equal keys", "make each key different")
    return plain


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(v) for v in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        ((key, v),) = plain.items()
        if key == "$float" and isinstance(v, str) and _is_float(v):
            return float.fromhex(v)
        if key == "$int" and isinstance(v, str) and _is_int(v):
            return int(v)
    value = {}
    for key, v in plain.items():
        if key.startswith("$"):
            if not key.startswith("$$"):
                raise ValueError(f"the key {key[:80]!r} means nothing")
            key = key[1:]
        value[key] = _value(v)
    return value


def _never(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:40]!r} is not written so")


def _short(text: str) -> int:
    if len(text) > 17:
        _never(text)
    return int(text)
