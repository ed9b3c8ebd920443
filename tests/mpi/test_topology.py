"""Ranks reordered by node and switch, and trees that follow the nodes."""

from __future__ import annotations

import hashlib
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.mpi.topology import by_topology, order, switches_above, tree_by_nodes
from alpha_mpi.mpi.world import mpi

pytestmark = pytest.mark.mpi


def test_the_order_of_ranks() -> None:
    none = [""] * 6
    assert order(list("abcabc"), none) == [0, 3, 1, 4, 2, 5]
    assert order(list("aabbcc"), none) == [0, 1, 2, 3, 4, 5]
    assert order(list("bacbbb"), none) == [0, 3, 4, 5, 1, 2]  # uneven nodes, by their lowest rank
    # Nodes 0 and 2 hang on s1, nodes 1 and 3 on s2; above them another level.
    nodes, above = list("0123012"), ["t.s1", "t.s2", "t.s1", "t.s2", "t.s1", "t.s2", "t.s1"]
    assert order(nodes, above) == [0, 4, 2, 6, 1, 5, 3]
    deep = ["t0.s0", "t1.s2", "t0.s1", "t1.s3", "t0.s0"]
    assert order(list("abcde"), deep) == [0, 4, 2, 1, 3]
    assert order([], []) == []


def test_the_switches_that_slurm_names() -> None:
    env = {"SLURM_TOPOLOGY_ADDR": "s0.s2.n7", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
    assert switches_above(env) == "s0.s2"
    for wrong in ({}, {"SLURM_TOPOLOGY_ADDR": "n7", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}):
        assert switches_above(wrong) == ""
    assert switches_above({"SLURM_TOPOLOGY_ADDR": "a.b", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch"}) == ""


def test_one_machine_is_one_node(comm: Any) -> None:
    new = by_topology(comm)
    assert (new.rank, new.size) == (comm.rank, comm.size)
    new.Free()
    # Or several, where srun says so of one machine.
    shared = comm.Split_type(mpi().COMM_TYPE_SHARED)
    sizes = tuple(filter(None, comm.allgather(shared.size if shared.rank == 0 else 0)))
    shared.Free()
    expected = am.Tree(16) if len(sizes) == 1 else am.Tree(16, nodes=sizes)
    assert tree_by_nodes(comm) == (expected if comm.size > 1 else am.Star())
    assert am.by_topology is by_topology and am.tree_by_nodes is tree_by_nodes


def train(comm: Any, store: pathlib.Path, hierarchy: Any) -> None:
    """Two generations of a state that depends on the owner's number alone."""
    rows = am.rows().bounds(24, comm.size, comm.rank)
    mine, mean, state = np.arange(*rows, dtype=np.float64), np.zeros(3), am.State()
    state.partition("w", mine, shape=(24,), layout=am.rows())
    state.replicate("mean", mean)
    with am.Checkpointer(str(store), state, comm, hierarchy=hierarchy, deadline=30, visibility=0.0) as ckpt:
        ckpt.resume()
        for update in (1, 2):
            mine += update
            mean += update
            ckpt.save(update)


def bytes_of(store: pathlib.Path) -> dict[str, str]:
    files = sorted(p for p in (store / "data").rglob("*") if p.is_file())
    return {str(p.relative_to(store)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_ranks_permuted_over_hosts_leave_the_same_bytes(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """The same nodes, their ranks placed on them in other orders: `data/` is equal byte for byte."""
    size = comm.size
    hosts = ["n0"] * -(-size // 2) + ["n1"] * (size - -(-size // 2))  # uneven where size is odd
    places = [hosts, hosts[::-1], hosts[::2] + hosts[1::2]]
    found = []
    for i, placed in enumerate(places):
        new = by_topology(comm, node=placed[comm.rank], switches="")
        told = new.allgather(placed[comm.rank])
        stretches = [host for host, _ in itertools.groupby(told)]
        assert len(stretches) == len(set(placed)), "a node's ranks are not contiguous"
        train(new, mpi_tmp_path / f"s{i}", am.Tree(2) if size > 1 else am.Star())
        comm.Barrier()
        found.append(bytes_of(mpi_tmp_path / f"s{i}"))
        new.Free()
    assert found[0] and found[0] == found[1] == found[2]
    assert comm.allgather(found) == [found] * size


def test_a_tree_by_nodes_saves_and_resumes(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """On the same nodes, on others, and on a plain tree; each goes on from the one before."""
    size = comm.size
    nodes = [str(rank % 3) for rank in range(size)]
    new = by_topology(comm, node=nodes[comm.rank], switches="")
    tree = tree_by_nodes(new, fan_out=2, node=nodes[comm.rank])
    if len(set(nodes)) > 1:
        assert isinstance(tree, am.Tree) and sum(tree.nodes) == size and len(tree.nodes) == min(size, 3)
    shapes: list[Any] = [tree, tree, am.Tree(2) if size > 1 else am.Star(), tree, am.Star()]
    expected, update = np.arange(24, dtype=np.float64), 0
    for shape in shapes:
        first, last = am.rows().bounds(24, size, new.rank)
        mine, mean, state = np.arange(first, last, dtype=np.float64), np.zeros(3), am.State()
        state.partition("w", mine, shape=(24,), layout=am.rows())
        state.replicate("mean", mean)
        store = str(mpi_tmp_path / "s")
        with am.Checkpointer(store, state, new, hierarchy=shape, deadline=30, visibility=0.0) as ckpt:
            assert ckpt.resume().update == update
            assert np.array_equal(mine, expected[first:last]) and (mean == update).all()
            update += 1
            mine += update
            mean += 1
            expected += update
            ckpt.save(update)
    new.Free()
    if comm.rank == 0:
        with am.open(mpi_tmp_path / "s") as opened:
            generation = opened.latest()
            assert np.array_equal(generation["w"][...], expected)


def test_nodes_that_are_not_contiguous_or_differ(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    size = comm.size
    if size < 3:
        assert tree_by_nodes(comm, node="n") == (am.Star() if size == 1 else am.Tree(16))
        return
    with pytest.raises(am.Refused) as caught:
        tree_by_nodes(comm, node=str(comm.rank % 2))
    assert caught.value.code == "hierarchy" and "by_topology" in str(caught.value)
    state = am.State()
    state.replicate("w", np.zeros(2))
    odd = am.Tree(2, nodes=(1, size - 1)) if comm.rank == 1 else am.Tree(2, nodes=(size - 1, 1))
    with pytest.raises(am.Refused) as caught:
        am.Checkpointer(str(mpi_tmp_path / "s"), state, comm, hierarchy=odd)
    assert caught.value.code == "layout-differs" and caught.value.role == 1
    with pytest.raises(am.Refused) as caught:
        am.Checkpointer(str(mpi_tmp_path / "s"), state, comm, hierarchy=am.Tree(2, nodes=(size,) * 2))
    assert caught.value.code == "hierarchy"
