"""Canonical JSON: one value, one sequence of bytes (docs/format.md, section 2).

Sorted keys, no insignificant whitespace, UTF-8 without escapes other than those JSON demands.
Digests over declarations are taken of these bytes.
"""

from __future__ import annotations

import json

#: Integers beyond this magnitude are not exact in every JSON reader.
EXACT = 1 << 53


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a value made of dicts, lists, tuples, str, int, bool, None.

    Raises `ValueError` for floats (write them as hexadecimal strings) and for integers above
    2**53 in magnitude (write them as decimal strings).
    """
    _check(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _check(value: object) -> None:
    stack = [value]
    while stack:
        v = stack.pop()
        if type(v) is str or v is None or isinstance(v, (bool, str)):
            continue
        if isinstance(v, int):
            if abs(v) > EXACT:
                raise ValueError(f"{v} is above 2**53: write it as a decimal string")
        elif isinstance(v, dict):
            for k in v:
                if not isinstance(k, str):
                    raise ValueError(f"a key must be a str, not {type(k).__name__}")
            stack.extend(v.values())
        elif isinstance(v, (list, tuple)):
            stack.extend(v)
        else:
            raise ValueError(f"{type(v).__name__} has no canonical form")
