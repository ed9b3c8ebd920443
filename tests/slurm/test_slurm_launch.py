"""How ranks come to be under Slurm: what is refused, what is legal, uneven nodes. R19."""

import itertools
import sys

import pytest

import alpha_mpi as am
from alpha_mpi.testing import launch

from .conftest import TRAIN

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("glue", ["none", "pmi2 but of another MPI"])
def test_processes_that_do_not_know_of_each_other(run, cluster, glue):
    """R19: Slurm launched four, and each believes itself alone. Nothing is made, on none of them."""
    mpi = "pmi2" if glue.startswith("pmi2") else "none"
    python = [sys.executable]
    if mpi == "pmi2":  # MPICH without its rank's file descriptor is alone, as another MPI would be
        python = ["env", "-u", "PMI_FD", *python]
    told = cluster.run(["srun", "-n4", f"--mpi={mpi}", *python, TRAIN, str(run.folder), "--updates", "10"])
    assert told.returncode == am.Exit.FAILED, told.stderr
    refused = [line for line in told.stderr.splitlines() if "[launcher]" in line]
    assert len(refused) == 4, told.stderr
    assert all("started 4 processes but MPI sees one" in line for line in refused), refused
    assert all("--mpi=" in line for line in refused), refused
    assert not (run.folder / "ckpt").exists() and not (run.folder / "progress").exists()


def test_mpiexec_of_two_in_an_allocation_of_four(run):
    job = run.submit("--updates", 20, ranks=4, launch=" ".join(launch.mpiexec(2)))
    run.finished(job)
    assert "2 owners, epoch 1" in run.log(job)
    run.check(20)


def test_one_process_inside_sbatch(run):
    job = run.submit("--updates", 20, ranks=4, launch="")
    run.finished(job)
    assert "1 owners, epoch 1" in run.log(job)
    run.check(20)


def test_one_process_of_a_step_of_four_for_itself(run, cluster):
    """A sub-communicator of one, in a step whose processes do know of each other, is legal."""
    code = (
        "from mpi4py import MPI; import numpy as np, alpha_mpi as am; import sys\n"
        "w = np.arange(3.0); s = am.State(); s.replicate('w', w)\n"
        "with am.Checkpointer(f'{sys.argv[1]}/of-{MPI.COMM_WORLD.rank}', s, MPI.COMM_SELF) as c:\n"
        "    c.resume(); w += 1; print('owner of', c.save(1))"
    )
    told = cluster.run(["srun", "-n4", "--mpi=pmi2", sys.executable, "-c", code, str(run.folder)])
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("owner of e000001-000001") == 4


def test_uneven_nodes(run, cluster):
    """Five ranks dealt in turn over three nodes; made neighbours, on a tree that follows the nodes."""
    options = ("--nodes=3", "--ntasks=5", "--distribution=cyclic")
    job = run.submit("--updates", 30, "--by-nodes", options=options)
    run.finished(job)
    assert len(cluster.nodes_of(job)) == 3 and "5 owners, epoch 1" in run.log(job)
    run.check(30)
    again = run.submit("--updates", 50, "--by-nodes", options=("--nodes=2", "--ntasks=7"))
    run.finished(again)
    assert run.starts(again) == [30]
    run.check(50)


def test_switches(run, cluster):
    """Nodes hang on two switches in turn; the ranks of a switch, and of its nodes, become neighbours."""
    code = (
        "import os; from mpi4py import MPI; import alpha_mpi as am\n"
        "comm = am.by_topology(MPI.COMM_WORLD)\n"
        "where = comm.gather((os.environ['SLURM_TOPOLOGY_ADDR'], MPI.COMM_WORLD.rank))\n"
        "if where: print(*[f'{addr} {rank}' for addr, rank in where], sep='\\n')"
    )
    layout = ("--nodes=4", f"--nodelist={','.join(cluster.nodes[:4])}", "--ntasks=7", "--distribution=cyclic")
    told = cluster.run(["srun", *layout, "--mpi=pmi2", sys.executable, "-c", code])
    assert told.returncode == 0, told.stderr
    lines = [line.split() for line in told.stdout.splitlines()]
    assert sorted(int(rank) for _, rank in lines) == list(range(7))
    assert [int(rank) for _, rank in lines] != list(range(7))
    where = [addr.split(".") for addr, _ in lines]
    for depth, groups in (2, 2), (3, 4):
        assert len([key for key, _ in itertools.groupby(addr[:depth] for addr in where)]) == groups, where

    job = run.submit("--updates", 30, "--by-nodes", options=layout)
    run.finished(job)
    run.check(30)
