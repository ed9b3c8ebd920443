"""World: what is refused before anything is sent, and what stands in where there is no MPI."""

from __future__ import annotations

from typing import Any

import pytest

from alpha_mpi.errors import PeerFailed, Refused
from alpha_mpi.mpi import world as worlds
from alpha_mpi.mpi.topology import by_topology
from alpha_mpi.mpi.world import Solo, World, default_comm, duplicate, open_world


@pytest.fixture
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "load", lambda: None)
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_library_there_is_one_owner(no_mpi: None) -> None:
    world = open_world(None, 1)
    assert (world.rank, world.size, world.alone) == (0, 1, True)
    assert duplicate(world, 1).alone
    world.free()


def test_several_processes_without_mpi_are_refused(no_mpi: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(Refused) as refused:
        default_comm()
    assert refused.value.code == "launcher"
    with pytest.raises(Refused) as refused:
        worlds.mpi()
    assert refused.value.code == "no-mpi"


@pytest.mark.mpi
def test_a_singleton_under_another_launcher_is_refused(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    if comm.size > 1:
        assert default_comm() == comm
        return
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    # Also when COMM_WORLD is given by name, or what a program makes of it.
    made = [comm.Dup(), comm.Split(0, 0), by_topology(comm)]
    for given in (None, comm, *made):
        with pytest.raises(Refused) as refused:
            open_world(given, 1)
        assert refused.value.code == "launcher" and "--mpi=pmi2" in str(refused.value)
    for one in made:
        one.Free()
    open_world(worlds.mpi().COMM_SELF, 1).free()  # alone, and meant


#: Launches that are legal: what the variables say, as seen by a world of one rank.
LEGAL: dict[str, dict[str, str]] = {
    "one process in a batch script": {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},
    "one task in a step": {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},
    "mpiexec -n 1 in an allocation, by way of srun": {"SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "1"},
    "Open MPI's mpiexec -n 1 inside a step": {"PMI_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "1"},
}


@pytest.mark.mpi
@pytest.mark.parametrize("what", LEGAL)
def test_legal_launches(comm: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """And more ranks than one are never refused: mpiexec of 2 in an allocation of 4."""
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in LEGAL[what].items():
        monkeypatch.setenv(name, value)
    opened = open_world(comm, 30)
    assert opened.size == comm.size
    opened.free()


@pytest.mark.mpi
def test_a_sub_communicator_of_one_is_nobodys_mistake(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("PMI_SIZE", "4")
    own = open_world(worlds.mpi().COMM_SELF, 30)
    assert own.alone
    own.free()


@pytest.mark.mpi
@pytest.mark.parametrize("what", ["object", "null", "threads"])
def test_a_communicator_that_cannot_be_used_is_refused(
    comm: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpi4py import MPI

    given: Any = {"object": object(), "null": MPI.COMM_NULL, "threads": comm}[what]
    if what == "threads":
        monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SINGLE)
    with pytest.raises(Refused) as refused:
        open_world(given, 5)
    assert refused.value.code == ("threads" if what == "threads" else "communicator")


@pytest.mark.mpi
def test_the_users_communicator_is_never_used(comm: Any) -> None:
    world = open_world(comm, 30)
    assert world.raw != comm
    assert (world.rank, world.size) == (comm.rank, comm.size)
    assert world.alone or world.mark == world.raw.bcast(world.mark)
    world.free()


@pytest.mark.mpi(min_size=2)
def test_a_world_somebody_does_not_close_is_left_alone(comm: Any) -> None:
    world = open_world(comm, 30)
    if world.rank > 0:
        world.free(0.3)  # returns; the late one would find it gone
        assert world.lost is not None and world.lost.code == "silent"
        with pytest.raises(PeerFailed):
            world.check()
    comm.Barrier()
    world.free(0.3)


def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def Test(self) -> bool:
            return False

    class Module:
        class Exception(Exception):
            pass

    monkeypatch.setattr(worlds, "load", lambda: Module)
    world = World(Solo())
    with pytest.raises(PeerFailed) as failed:
        world.wait(Never(), 0.01, "nobody", role=3)
    assert (failed.value.code, failed.value.role) == ("silent", 3)
