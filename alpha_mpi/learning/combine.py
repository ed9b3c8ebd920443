"""Combine: the one order in which terms are added, whoever holds them.

MPI adds nothing here: an MPI library may reduce in any order, and in another one on other ranks.
Bytes are exchanged, and each owner adds the words it needs itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..mpi.exchange import exchange
from ..mpi.world import World

Words = NDArray[np.float64]

#: The combine tree in words, as a contract names it.
ORDER = "neighbours in pairs, level by level, an odd last one as it is"


def tree(terms: Sequence[Words]) -> Words:
    """Return the sum of the terms, added along the combine tree; a single one is returned itself.

    Of seven terms: ((0 + 1) + (2 + 3)) + ((4 + 5) + 6). At least one, all of one shape.
    """
    level = list(terms)
    while len(level) > 1:
        pairs = [a + b for a, b in zip(level[0::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def in_turn(terms: Words, arrays: Any = np) -> Words:
    """Return the sum of the rows, one after the other from zero: what one owner does by itself."""
    total: Words = arrays.zeros(terms.shape[1:])
    for term in terms:
        total = total + term
    return total


def swap(world: World, outgoing: Sequence[Words], deadline: float, arrays: Any = np) -> list[Words]:
    """Give ``outgoing[k]`` to owner k; return the words each owner gave to this one, flat, by owner.

    Called by every owner in the same order. The bytes go by the host, whatever library `arrays` is.
    Raises `PeerFailed` past `deadline` seconds of waiting.
    """
    parts = exchange(world, [words.tobytes() for words in outgoing], deadline)
    return [arrays.asarray(np.frombuffer(part, np.float64)) for part in parts]


def gather(world: World, share: Words, deadline: float, arrays: Any = np) -> Words:
    """Return all owners' shares in one array, in owner order, on every owner."""
    everything: Words = arrays.concatenate(swap(world, [share] * world.size, deadline, arrays))
    return everything
