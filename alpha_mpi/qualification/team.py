"""Team: the ranks that take part in a check, and how they speak; plain data in JSON alone.

Every method is called by every rank, in the same order. What raises on one rank is told to all by
`together`, at whatever call the others are, so that all leave the check at the same place.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..errors import CheckpointError, bounded
from ..exits import Exit, end_all
from ..mpi.agreement import bcast
from ..mpi.exchange import exchange
from ..mpi.groups import split
from ..mpi.topology import node_of
from ..mpi.world import World, mpi, open_world

T = TypeVar("T")


class TeamFailed(Exception):
    """A rank could not do its part; raised on every rank alike, and never leaves this room."""


class Team:
    """The ranks of one check.

    Attributes
    ----------
    rank, size : int
        This rank, and how many there are.
    hosts, nodes : list
        Each rank's host name, and its node: what runs under one kernel, and so sees one cache of
        names and pages. MPI and Slurm may count otherwise.
    limit : float
        Longest wait for the others in one call, in seconds.
    comm : object or None
        What `Checkpointer` takes as `comm`.
    """

    def __init__(self, rank: int, size: int, limit: float = 120.0) -> None:
        self.rank, self.size, self.limit = rank, size, limit
        self.comm: Any = None
        self.hosts = [socket.gethostname()] * size
        self.nodes: list[str] = ["0"] * size

    def exchange(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes, by rank, on every rank."""
        return [data]

    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank. Raises `TeamFailed` where a rank had none to give."""
        return self._told({"value": value})

    def _told(self, mine: dict[str, Any]) -> list[Any]:
        every = [json.loads(data) for data in self.exchange(json.dumps(mine).encode())]
        for rank, told in enumerate(every):
            if "error" in told:
                raise TeamFailed(f"rank {rank} on {self.hosts[rank]}: {told['error']}")
        return [told["value"] for told in every]

    def barrier(self) -> None:
        """Wait for every rank."""
        self.allgather(None)

    def from_first(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return self.allgather(value if self.rank == 0 else None)[0]

    def together(self, work: Callable[[], T]) -> T:
        """Do a part of a check, and end it on all ranks alike.

        Raises `TeamFailed` on every rank where it raised on one, and what MPI raises for a lost rank.
        """
        try:
            result = work()
        except TeamFailed:
            raise
        except CheckpointError as error:
            if self.lost:
                raise
            self._fail(error)
        except Exception as error:
            self._fail(error)
        self.barrier()
        return result

    def _fail(self, error: Exception) -> None:
        name = getattr(error, "filename", None)
        where = f" ({os.fsdecode(name)})" if isinstance(name, (str, bytes)) else ""
        self._told({"error": bounded(f"{type(error).__name__}: {error}{where}", 500)})

    @property
    def lost(self) -> bool:
        """Whether a rank was lost or silent, so that none can be spoken to any more."""
        return False

    @contextmanager
    def part(self, count: int) -> Iterator[Any]:
        """Give the first `count` ranks a communicator of their own, and the others None."""
        yield self.comm

    def leads(self) -> list[int]:
        """Return the lowest rank of each node."""
        return sorted({self.nodes.index(node) for node in self.nodes})


class MpiTeam(Team):
    """All ranks of a world of MPI."""

    def __init__(self, limit: float = 120.0, comm: Any = None) -> None:
        self._world: World = open_world(comm, limit)
        super().__init__(self._world.rank, self._world.size, limit)
        self.comm = self._world.raw
        node = kernel() or (node_of(self._world.raw, None) if self.size > 1 else "0")
        told = self.allgather([socket.gethostname(), node])
        self.hosts, self.nodes = [host for host, _ in told], [node for _, node in told]

    def exchange(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes, by rank, on every rank."""
        if self.size == 1:
            return [data]
        parts = exchange(self._world, [data, *[b""] * (self.size - 1)], self.limit)
        whole = json.dumps([part.decode() for part in parts]).encode() if self.rank == 0 else b""
        return [one.encode() for one in json.loads(bcast(self._world, whole, 0, self.limit))]

    @property
    def lost(self) -> bool:
        """Whether a rank was lost or silent."""
        return self._world.lost is not None

    @contextmanager
    def part(self, count: int) -> Iterator[Any]:
        """Give the first `count` ranks a communicator of their own, and the others None."""
        if self.size == 1:
            yield self.comm
            return
        world = split(self._world, 0 if self.rank < count else None, self.limit)
        try:
            yield None if world is None else world.raw
        finally:
            if world is not None:
                world.free()

    def close(self) -> None:
        """Free the communicator. Called by every rank."""
        self._world.free()

    def abort(self, patience: float = 0.0) -> None:
        """End every rank, a second from now: MPI's own end would wait for one that hangs.

        Any but the first rank waits for the first one to do it: that one still has something to say.
        """
        if self.rank:
            time.sleep(patience)
        if self.size > 1:
            end_all(mpi().COMM_WORLD)
        os._exit(Exit.FAILED)


def kernel() -> str:
    """Return the id of the running kernel, other on each machine and after each start; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(64).strip()
    except OSError:
        return ""


class PipeTeam(Team):
    """Processes of one machine that their parent joins by pipes, where there is no MPI."""

    def __init__(self, rank: int, size: int, limit: float = 120.0) -> None:
        super().__init__(rank, size, limit)
        self._in, self._out = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb", buffering=0)

    def exchange(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes, by rank; the parent gathers lines and gives them to all."""
        self._out.write(data + b"\n")
        answer = self._in.readline()
        if not answer:
            raise EOFError("the process that joined the ranks has ended")
        return [one.encode() for one in json.loads(answer)]
