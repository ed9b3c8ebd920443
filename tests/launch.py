"""Starting ranks in tests: ``mpiexec(n)`` and ``env(...)``. How it is done: alpha_mpi.testing.launch."""

from __future__ import annotations

from alpha_mpi.testing.launch import environment, mpiexec

__all__ = ["env", "mpiexec"]


def env(**more: str) -> dict[str, str]:
    """Return the environment to launch with, plus `more`."""
    return environment(more)
