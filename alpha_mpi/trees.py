"""Trees: nested dicts, lists and tuples of arrays and JSON-able leaves, taken apart and put together.

Each array becomes a region, named by the way to it: ``"model/layers/0"``. Everything else is the
*structure*, one JSON-able value in which arrays have left their places. In a name, ``/`` and ``~``
inside a key are written ``~1`` and ``~0``, an empty key ``~e``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from .errors import Refused
from .format.documents import DEPTH

#: The region that holds the structure; no way to an array is spelled like this.
STRUCTURE = "~tree"


def take_apart(tree: Any, whole: Collection[str] = ()) -> tuple[Any, dict[str, Any]]:
    """Return (structure, arrays by name) of a tree.

    What stands at a name of `whole` is taken as an array whatever it is. Raises `Refused`
    ``document`` for a key that is no text, or a tree too deep.
    """
    arrays: dict[str, Any] = {}
    return _apart(tree, (), frozenset(whole), arrays), arrays


def put_together(structure: Any, give: Callable[[str], Any]) -> Any:
    """Return the tree of a structure; `give` returns the array of a name."""
    return _together(structure, (), give)


def is_array(value: Any) -> bool:
    """Return whether a leaf is an array: NumPy's, or another library's."""
    if isinstance(value, np.ndarray | np.generic):
        return True
    names = ("__array__", "__dlpack__", "__cuda_array_interface__")
    return not isinstance(value, type) and any(hasattr(value, name) for name in names)


def name_of(way: tuple[str, ...]) -> str:
    """Return the name of the array at the end of these keys."""
    return "/".join(key.replace("~", "~0").replace("/", "~1") or "~e" for key in way) or "~e"


def _apart(value: Any, way: tuple[str, ...], whole: frozenset[str], arrays: dict[str, Any]) -> Any:
    if len(way) * 2 > DEPTH - 8:
        raise Refused("a tree is nested too deep", code="document", found=name_of(way)[:200])
    name = name_of(way)
    if name in whole or is_array(value):
        arrays[name] = value
        return {"array": "scalar" if isinstance(value, np.generic) else "array"}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise Refused(
                    f"a key of a tree is a text, at {name!r}", code="document", found=repr(key)[:80]
                )
        parts = {key: _apart(part, (*way, key), whole, arrays) for key, part in value.items()}
        plain = all(set(part) == {"value"} for part in parts.values())
        return {"value": value} if plain else {"dict": [[key, part] for key, part in parts.items()]}
    if isinstance(value, list | tuple):
        items = [_apart(part, (*way, str(i)), whole, arrays) for i, part in enumerate(value)]
        plain = isinstance(value, list) and all(set(part) == {"value"} for part in items)
        kind = "list" if isinstance(value, list) else "tuple"
        return {"value": value} if plain else {kind: items}
    return {"value": value}


def _together(part: Any, way: tuple[str, ...], give: Callable[[str], Any]) -> Any:
    if not isinstance(part, dict) or len(part) != 1:
        raise Refused("not the structure of a tree", code="corrupt-document", found=repr(part)[:80])
    ((kind, inner),) = part.items()
    if kind == "value":
        return inner
    if kind == "array":
        array = give(name_of(way))
        return array[()] if inner == "scalar" and isinstance(array, np.ndarray) else array
    if kind == "dict":
        return {key: _together(each, (*way, key), give) for key, each in inner}
    if kind in ("list", "tuple"):
        items = [_together(each, (*way, str(i)), give) for i, each in enumerate(inner)]
        return items if kind == "list" else tuple(items)
    raise Refused("not the structure of a tree", code="corrupt-document", found=str(kind)[:80])
