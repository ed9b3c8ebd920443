"""Ranks: how many processes the launcher started, as its variables say; MPI is not asked."""

from __future__ import annotations

import os

from ..testing.launch import RANK_VARIABLES

SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def rank() -> int:
    """Return this process's rank; 0 where no launcher is."""
    return max(0, _first(RANK_VARIABLES, 0))


def size() -> int:
    """Return how many processes were started; 1 where no launcher is."""
    return max(1, _first(SIZE_VARIABLES, 1))


def _first(variables: tuple[str, ...], default: int) -> int:
    for name in variables:
        value = os.environ.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return default
