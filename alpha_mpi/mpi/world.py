"""The library's own communicator: found, checked and duplicated here, and nowhere else.

A *world* is the duplicate of the user's communicator; owner k is its rank k. It remembers when a
peer was lost or silent: from then on its collectives are out of step, so it refuses new ones.
mpi4py is imported by `load` alone, when a world is first asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import Cause, PeerFailed, Refused, error_of
from .waiting import Nap, Patience

if TYPE_CHECKING:
    from types import ModuleType

    from mpi4py import MPI

#: Default limit in seconds for opening a world: every rank must ask within it.
OPEN_LIMIT = 600.0
#: Longest wait for the other owners when a world is freed, in seconds.
FREE_LIMIT = 10.0
#: Bytes of a world's mark.
MARK = 8
#: Who has left may have done so after its part in a collective; wait so long before believing not.
GRACE = 1.0


class Drained(Protocol):
    """What a world needs of its channels."""

    counters: Any

    def poll(self) -> list[tuple[int, bytes]]:
        """Take what has arrived."""

    def pending(self) -> int:
        """Return how many sends have not left."""


class Solo:
    """One owner without MPI: what `World.raw` stands for when no MPI library is found."""

    rank = 0
    size = 1


class World:
    """Our duplicate of a communicator; owner k is rank k.

    Attributes
    ----------
    raw : mpi4py.MPI.Intracomm or Solo
        The communicator. Only this room may touch it.
    rank, size : int
        This owner and the number of owners.
    mark : bytes
        The same on every rank, and on no other world of this program; begins every message.
    channels : list of Channel
        Every channel on this world; none may hold messages when the world is freed.
    settle : callable or None
        Called with a limit in seconds before the world is freed; says whether every collective is
        complete on this owner.
    watch : callable or None
        Looked at while a collective waits; a cause that it returns ends the waiting.
    one_sided : bool
        Whether windows may be used; else bytes go by messages. The same on every rank.
    lost : Cause or None
        Set once a collective ran into its deadline: no collective or window is started any more.
    """

    def __init__(self, raw: MPI.Intracomm | Solo, own: bool = False, mark: bytes = bytes(MARK)) -> None:
        self.raw: Any = raw
        self.mark = mark
        self.rank: int = raw.rank
        self.size: int = raw.size
        self.one_sided = True
        self.lost: Cause | None = None
        self.channels: list[Drained] = []
        self.settle: Callable[[float], bool] | None = None
        self.watch: Callable[[], Cause | None] | None = None
        self._own = own
        self._unfinished: list[Any] = []

    @property
    def alone(self) -> bool:
        """Whether there is one owner, so that no message is ever needed."""
        return self.size == 1

    def check(self) -> None:
        """Raise the error of the lost peer, if one was lost."""
        if self.lost is not None:
            raise error_of(self.lost)

    def wait(self, request: Any, deadline: float, what: str, role: int | None = None) -> None:
        """Complete one non-blocking operation by polling, for at most `deadline` seconds.

        Raises `PeerFailed` (code ``silent``) past the deadline, blaming `role`, and code ``lost``
        if MPI reports a dead process. The world is lost from then on.
        """
        if not poll(request, deadline, self.fail, self._watched(request)):
            # The operation can be neither cancelled nor freed: its buffers must outlive it.
            self._unfinished.append(request)
            self.fail(
                PeerFailed(
                    f"nothing heard for {deadline:g} s while waiting for {what}",
                    code="silent",
                    role=role,
                ).cause()
            )

    def _watched(self, request: Any) -> Callable[[], None] | None:
        watch = self.watch
        if watch is None:
            return None

        def look() -> None:
            cause = watch()
            if cause is not None:
                self._unfinished.append(request)
                self.fail(cause)

        return look

    def fail(self, cause: Cause) -> None:
        """Remember that the world is out of step, and raise the error."""
        if self.lost is None:
            self.lost = cause
        raise error_of(cause)

    def free(self, limit: float = FREE_LIMIT) -> None:
        """Free the duplicate. Called by every owner.

        Where some owner does not come within `limit` seconds, or was lost, the communicator is left
        alone: a message under way would reach the next one that is given its number.
        """
        if self._own and self.lost is None and not isinstance(self.raw, Solo):
            self._own = False
            if self.alone or ((self.settle is None or self.settle(limit)) and self._drain(limit)):
                self.raw.Free()

    def _drain(self, limit: float) -> bool:
        """Take every message that was sent to this owner; say whether nothing is under way."""
        module, width = mpi(), 8
        sent = bytearray(width * self.size)
        for to in range(self.size):
            count = sum(channel.counters.sent[to] for channel in self.channels)
            sent[width * to : width * (to + 1)] = count.to_bytes(width, "little")
        mine = bytearray(width)
        try:
            words, word = [sent, module.INT64_T], [mine, module.INT64_T]
            request = self.raw.Ireduce_scatter_block(words, word, module.SUM)
            self.wait(request, limit, "every owner to close")
            patience, nap = Patience(limit), Nap()
            while True:
                for channel in self.channels:
                    channel.poll()
                taken = sum(sum(channel.counters.received.values()) for channel in self.channels)
                left = sum(channel.pending() for channel in self.channels)
                if taken >= int.from_bytes(mine, "little") and not left:
                    return True
                if patience.ended():
                    return False
                nap()
        except PeerFailed:
            return False


def poll(
    request: Any,
    deadline: float,
    fail: Callable[[Cause], None],
    watch: Callable[[], None] | None = None,
) -> bool:
    """Test a request with short sleeps; False past `deadline` seconds. MPI errors go to `fail`.

    `watch` is called after each sleep, once `GRACE` was slept in all.
    """
    module = load()
    assert module is not None
    patience, nap = Patience(deadline), Nap()
    while True:
        try:
            if request.Test():
                return True
        except module.Exception as error:
            fail(lost_peer(error))
        if patience.ended():
            return False
        nap()
        if watch is not None and nap.slept >= GRACE:
            watch()


def lost_peer(error: BaseException, raw: Any = None) -> Cause:
    """Return what an error raised by MPI means: a process is gone.

    `raw` is the communicator where it was raised, if its ranks are the roles: then the role is named
    where MPI can tell (ULFM).
    """
    dead = None if raw is None else failed_ranks(raw)
    if dead:
        return PeerFailed("its process ended", code="lost", role=min(dead)).cause()
    return PeerFailed(f"MPI reports: {error}", code="lost").cause()


def failed_ranks(raw: Any) -> set[int] | None:
    """Return the dead ranks of a communicator where MPI can tell (ULFM), else None.

    Acknowledges them, so that receives from anybody work again for the others.
    """
    module = mpi()
    try:
        group = raw.Get_failed()
        if group.size:
            raw.Ack_failed(group.size)
        ranks = group.Translate_ranks(range(group.size), raw.group)
        return {int(rank) for rank in ranks}
    except (module.Exception, NotImplementedError):
        return None


def load() -> ModuleType | None:
    """Return the module `mpi4py.MPI`, or None where mpi4py finds no MPI library.

    Importing it initialises MPI, unless the program did so already.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI


def mpi() -> Any:
    """Return `mpi4py.MPI`; for code that already holds a communicator."""
    module = load()
    if module is None:
        raise Refused("no MPI library was found", code="no-mpi")
    return module


def default_comm() -> MPI.Intracomm | Solo:
    """Return COMM_WORLD, or `Solo` where no MPI library is found.

    Raises `Refused` (code ``launcher``) when a launcher started several processes and MPI sees one:
    each would believe itself the only owner.
    """
    module = load()
    if module is not None and not module.Is_initialized():
        raise Refused("MPI is not initialised: call MPI.Init before opening a store", code="no-mpi")
    comm: Any = Solo() if module is None else module.COMM_WORLD
    _check_launcher(comm, module)
    return comm  # type: ignore[no-any-return]


def _check_launcher(comm: Any, module: ModuleType | None) -> None:
    """Refuse a world of one where a launcher started several: each would believe itself the only owner."""
    started = _started()
    if comm.size > 1 or started == 1:
        return
    reason = "no MPI library was found" if module is None else "MPI sees one"
    cure = "start them with the mpiexec of the MPI that mpi4py uses"
    if "SLURM_STEP_NUM_TASKS" in os.environ:
        cure = (
            "choose an interface that this MPI speaks (srun --mpi=pmi2 or --mpi=pmix; srun --mpi=list shows "
            "them; docs/mpi.md), or start them with its own mpiexec inside the job"
        )
    raise Refused(
        f"the launcher started {started} processes but {reason}: mpi4py's MPI does not speak with the "
        f"launcher; {cure}",
        code="launcher",
        expected=started,
        found=1,
    )


def _started() -> int:
    """Return how many processes the launcher says it started; 1 if it says nothing."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        value = os.environ.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return 1


def open_world(comm: MPI.Intracomm | Solo | None = None, deadline: float = OPEN_LIMIT) -> World:
    """Duplicate the user's communicator (None: `default_comm`). Called by every owner.

    Errors on the duplicate are returned, never fatal. Raises `Refused` for an inter-communicator,
    a null one, or an MPI initialised without thread support (writers run beside the polling
    thread), and `PeerFailed` when some rank does not ask within `deadline` seconds.
    """
    if comm is None:
        comm = default_comm()
    if isinstance(comm, Solo):
        return World(comm)
    module = mpi()
    if not isinstance(comm, module.Intracomm) or comm == module.COMM_NULL:
        raise Refused(
            "the communicator must be an intra-communicator of mpi4py",
            code="communicator",
            found=type(comm).__name__,
        )
    if comm != module.COMM_SELF and module.COMM_WORLD.size == 1:
        # Whatever is made of a COMM_WORLD of one: a duplicate, a part, by_topology's.
        _check_launcher(comm, module)
    if module.Query_thread() < module.THREAD_FUNNELED:
        raise Refused(
            "MPI was initialised without thread support: ask for THREAD_FUNNELED or more",
            code="threads",
            expected="THREAD_FUNNELED",
            found="THREAD_SINGLE",
        )
    return duplicate(World(comm), deadline)


def duplicate(world: World, deadline: float) -> World:
    """Return a world of its own with the same owners. Called by every owner."""
    if isinstance(world.raw, Solo):
        return World(world.raw)
    module = mpi()
    raw, request = world.raw.Idup()
    world.wait(request, deadline, "every rank to open the checkpoint")
    raw.Set_errhandler(module.ERRORS_RETURN)
    new = World(raw, own=True)
    mark = bytearray(os.urandom(MARK))
    new.wait(raw.Ibcast([mark, module.BYTE], 0), deadline, "owner 0")
    new.mark = bytes(mark)
    return new


def may_use_thread() -> bool:
    """Return whether MPI may be called from a thread of our own beside the program's calls."""
    module = load()
    return module is None or module.Query_thread() == module.THREAD_MULTIPLE


def as_world(comm: World | MPI.Intracomm | Solo | None) -> World:
    """Return `comm` if it is a world already, else wrap it without duplicating it."""
    if isinstance(comm, World):
        return comm
    return World(Solo() if comm is None else comm)
