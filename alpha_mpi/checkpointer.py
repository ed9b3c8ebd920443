"""Checkpointer: the face of the library. Composes the rooms, decides nothing.

Every method is called by every owner, in the same order, like a collective of MPI; every one
raises the same error on all owners.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import tidying
from .arguments import check_moment, check_number, check_score
from .continuing import Continued, Resumed, clean, continue_run
from .errors import CheckpointError, InDoubt, Refused, Superseded, cause_of, error_of
from .exits import Exit
from .model.accept import Accept
from .model.capture import Attempt, Moment
from .model.identity import Contract, Learner
from .mpi.driver import ports_of
from .mpi.ports import Ports
from .opening import Run, everybody, open_run
from .protocol.hierarchy import Hierarchy
from .restore import choose
from .saving import Newest, Saved, attempt
from .staged import Asked, warn
from .state import State
from .stopping import Stopping, numbers_of
from .store import leftovers, names, retention
from .store.entries import Position
from .store.keep import Keep
from .timing import Every

if TYPE_CHECKING:
    from typing_extensions import Self

#: Longest silence of a peer, in seconds, before it counts as lost.
DEADLINE = 600.0
#: How long a name that must exist may stay invisible on a network file system, in seconds.
VISIBILITY = 30.0
#: Bytes of validated words that a restore keeps in memory; the rest is read twice.
STAGING = 64 << 20


@dataclasses.dataclass(frozen=True)
class Generation:
    """A published generation: `name` as commands know it, its moment, and its root digest."""

    name: str
    moment: Moment
    root: str

    def __str__(self) -> str:
        return f"{self.name} (update {self.moment.update}, cursor {self.moment.cursor})"


class Checkpointer:
    """Saves and resumes one state of one learner in one store.

    Parameters
    ----------
    path : path
        The store; made if it is missing. Every rank must mean the same store.
    state : State
        What is saved: the same declarations on every owner.
    comm : mpi4py.MPI.Intracomm, optional
        Owner k is its rank k; it is duplicated. None: COMM_WORLD, or one owner where no MPI
        library is found.
    learner, contract : Learner, Contract, optional
        Who learns, and on what the bits depend; compared at every save and resume.
    every : int, str or Every, optional
        When `due` says yes: at each update that is a multiple of it; when so much time has passed
        (``"10min"``); or what an `Every` asks for.
    keep : int or Keep, optional
        Generations of the lineage kept by retention: the last so many, or what a `Keep` asks for;
        None: all. Pinned ones always stay.
    hierarchy : Star or Tree, optional
        A star for few owners, otherwise a tree, by default.
    deadline : float
        Longest silence of a peer in seconds (not of a save: a slow writer gives signs).
    visibility : float
        How long a missing name is not believed, in seconds.
    staging : int
        Bytes of validated words that a resume keeps in memory.
    digest : str, optional
        Algorithm of a new store: ``xxh3-128``, ``sha256`` or ``blake3``.
    check_space : bool
        Ask, before each save, whether the generation fits into free space and quota (`CommitFailed`
        ``no-space``, before anything is written). Turn it off where the file system compresses.
    key : path, optional
        A file with a key (32 to 4096 bytes, not readable by others): roots and claims are signed by
        it, and none without its signature is taken (docs/security.md). Owner 0 reads it. A new
        store gets ``sha256`` then, and an old one must have it, or ``blake3``.
    signals : sequence of str or int
        Signals that ask for a stop (``("SIGUSR1", "SIGTERM")``): one on any rank becomes one update
        at which `due` says yes, and then `stop_requested`, on all. The user's handlers are called too.
    time_limit : "slurm", float or str, or None
        When the program must have ended: as Slurm says, if this is a job of Slurm; or so much time
        from now. Before it, `due` says yes while another update and a save still fit.
    snapshot : "device" or None
        ``"device"``: arrays on GPUs are copied there first, where memory allows (docs/gpu.md).
    gpu_direct : bool or "auto"
        Write from GPUs to the store directly, where kvikio and the store can.

    Raises
    ------
    CheckpointError
        `Refused` for what is declared wrong or differs between owners, and for a store that cannot
        keep its promises. The same on every owner.

    Notes
    -----
    Used as a context manager: when user code raises on one rank inside the block, the others learn
    it at their next call.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        state: State,
        comm: Any = None,
        *,
        learner: Learner | None = None,
        contract: Contract | None = None,
        every: int | str | Every | None = None,
        keep: int | Keep | None = None,
        hierarchy: Hierarchy | None = None,
        deadline: float = DEADLINE,
        visibility: float = VISIBILITY,
        staging: int = STAGING,
        digest: str | None = None,
        check_space: bool = True,
        key: str | os.PathLike[str] | None = None,
        signals: Sequence[str | int] = (),
        time_limit: float | str | None = "slurm",
        snapshot: str | None = None,
        gpu_direct: bool | str | None = None,
    ) -> None:
        asked, numbers = Every.of(every), numbers_of(signals)
        if not isinstance(keep, Keep):
            check_number("keep", keep, 1)
        if not (math.isfinite(deadline) and deadline > 0):
            raise Refused("a deadline is a positive number of seconds", code="argument", found=deadline)
        self._asked = Asked.of(snapshot, gpu_direct)
        self._keep = keep
        self._check_space = check_space
        self._visibility = visibility
        self._staging = staging
        self._run: Run = open_run(
            path, state, comm, learner, contract, hierarchy, deadline, digest, visibility, key
        )
        try:
            everybody(self._run.world, self._asked.check, deadline)
            self._stopping = Stopping(self._run, asked, numbers, time_limit)
        except BaseException:
            self._run.close()
            raise
        self._ports: Ports = ports_of(self._run.families)
        self._ports.watch()
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "alpha_mpi-writer")
        self._epoch: int | None = None
        self._save = 0
        self._entry = 0
        self._newest: Newest | None = None
        self._retention: retention.Retention | None = None
        #: What the last `resume` did: generation, moment, what was skipped or accepted.
        self.resumed: Resumed | None = None
        self._over: CheckpointError | None = None
        self._closed = False

    # ------------------------------------------------ what the training loop calls

    def resume(
        self,
        *,
        generation: str | int | None = None,
        fallback: bool = False,
        accept: Accept | None = None,
        takeover: bool = False,
    ) -> Moment:
        """Restore a generation into the declared state, and take the next epoch.

        Called by every owner, once before the first `save`, and again after `InDoubt`. Returns the
        moment restored; ``Moment(update=0, cursor=0)`` on an empty store. Everything this job needs
        is validated on every owner before one word changes anywhere; when it raises, state and
        store are as before and no epoch is taken. `resumed` says what was done.

        Parameters
        ----------
        generation : str or int, optional
            Continue this generation, by name (``"e000001-000003"``) or update, instead of the
            newest: a fork, recorded in the claim. Generations after it are abandoned, not removed.
            A requeued job (same Slurm job id) that asks again continues its own fork.
        fallback : bool
            Where the newest generation is damaged (proved by its content: a missing or changed
            file), go back to the newest one of the lineage that is whole. Never for an I/O error or
            a mismatch, and never to a fresh start.
        accept : Accept, optional
            Differences between the generation and what is declared that are no reason to refuse
            it, each with its reason; what was needed is recorded in the claim.
        takeover : bool
            Go on although Slurm says that another job holds the newest claim and is running
            (otherwise `Refused`, ``held``). That job gets `Superseded` at its next save.

        Raises
        ------
        Refused
            The checkpoint is damaged, or is not one of this learner, contract, schema or layout.
        Superseded
            Another job took the epoch at the same time.
        PeerFailed, CommitFailed
            A role is silent, or the disk said no.
        """
        self._check_open()
        self._epoch = self._retention = self.resumed = None
        run, staging, visibility = self._run, self._staging, self._visibility
        done = continue_run(run, generation, fallback, staging, visibility, accept, takeover)
        self._stopping.began()
        return self._take(done).moment

    def due(self, update: int) -> bool:
        """Return whether `save` is due after this update: the same answer on every owner.

        By count alone it needs no message. With `signals`, a time in `every`, or a `time_limit` it is
        a collective of some bytes, called by every owner after the same update: owner 0's clock
        decides, and a stop that was asked for anywhere makes one save due on all.
        """
        self._check_open()
        return self._stopping.due(update)

    def stop_requested(self) -> bool:
        """Return whether all owners stop after this update; once it says yes it stays so.

        A collective as `due` is; right after a `due` that was one, it has that one's answer for
        nothing. `stop_reason` says why, and `exit_code` what the program should end with.
        """
        self._check_open()
        return self._stopping.requested()

    def request_stop(self) -> None:
        """Ask for a stop as a signal does: on any rank, in a handler or a thread; not collective."""
        self._stopping.request()

    @property
    def stop_reason(self) -> str | None:
        """Why all owners stop (``SIGTERM on rank 3``), once that is agreed."""
        return self._stopping.reason

    @property
    def exit_code(self) -> Exit:
        """`Exit.FINISHED` while no stop is agreed; then whether something was saved for it."""
        return self._stopping.code

    @property
    def save_seconds(self) -> float | None:
        """How long a save of this job takes: the median of the last ones on this owner."""
        return self._stopping.save_seconds

    def save(
        self,
        update: int,
        cursor: int | None = None,
        *,
        unchanged_ok: bool = False,
        score: float | None = None,
    ) -> Generation:
        """Publish the state as it is now; return when the generation is durable on disk.

        Called by every owner between two updates. A save of the update and cursor of the newest
        generation with the same words returns that generation.

        Parameters
        ----------
        update : int
            Number of finished updates; it grows along the lineage.
        cursor : int, optional
            Number of items of the input consumed since the learner began; it never falls. Equals
            the update where the learner declares no input.
        unchanged_ok : bool
            Allow that no region changed although the update advanced.
        score : float, optional
            A finite number by which `Keep(best=)` judges this generation, such as a validation
            loss. That of owner 0 counts.

        Raises
        ------
        Refused
            Nothing was published; the message says why.
        CommitFailed
            The disk said no; nothing was published. The same processes may save again.
        PeerFailed
            A role is silent or failed in its own code; nothing was published.
        Superseded
            A newer continuation took over; this job can publish nothing any more.
        InDoubt
            Published or not, the store cannot say; `resume` again before the next save.
        """
        self._save += 1  # first, so that it is equal on all owners whatever happens next
        self._check_open()
        with self._stopping.saving():
            return self._saved(update, cursor, unchanged_ok, score)

    def close(self) -> None:
        """Close the store and free the communicators. Called by every owner."""
        if not self._closed:
            self._closed = True
            self._stopping.restore()
            self._pool.shutdown()
            world = self._run.world
            if world.lost is None:
                world.lost = self._ports.left()  # who left frees nothing: do not wait for it
                if world.lost is not None:  # nor need the neighbours
                    self._ports.leave(Attempt(self._epoch or 1, self._save + 1), world.lost)
            self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._closed:
            return
        if error is None:
            self.close()
            return
        # The others learn it at their next call. Nothing collective here: they may not come.
        self._closed = True
        self._stopping.restore()
        run = self._run
        number = Attempt(self._epoch or 1, self._save + 1)
        self._ports.leave(number, cause_of(error, run.world.rank))
        self._pool.shutdown()
        run.store.close()

    # ------------------------------------------------ steps

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("the checkpointer is closed", code="closed")
        if self._over is not None:
            raise self._over

    def _take(self, continued: Continued) -> Resumed:
        """Begin the epoch that was taken."""
        self._epoch, self._save, self._entry = continued.epoch, 0, 1
        self._newest = None
        name = continued.resumed.generation
        if name is not None and continued.root is not None:
            accepted = bool(continued.resumed.accepted)
            self._newest = Newest(name, continued.root, continued.saved, continued.shards, accepted)
        self._begin_epoch(continued.seen)
        self.resumed = continued.resumed
        return continued.resumed

    def _begin_epoch(self, seen: choose.Survey | None) -> None:
        """Clean up after older epochs, and prepare retention. Owner 0 alone; the claim is durable."""
        if seen is None:
            return
        store, epoch = self._run.store, self._epoch
        assert epoch is not None
        try:
            tidying.warn_left(clean(self._run, seen, epoch).left)
        except OSError as error:
            tidying.warn(str(error))  # the resume itself has succeeded
        if self._keep is not None:
            self._retention = retention.Retention(store, epoch, self._keep, seen.lineage, seen.abandoned)

    def _saved(self, update: int, cursor: int | None, unchanged_ok: bool, score: float | None) -> Generation:
        if self._epoch is None:
            raise Refused("call resume() before the first save, and again after InDoubt", code="not-resumed")
        self._run.check_layout()
        refusal: CheckpointError | None = None
        moment = Moment(0, 0, self._epoch)
        try:
            moment = check_moment(self._run.learner, self._newest, self._epoch, update, cursor)
            score = check_score(score)
        except CheckpointError as error:
            refusal = error
        saved = attempt(
            *(self._run, self._ports, self._pool, Attempt(self._epoch, self._save), self._entry),
            moment,
            self._newest,
            unchanged_ok,
            refusal,
            score,
            self._check_space,
            self._asked,
        )
        try:
            return self._ended(saved, moment)
        finally:
            if saved.interrupt is not None:
                raise saved.interrupt

    def _ended(self, saved: Saved, moment: Moment) -> Generation:
        """Keep the books of one attempt, and return or raise its outcome."""
        run, end = self._run, saved.end
        assert self._epoch is not None
        if end.outcome == "published":
            assert end.root is not None and end.entry is not None
            name = names.entry(self._epoch, end.entry).removesuffix(".json")
            self._newest = Newest(name, end.root, moment, saved.shards)
            self._entry = end.entry + 1
            if self._retention is not None:
                # Published is published: what retention cannot do now, its next run does.
                position = Position(self._epoch, end.entry)
                tidying.retire(self._retention, position, saved.named)
            warn(saved.notes)
            return Generation(name, moment, end.root)
        assert end.cause is not None
        error = error_of(end.cause)
        if end.clean:
            # Every role has ended it, so nobody writes there any more.
            leftovers.remove_attempt(run.store, Attempt(self._epoch, self._save))
        if error.code == "same-state" and self._newest is not None:
            newest = self._newest
            return Generation(newest.name, newest.moment, newest.root)
        if isinstance(error, InDoubt):
            self._epoch = None
        elif isinstance(error, Superseded):
            self._over = error
        raise error
