"""Exits: the codes with which a program tells its job script what became of it.

Launchers fold the codes of many ranks into one: Hydra by OR, `srun` by the largest. So SAVED has a
bit that no other code here has, and the others keep their value beside a rank that ends with 1.
"""

from __future__ import annotations

import enum
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from .errors import CheckpointError, CommitFailed, InDoubt, PeerFailed, Superseded

#: A peer is gone or silent: MPI's Finalize would wait for it.
_GONE = frozenset({"left", "lost", "missing-subtree", "silent", "stalled"})

#: Seconds before an Abort. Launchers hear of it on another way than of a rank's output, and Hydra's
#: `mpiexec` ends at once: on a busy machine what a rank said last was lost.
LAST_WORDS = 1.0


class Exit(enum.IntEnum):
    """What a program's exit code means to its job script (docs/slurm.md)."""

    #: The training is complete: nothing more to do.
    FINISHED = 0
    #: The program or the store is wrong: a person has to look.
    FAILED = 1
    #: Stopped, or a rank or the disk failed, with nothing published for it: a restart goes on from
    #: the generation before.
    NOT_SAVED = 35
    #: A newer continuation took over. Never requeue: two live jobs would fence each other for ever.
    SUPERSEDED = 51
    #: Another running job holds the store. Never requeue.
    HELD = 55
    #: Stopped as asked, and saved: requeue me. The code of sysexits.h for "try again".
    SAVED = 75

    @classmethod
    def of(cls, error: BaseException) -> Exit:
        """Return the exit code for a program that this error ends."""
        if isinstance(error, Superseded):
            return cls.SUPERSEDED
        if isinstance(error, CheckpointError) and error.code == "held":
            return cls.HELD
        if isinstance(error, (PeerFailed, CommitFailed, InDoubt)) and error.code != "user-code":
            return cls.NOT_SAVED
        return cls.FAILED


def run(main: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    """Call ``main(*args, **kwargs)`` and end the process with the exit code of what became of it.

    Called by every owner. An int that `main` returns is the exit code (`Checkpointer.exit_code`),
    None means `Exit.FINISHED`. A `CheckpointError` is printed and ends with ``Exit.of(error)``, at
    once where a peer is lost: MPI's Finalize would wait for it for ever. Any other exception is printed
    and ends all ranks with `Exit.FAILED`, since the others may wait for this one; alone it passes.

    From then on SIGTERM has no effect: ``srun --kill-on-bad-exit`` sends it to the other ranks as soon as
    one has ended with a code, and theirs would become 143, which says "requeue me" to a job script.
    """
    try:
        code = main(*args, **kwargs)
    except SystemExit:
        _ignore(signal.SIGTERM)
        raise
    except CheckpointError as error:
        _ignore(signal.SIGTERM)
        traceback.print_exc()
        code = Exit.of(error)
        if error.code in _GONE:
            _flush()
            os._exit(code)
    except Exception:
        module: Any = sys.modules.get("mpi4py.MPI")
        if module is None or not module.Is_initialized() or module.Is_finalized():
            raise
        if module.COMM_WORLD.size == 1:
            raise
        _ignore(signal.SIGTERM, signal.SIGINT)
        traceback.print_exc()
        end_all(module.COMM_WORLD)
    _ignore(signal.SIGTERM)
    sys.exit(0 if code is None else int(code))


def end_all(world: Any) -> NoReturn:
    """End every rank of an `MPI.COMM_WORLD` with `Exit.FAILED`, once what was printed is on its way.

    Until then neither SIGTERM nor Ctrl-C ends this rank with a code of its own.
    """
    _ignore(signal.SIGTERM, signal.SIGINT)
    try:
        _flush()
        time.sleep(LAST_WORDS)
    finally:
        world.Abort(Exit.FAILED)
        os._exit(Exit.FAILED)  # MPICH under srun comes back from Abort before it is ended


def _ignore(*signals: int) -> None:
    """The program is ending: nothing may take its exit code from it."""
    try:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
    except ValueError:
        pass  # not the main thread: it has no say in signals


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
