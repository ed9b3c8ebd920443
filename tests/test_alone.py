"""One owner: without a launcher, with one, and on a machine where no MPI library is found."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from launch import env, mpiexec

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: Saves or resumes; says the moment and how many owners there are.
JOB = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
HIDE
import numpy as np
import alpha_mpi as am
from fill import fill, same_bits

store, kind = sys.argv[1:3]
hierarchy = am.Tree(int(kind)) if kind.isdigit() else None
w, mean, given = np.zeros(0, np.float32), np.zeros(9), []
size = (101,)

def declare(world_size, rank):
    global w
    first, last = am.shares().bounds(size[0], world_size, rank)
    w = np.zeros(last - first, np.float32)
    state = am.State()
    state.partition("w", w, shape=size, layout=am.shares())
    state.replicate("mean", mean)
    state.per_owner("rng", am.rng(np.random.default_rng(rank)))
    state.document("schedule", lambda: {{"rate": 0.5}}, given.append)
    return state, slice(first, last)

OWNERS
state, mine = declare(owners, rank)
with am.Checkpointer(store, state, hierarchy=hierarchy, deadline=60, visibility=0.0, keep=1) as ckpt:
    moment = ckpt.resume()
    if moment.update:
        assert same_bits(w, fill("w", moment.update, size, np.float32)[mine])
        assert same_bits(mean, fill("mean", moment.update, (9,), np.float64))
        assert given == [{{"rate": 0.5}}]
    for update in range(moment.update + 1, moment.update + 3):
        w[...] = fill("w", update, size, np.float32)[mine]
        mean[...] = fill("mean", update, (9,), np.float64)
        ckpt.save(update)
if rank == 0:
    print("resumed", moment.update, "epoch", moment.epoch)
"""
ALONE = "owners, rank = 1, 0"
WORLD = "from mpi4py import MPI; owners, rank = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank"
#: Ways in which a machine has no MPI; the first holds for an mpi4py that looks for the library.
HIDDEN = {
    "library": "import os; os.environ['MPI4PY_LIBMPI'] = '/nonexistent/libmpi.so'",
    "module": "sys.modules['mpi4py.MPI'] = None",
    "package": "sys.modules['mpi4py'] = None",
}


def run(
    store: pathlib.Path,
    kind: str,
    *,
    ranks: int | None = None,
    owners: str = ALONE,
    hide: str = "",
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run JOB in a process of its own, or on `ranks` ranks."""
    code = JOB.replace("OWNERS", owners).replace("HIDE", hide)
    command = [sys.executable, "-c", code, str(store), kind]
    if ranks is not None:
        command = [*mpiexec(ranks), *command]
    return subprocess.run(command, env=env(**more), capture_output=True, text=True, timeout=100, check=False)


def said(told: subprocess.CompletedProcess[str]) -> str:
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout.strip()


@pytest.mark.parametrize("kind", ["default", "1", "3"])
def test_one_owner_with_and_without_a_launcher(tmp_path: pathlib.Path, kind: str) -> None:
    store = tmp_path / "s"
    assert said(run(store, kind)) == "resumed 0 epoch 1"
    assert said(run(store, kind, ranks=1)) == "resumed 2 epoch 2"
    assert said(run(store, kind)) == "resumed 4 epoch 3"


def test_without_a_communicator_all_ranks_are_owners(tmp_path: pathlib.Path) -> None:
    for resumed, epoch in ((0, 1), (2, 2)):
        told = said(run(tmp_path / "s", "default", ranks=3, owners=WORLD))
        assert told == f"resumed {resumed} epoch {epoch}"


@pytest.mark.parametrize("hidden", HIDDEN)
def test_one_owner_where_no_mpi_is_found(tmp_path: pathlib.Path, hidden: str) -> None:
    store = tmp_path / "s"
    assert said(run(store, "default", hide=HIDDEN[hidden])) == "resumed 0 epoch 1"
    assert said(run(store, "default", hide=HIDDEN[hidden])) == "resumed 2 epoch 2"
    assert said(run(store, "default")) == "resumed 4 epoch 3"  # nor does the store know


def test_r19_several_processes_where_no_mpi_is_found(tmp_path: pathlib.Path) -> None:
    store = tmp_path / "s"
    for told in (
        run(store, "default", hide=HIDDEN["module"], ranks=2),
        run(store, "default", hide=HIDDEN["module"], SLURM_STEP_NUM_TASKS="4"),
        run(store, "default", SLURM_STEP_NUM_TASKS="4"),
    ):
        assert told.returncode != 0 and "[launcher]" in told.stderr, told.stdout + told.stderr
    assert not store.exists()
