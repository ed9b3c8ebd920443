"""Rules: from a gradient to the next parameters. Every operation is element by element.

Only +, -, *, / and the square root are used, each rounded once as IEEE 754 says: the bits of a word
depend neither on its neighbours nor on the width of the processor's vectors. So any owner may
update any share.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.float64]


class Rule(abc.ABC):
    """What every rule has: `moments` named, `powers` to begin with, and a `program` for identities."""

    name: ClassVar[str]
    moments: ClassVar[tuple[str, ...]]
    #: Powers of constants after t updates are state: computed anew from t they round otherwise.
    bases: ClassVar[tuple[float, ...]] = ()
    program: ClassVar[str]

    @abc.abstractmethod
    def apply(self, rate: float, words: Words, moments: Sequence[Words], powers: Words, g: Words) -> None:
        """Update `words` and `moments` in place by the gradient `g`, all of one share and one length.

        `powers` holds the bases to the number of updates, this one included.
        """


class Momentum(Rule):
    """Gradient descent with momentum (Polyak 1964): v = 0.9 v + g, w = w - rate v."""

    name = "momentum"
    moments = ("velocity",)
    program = "momentum 0.9"

    def apply(self, rate: float, words: Words, moments: Sequence[Words], powers: Words, g: Words) -> None:
        (velocity,) = moments
        velocity[...] = 0.9 * velocity + g
        words[...] = words - rate * velocity


class Adam(Rule):
    """Adam (Kingma and Ba 2015, algorithm 1), with its bias corrections kept as powers of the betas."""

    name = "adam"
    moments = ("first", "second")
    bases = (0.9, 0.999)
    program = "adam 0.9 0.999 1e-08"

    def apply(self, rate: float, words: Words, moments: Sequence[Words], powers: Words, g: Words) -> None:
        first, second = moments
        b1, b2 = self.bases
        first[...] = b1 * first + (1 - b1) * g
        second[...] = b2 * second + (1 - b2) * (g * g)
        root = np.sqrt(second / (1 - powers[1]))
        words[...] = words - rate * (first / (1 - powers[0])) / (root + 1e-8)


#: The rules by name.
RULES: dict[str, Rule] = {rule.name: rule for rule in (Momentum(), Adam())}
