"""Streams: random draws that depend on the sample, not on the owner who needs them.

A *stream* gives a generator for each index of the input sequence. It has no position: what is drawn
for item 7000 is the same on every number of owners, in any order, and after every resume, and its
state is two words that all owners hold alike.

The generator is NumPy's Philox4x64-10, a counter that is encrypted: J. K. Salmon, M. A. Moraes,
R. O. Dror and D. E. Shaw, *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .canonical import canonical
from .errors import Refused

_KIND = "Philox4x64-10"
_WORD = 1 << 64
_SEEDS = 1 << 256


def stream(seed: int, *labels: str | int) -> Stream:
    """Return the stream of a seed, the same on every owner.

    Streams of other `labels` (``stream(1, "dropout")``, ``stream(1, "augment")``) have nothing to
    do with each other. Raises `Refused` (``argument``) for a seed that is no integer, such as None:
    owners would draw different ones.
    """
    named = [str(_integer("seed", seed, _SEEDS))]
    for label in labels:
        # An integer and the text of its digits are two labels.
        named.append(f"text {label}" if isinstance(label, str) else f"{_integer('label', label, _SEEDS)}")
    hashed = hashlib.sha256(b"alpha_mpi stream\n" + canonical(named)).digest()
    return Stream(int.from_bytes(hashed[:8], "little"), int.from_bytes(hashed[8:16], "little"))


class Stream:
    """Draws by index; see `stream`. Declared with ``state.document("noise", stream)``.

    Attributes
    ----------
    key : tuple of int
        The two words of 64 bits that are its whole state. A resume brings those that were saved.
    """

    def __init__(self, *key: int) -> None:
        self.key = key

    def at(self, index: int) -> np.random.Generator:
        """Return a fresh generator for one index of the sequence, from 0 to 2**64 - 1.

        Its words are Philox4x64-10 of this key at the counters (1, 0, index, 0), (2, 0, index, 0),
        and so on, lowest word first: two indices never meet.
        """
        counter = np.array([0, 0, _integer("index", index, _WORD), 0], np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=np.array(self.key, np.uint64)))

    def each(self, indices: Iterable[int], draw: Callable[[np.random.Generator], Any]) -> npt.NDArray[Any]:
        """Return ``draw(generator)`` for each index, stacked along a new first axis.

        ``stream.each(range(cursor, cursor + n), lambda g: g.standard_normal(64))`` has shape (n, 64).
        """
        drawn = [np.asarray(draw(self.at(index))) for index in indices]
        if drawn:
            return np.stack(drawn)
        one = np.asarray(draw(self.at(0)))  # an owner without a share needs the right shape too
        return np.empty((0, *one.shape), one.dtype)

    def read(self) -> dict[str, Any]:
        """Return the state as a JSON-able value."""
        return {"key": list(self.key), "kind": _KIND}

    def check(self, value: Any) -> None:
        """Refuse (``wrong-generator``) what `read` could not have returned. Changes nothing."""
        words = value.get("key") if isinstance(value, dict) else None
        good = isinstance(words, list) and len(words) == 2 and value.get("kind") == _KIND
        if not good or not all(type(w) is int and 0 <= w < _WORD for w in words):  # type: ignore[union-attr]
            raise Refused(
                "the saved state is not that of a stream",
                code="wrong-generator",
                expected=_KIND,
                found=repr(value)[:80],
            )

    def write(self, value: Any) -> None:
        """Take a state that `read` returned. Raises `Refused` (``wrong-generator``)."""
        self.check(value)
        self.key = tuple(value["key"])


def _integer(name: str, value: Any, limit: int) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < limit:
        raise Refused(
            f"a stream's {name} is an integer from 0 to 2**{limit.bit_length() - 1} - 1",
            code="argument",
            found=repr(value)[:80],
        )
    return number
