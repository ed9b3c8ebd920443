"""The learner: fits outputs linearly to the features of each item, by least squares, data-parallel.

An update: every owner gets all parameters, computes the gradient of each of its items, gives every
owner the words of the gradient that this one needs, adds what it is given in the stated order, and
applies the rule to its share; with NumPy, or on a GPU with CuPy. All in float64, with products
element by element and sums in loops: no matrix product, no `numpy.sum`, no sum by MPI, whose orders
nobody states.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Refused
from ..model.capture import Moment
from ..model.identity import Contract, Learner
from ..model.layout import share, shares
from ..mpi.world import open_world
from ..state import State
from .combine import gather, in_turn, swap, tree
from .inputs import Inputs, number
from .placement import PLACEMENTS
from .rules import RULES

if TYPE_CHECKING:
    from typing_extensions import Self

Words = NDArray[np.float64]

#: Seed of the initial parameters.
INITIAL = 3


class DataParallel:
    """A learner of one rule and one placement of state. Called by every owner alike.

    Parameters
    ----------
    rule : str
        ``"momentum"`` or ``"adam"``.
    placement : str
        ``"replicated"``: every owner holds all. ``"optimizer-partitioned"``: parameters are
        replicated, moments partitioned. ``"parameter-partitioned"``: both are partitioned.
    comm : mpi4py.MPI.Intracomm, optional
        Owner k is its rank k; it is duplicated. None: as for `Checkpointer`.
    shape : (int, int)
        Outputs and features: the shape of the parameters.
    rate : float
        The learning rate.
    inputs : Inputs, optional
        The input sequence.
    arrays : module, optional
        NumPy, or a library of its manner: with CuPy the learner runs on the current GPU. The bits of
        the combine order, and of each operation, are the same on both (docs/learning.md).
    deadline : float
        Longest wait for the other owners in one step, in seconds.

    Attributes
    ----------
    parameters : ndarray of float64
        Flat in C order: all words, or this owner's share.
    moments : list of ndarray of float64
        As the rule names them, each flat like `parameters`.
    powers : ndarray of float64
        The rule's bases to the number of updates; replicated.
    loss : float
        A running mean of the losses; replicated.
    update, cursor : int
        Finished updates, and items consumed since the learner began.

    Raises `Refused` (``argument``) for a rule or placement that is not there.
    """

    def __init__(
        self,
        rule: str = "momentum",
        placement: str = "replicated",
        comm: Any = None,
        *,
        shape: tuple[int, int] = (3, 5),
        rate: float = 0.05,
        inputs: Inputs | None = None,
        arrays: Any = np,
        deadline: float = 600.0,
    ) -> None:
        for value, known in ((rule, RULES), (placement, PLACEMENTS)):
            if value not in known:
                raise Refused(
                    "no such rule or placement of state",
                    code="argument",
                    expected=" or ".join(known),
                    found=repr(value)[:80],
                )
        self.rule, self.placement = RULES[rule], PLACEMENTS[placement]
        self.shape, self.rate, self.inputs = shape, rate, inputs or Inputs()
        self._world = open_world(comm, deadline)
        self._deadline, self._arrays = deadline, arrays
        words, (begin, end) = shape[0] * shape[1], self._share()
        initial = np.array([number(INITIAL, 0, i) for i in range(words)])
        self.parameters: Words = arrays.asarray(initial[begin:end] if self.placement.parameters else initial)
        size = end - begin if self.placement.moments else words
        self.moments: list[Words] = [arrays.zeros(size) for _ in self.rule.moments]
        self.powers: Words = arrays.ones(len(self.rule.bases))
        self._bases: Words = arrays.asarray(np.array(self.rule.bases, np.float64))
        self.loss = 0.0
        self.update = self.cursor = 0

    # ------------------------------------------------ what a checkpoint needs to know

    @property
    def identity(self) -> Learner:
        """Who learns: programs, initial state, rate and input sequence; not by whom or how split."""
        return Learner(
            f"reference-{self.rule.name}",
            rate=self.rate,
            inputs=self.inputs.as_data(),
            programs={"model": "linear least squares", "rule": self.rule.program},
            initial={"parameters": f"seed {INITIAL}", "moments": "zero"},
        )

    @property
    def contract(self) -> Contract:
        """On what the bits depend."""
        return self.placement.contract(self._world.size)

    def state(self) -> State:
        """Return the state: the same regions for every placement of it."""
        state = State()
        self._declare(state, "parameters", self.parameters, self.placement.parameters)
        for name, words in zip(self.rule.moments, self.moments, strict=True):
            self._declare(state, name, words, self.placement.moments)
        if self.rule.bases:
            state.replicate("powers", self.powers)
        state.replicate("loss", self, "loss")
        return state

    def stand_at(self, moment: Moment) -> None:
        """Go on from the moment that `Checkpointer.resume` returned."""
        self.update, self.cursor = moment.update, moment.cursor

    def _declare(self, state: State, name: str, words: Words, partitioned: bool) -> None:
        if partitioned:
            state.partition(name, words, shape=self.shape, layout=shares())
        else:
            state.replicate(name, words.reshape(self.shape))

    # ------------------------------------------------ training

    def step(self) -> float:
        """Finish one update; return its loss, the mean over the batch, the same on every owner."""
        everything = self._all(self.parameters) if self.placement.parameters else self.parameters
        taken = self.inputs.taken(self.cursor, self._world.size, self._world.rank)
        terms = self._arrays.zeros((len(taken), everything.size + 1))
        for i, at in enumerate(taken):
            terms[i] = self._gradient(everything, at)
        own = terms if self.placement.by_item else in_turn(terms, self._arrays).reshape(1, -1)
        total = self._combine(own)
        total = total / self.inputs.batch

        self.powers *= self._bases
        begin, end = self._share() if self.placement.moments else (0, everything.size)
        mine = self.parameters if self.placement.parameters else self.parameters[begin:end]
        self.rule.apply(self.rate, mine, self.moments, self.powers, total[:-1])
        if self.placement.moments and not self.placement.parameters:
            self.parameters[...] = self._all(mine)

        loss = float(total[-1])
        self.loss += 0.1 * (loss - self.loss)
        self.update, self.cursor = self.update + 1, self.cursor + self.inputs.batch
        return loss

    def _gradient(self, parameters: Words, at: int) -> Words:
        """Return the gradient of one item's loss, flat, and the loss itself as the last word."""
        outputs, features = self.shape
        item = self._arrays.asarray(self.inputs.item(at, features + outputs))
        x, wanted = item[:features], item[features:]
        weights, found = parameters.reshape(self.shape), self._arrays.zeros(outputs)
        for i in range(features):
            found = found + weights[:, i] * x[i]
        residual, loss = found - wanted, self._arrays.zeros(1)
        squares = residual * residual
        for i in range(outputs):
            loss = loss + squares[i]
        gradient: Words = self._arrays.concatenate([(residual.reshape(-1, 1) * x).reshape(-1), loss])
        return gradient

    def _combine(self, terms: Words) -> Words:
        """Return the sum of all owners' terms along the combine tree: this owner's words, and the loss.

        Each owner brings rows of terms, and is given the columns of its own share of them.
        """
        columns = [[*range(*self._share(k)), terms.shape[1] - 1] for k in range(self._world.size)]
        if not self.placement.moments:
            columns = [list(range(terms.shape[1]))] * self._world.size
        outgoing = [terms[:, wanted] for wanted in columns]
        parts = swap(self._world, outgoing, self._deadline, self._arrays)
        width = len(columns[self._world.rank])
        rows = [part.reshape(-1, width) for part in parts]
        return tree([each[i] for each in rows for i in range(each.shape[0])])

    def _all(self, mine: Words) -> Words:
        return gather(self._world, mine, self._deadline, self._arrays)

    def _share(self, owner: int | None = None) -> tuple[int, int]:
        owner = self._world.rank if owner is None else owner
        return share(self.shape[0] * self.shape[1], self._world.size, owner)

    def close(self) -> None:
        """Free the communicator. Called by every owner."""
        self._world.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
