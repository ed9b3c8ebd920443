"""Topology: a communicator reordered so that neighbours in number are neighbours in the machine.

A *node* is what shares memory; its ranks become contiguous. A *switch* joins nodes; Slurm's
topology plugin names those above a node, outermost first (SLURM_TOPOLOGY_ADDR).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import Refused
from ..protocol.hierarchy import Hierarchy, Star, Tree
from .agreement import bcast, gather_text
from .world import OPEN_LIMIT, Solo, as_world, default_comm, mpi

if TYPE_CHECKING:
    from mpi4py import MPI

#: Longest text of a node or its switches, in characters.
TEXT = 1024


def order(nodes: Sequence[str], switches: Sequence[str]) -> list[int]:
    """Return the ranks in their new order: nodes contiguous, and so the nodes of each switch.

    `nodes` and `switches` give each rank's node, and the switches above it (``"s0.s1"``, outermost
    first; empty where nothing is known). Groups follow each other by their lowest rank, and ranks
    keep their order within a node, so an order that is good already stays.
    """
    first: dict[tuple[str, ...], int] = {}
    paths = []
    for rank, (node, switch) in enumerate(zip(nodes, switches, strict=True)):
        path = (*switch.split("."), f"node {node}") if switch else (f"node {node}",)
        paths.append([path[: i + 1] for i in range(len(path))])
        for group in paths[-1]:
            first.setdefault(group, rank)
    return sorted(range(len(paths)), key=lambda rank: ([first[group] for group in paths[rank]], rank))


def switches_above(env: Any = os.environ) -> str:
    """Return the switches above this node as Slurm names them; empty where it names none."""
    names = env.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = env.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    if kinds[-1] != "node" or len(kinds) != len(names):
        return ""
    return ".".join(names[:-1])


def by_topology(
    comm: MPI.Intracomm | None = None, *, node: str | None = None, switches: str | None = None
) -> MPI.Intracomm | Solo:
    """Return a communicator of the same processes in which each node's ranks are contiguous.

    As `Create_cart(reorder=True)` may do; give the result to `Checkpointer`, and take the rank from
    it. Nodes may hold different numbers of ranks. Then the nodes of each switch are contiguous
    too, where Slurm names the switches. Owner k is rank k of the result, so what is saved does not
    depend on which host it was. Called by every rank; the caller frees the result.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        None: COMM_WORLD.
    node : str, optional
        This rank's node; None: whatever shares memory with it.
    switches : str, optional
        The switches above the node, outermost first, with dots between; None: as Slurm says.
    """
    raw: Any = default_comm() if comm is None else comm
    if isinstance(raw, Solo) or raw.size == 1:
        return raw if isinstance(raw, Solo) else raw.Dup()
    told = (node_of(raw, node), switches_above() if switches is None else switches)
    every = _everyone(raw, told)
    new = order([one for one, _ in every], [above for _, above in every])
    return raw.Split(0, new.index(raw.rank))  # type: ignore[no-any-return]


def tree_by_nodes(
    comm: MPI.Intracomm | None = None, *, fan_out: int = 16, node: str | None = None
) -> Hierarchy:
    """Return a hierarchy in which one role of each node talks to other nodes.

    For a communicator whose nodes are contiguous, such as that of `by_topology`. On one node a plain
    `Tree`, for one rank a `Star`. Called by every rank.

    Raises `Refused` (``hierarchy``) where a node's ranks are not contiguous.
    """
    raw: Any = default_comm() if comm is None else comm
    if isinstance(raw, Solo) or raw.size == 1:
        return Star()
    nodes = [one for one, _ in _everyone(raw, (node_of(raw, node), ""))]
    runs = [(one, len(list(ranks))) for one, ranks in itertools.groupby(nodes)]
    if len({one for one, _ in runs}) < len(runs):
        raise Refused(
            "the ranks of a node are not contiguous: give the communicator of by_topology(comm)",
            code="hierarchy",
            expected=f"{len(set(nodes))} nodes, one after the other",
            found=f"{len(runs)} stretches",
        )
    return Tree(fan_out, nodes=tuple(size for _, size in runs) if len(runs) > 1 else ())


def node_of(raw: Any, node: str | None) -> str:
    """Return a name for this rank's node: the one given, else the lowest rank that shares memory."""
    if node is not None:
        return node[:TEXT]
    module = mpi()
    shared = raw.Split_type(module.COMM_TYPE_SHARED, raw.rank)
    lowest = bytearray(raw.rank.to_bytes(8, "little"))
    shared.Bcast([lowest, module.BYTE], 0)
    shared.Free()
    return str(int.from_bytes(lowest, "little"))


def nodes(raw: Any) -> int:
    """Return the number of nodes of a communicator. Called by every rank."""
    return len({one for one, _ in _everyone(raw, (node_of(raw, None), ""))}) if raw.size > 1 else 1


def _everyone(raw: Any, told: tuple[str, str]) -> list[tuple[str, str]]:
    """Return what each rank tells, by rank, on every rank."""
    world = as_world(raw)
    mine = msgspec.msgpack.encode([one[:TEXT] for one in told])
    texts = gather_text(world, mine, OPEN_LIMIT)
    data = b"" if texts is None else msgspec.msgpack.encode(texts)
    every = msgspec.msgpack.decode(bcast(world, data, 0, OPEN_LIMIT), type=list[bytes])
    return [msgspec.msgpack.decode(one, type=tuple[str, str]) for one in every]
