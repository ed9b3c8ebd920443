"""alpha_mpi: checkpoints that MPI programs can trust.

A *generation* is one consistent state of one learner, or it is not published. Declare a `State`,
open a `Checkpointer`, `resume`, and `save`. Importing this package loads neither mpi4py nor h5py
nor CuPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .checkpointer import Checkpointer, Generation
from .errors import CheckpointError, CommitFailed, InDoubt, PeerFailed, Refused, Superseded
from .exits import Exit, run
from .model.accept import Accept
from .model.capture import Moment
from .model.identity import Contract, Learner
from .model.layout import grid, irregular, mesh, on, per_owner, replicated, rows, shares
from .model.pieces import Box, Interval
from .protocol.hierarchy import Star, Tree
from .rng import rng
from .state import State
from .store.keep import Keep
from .streams import stream
from .timing import Every

if TYPE_CHECKING:
    from .mpi.topology import by_topology, tree_by_nodes
    from .oneline import load, save
    from .reading import open

__version__ = "0.1.0"

__all__ = [
    "Accept",
    "Box",
    "CheckpointError",
    "Checkpointer",
    "CommitFailed",
    "Contract",
    "Every",
    "Exit",
    "Generation",
    "InDoubt",
    "Interval",
    "Keep",
    "Learner",
    "Moment",
    "PeerFailed",
    "Refused",
    "Star",
    "State",
    "Superseded",
    "Tree",
    "by_topology",
    "grid",
    "irregular",
    "load",
    "mesh",
    "on",
    "open",
    "per_owner",
    "replicated",
    "rng",
    "rows",
    "run",
    "save",
    "shares",
    "stream",
    "tree_by_nodes",
]

#: What is loaded when it is first used, and the module it lives in.
_LAZY = {
    "by_topology": "mpi.topology",
    "load": "oneline",
    "open": "reading",
    "save": "oneline",
    "tree_by_nodes": "mpi.topology",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
