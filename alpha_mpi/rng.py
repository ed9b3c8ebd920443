"""Random streams as per-owner documents: exact, and never somebody else's.

`rng` wraps a generator; its whole state is read at save and put back at resume. NumPy's
`Generator` and `RandomState` with any bit generator whose state is numbers and arrays of integers,
and Python's `random.Random`.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from .errors import Refused

#: Longest array inside a generator's state, in words; the largest known (MT19937) has 624.
_WORDS_LIMIT = 1 << 16


def rng(generator: Any) -> Rng:
    """Return the source of a random generator's state, for `State.per_owner`.

    Parameters
    ----------
    generator : numpy.random.Generator, numpy.random.RandomState, random.Random

    Raises `Refused` (``source``) for anything else, also `random.SystemRandom`, whose stream has
    no state that could be saved.
    """
    return Rng(generator)


class Rng:
    """Source of one random generator's state; see `rng`."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._kind()

    def _kind(self) -> str:
        g = self._generator
        if isinstance(g, np.random.Generator):
            return f"numpy.Generator/{type(g.bit_generator).__name__}"
        if isinstance(g, np.random.RandomState):
            return f"numpy.RandomState/{g.get_state(legacy=False)['bit_generator']}"
        if isinstance(g, random.Random) and not isinstance(g, random.SystemRandom):
            return "random.Random"
        raise Refused(
            "not a random generator whose state can be saved",
            code="source",
            expected="numpy.random.Generator, numpy.random.RandomState or random.Random",
            found=type(g).__name__,
        )

    def read(self) -> dict[str, Any]:
        """Return the generator's whole state as a JSON-able value."""
        g = self._generator
        state: Any
        if isinstance(g, np.random.Generator):
            state = g.bit_generator.state
        elif isinstance(g, np.random.RandomState):
            state = g.get_state(legacy=False)
        else:
            version, words, gauss = g.getstate()
            state = {"gauss_next": gauss, "version": version, "words": list(words)}
        return {"kind": self._kind(), "state": _plain(state)}

    def check(self, value: Any) -> None:
        """Refuse (``wrong-generator``) a state that this generator could not take.

        Called before a resume changes anything; decided on a generator of the same kind that is
        thrown away.
        """
        self._put(value, self._spare())

    def write(self, value: Any) -> None:
        """Give the generator a state that `read` returned. Raises `Refused` (``wrong-generator``)."""
        self._put(value, self._generator)

    def _spare(self) -> Any:
        g = self._generator
        if isinstance(g, np.random.Generator):
            return np.random.Generator(type(g.bit_generator)(0))
        if isinstance(g, np.random.RandomState):
            spare = np.random.RandomState()
            bits = getattr(g, "_bit_generator", None)
            return spare if bits is None else np.random.RandomState(type(bits)(0))
        return random.Random(0)

    def _put(self, value: Any, generator: Any) -> None:
        kind = self._kind()
        if not isinstance(value, dict) or set(value) != {"kind", "state"} or value["kind"] != kind:
            found = value.get("kind") if isinstance(value, dict) else type(value).__name__
            raise Refused(
                "the saved state is that of another kind of random generator",
                code="wrong-generator",
                expected=kind,
                found=str(found)[:200],
            )
        try:
            state = _arrays(value["state"])
            if isinstance(generator, np.random.Generator):
                generator.bit_generator.state = state
            elif isinstance(generator, np.random.RandomState):
                generator.set_state(state)
            else:
                generator.setstate((state["version"], tuple(state["words"]), state["gauss_next"]))
        except (TypeError, ValueError, KeyError, OverflowError, IndexError) as error:
            raise Refused(
                "the saved state does not fit this random generator",
                code="wrong-generator",
                expected=kind,
                found=f"{type(error).__name__}: {error}"[:200],
            ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iu" or value.ndim != 1:
            raise Refused("a random state of unknown form", code="source", found=str(value.dtype))
        return {"array": value.dtype.newbyteorder("=").name, "words": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _arrays(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if set(value) == {"array", "words"}:
        words = value["words"]
        if value["array"] not in ("uint8", "uint16", "uint32", "uint64", "int32", "int64"):
            raise ValueError(f"words of {value['array']!r}")
        if not isinstance(words, list) or len(words) > _WORDS_LIMIT:
            raise ValueError("too many words")
        if any(not isinstance(w, int) or isinstance(w, bool) for w in words):
            raise ValueError("words must be integers")
        return np.array(words, dtype=value["array"])
    return {key: _arrays(item) for key, item in value.items()}
