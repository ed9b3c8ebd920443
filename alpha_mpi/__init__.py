"""alpha_mpi: checkpoints that MPI programs can trust.

A *generation* is one consistent state of one learner, or it is not published. Declare a `State`,
open a `Checkpointer`, `resume`, and `save`. Importing this package loads neither mpi4py nor h5py
nor CuPy.
"""

from __future__ import annotations

from .checkpointer import Checkpointer, Generation
from .errors import CheckpointError, CommitFailed, InDoubt, PeerFailed, Refused, Superseded
from .model.capture import Moment
from .model.identity import Contract, Learner
from .model.layout import grid, irregular, mesh, on, per_owner, replicated, rows, shares
from .model.pieces import Box, Interval
from .protocol.hierarchy import Star, Tree
from .rng import rng
from .state import State

__version__ = "0.1.0"

__all__ = [
    "Box",
    "CheckpointError",
    "Checkpointer",
    "CommitFailed",
    "Contract",
    "Generation",
    "InDoubt",
    "Interval",
    "Learner",
    "Moment",
    "PeerFailed",
    "Refused",
    "Star",
    "State",
    "Superseded",
    "Tree",
    "grid",
    "irregular",
    "mesh",
    "on",
    "per_owner",
    "replicated",
    "rng",
    "rows",
    "shares",
]
