"""One agreed update at which all save and stop: a signal on any rank, the program, owner 0's clock."""

from __future__ import annotations

import os
import pathlib
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.mpi.look import largest
from alpha_mpi.mpi.world import World
from alpha_mpi.opening import open_run
from alpha_mpi.stopping import Stopping
from alpha_mpi.timing import Every

pytestmark = pytest.mark.mpi

HIERARCHIES = (am.Star(), am.Tree(2))


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Leave the handlers as they were: after a stop ours stay."""
    yield
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def opened(path: Any, comm: Any, **given: Any) -> tuple[am.Checkpointer, np.ndarray]:
    words, state = np.zeros(8), am.State()
    state.replicate("w", words)
    return am.Checkpointer(str(path), state, comm, deadline=30, visibility=0.0, **given), words


def test_the_largest_of_each_word(world: World) -> None:
    rank, size = world.rank, world.size
    assert largest(world, (rank, -rank, 1 << 60), 30, "x") == (size - 1, 0, 1 << 60)


def test_a_signal_on_any_rank_stops_all_at_one_update(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """On each rank in turn, on a star and on a tree; in compute, and while others wait for it."""
    for k in range(comm.size):
        hierarchy = HIERARCHIES[k % 2]
        ckpt, words = opened(
            mpi_tmp_path / f"s{k}", comm, hierarchy=hierarchy, every=3, signals=("SIGUSR1", "SIGTERM")
        )
        saved, update = [], 0
        with ckpt:
            ckpt.resume()
            for update in range(1, 50):
                words += 1
                if update == 5 and comm.rank == k:
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(0.01)
                if ckpt.due(update):
                    saved.append(ckpt.save(update).moment.update)
                if ckpt.stop_requested():
                    break
            ends = (update, saved, ckpt.stop_reason, ckpt.exit_code)
        # The handler ran before this rank's look, so update 5 it is, on all of them.
        assert comm.allgather(ends) == [(5, [3, 5], f"SIGTERM on rank {k}", am.Exit.SAVED)] * comm.size
        os.kill(os.getpid(), signal.SIGTERM)  # once more while the program ends: harmless
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)


def test_on_all_ranks_at_different_times(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """As Slurm does: each process gets its signal some time; also while it saves."""
    ckpt, words = opened(mpi_tmp_path / "s", comm, every=1, signals=("SIGUSR1",))
    with ckpt:
        ckpt.resume()
        signal.setitimer(signal.ITIMER_REAL, 0)  # nothing pending from elsewhere
        before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGUSR1))
        signal.setitimer(signal.ITIMER_REAL, 0.01 * (comm.rank + 1), 0.01)
        try:
            update = 0
            while not ckpt.stop_requested():
                update += 1
                words += 1
                if ckpt.due(update):
                    ckpt.save(update)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        ends = comm.allgather((update, ckpt.stop_reason))
        assert len(set(ends)) == 1
        words += 1
        ckpt.save(update + 1)
        assert ckpt.exit_code == am.Exit.SAVED


def test_the_program_on_the_last_rank_asks(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    ckpt, words = opened(mpi_tmp_path / "s", comm)
    with ckpt:
        ckpt.resume()
        for update in range(1, 9):
            words += 1
            if update == 4 and comm.rank == comm.size - 1:
                ckpt.request_stop()
            if ckpt.stop_requested():
                break
        reasons = comm.allgather((update, ckpt.stop_reason, ckpt.exit_code))
        assert reasons == [(4, f"the program on rank {comm.size - 1}", am.Exit.NOT_SAVED)] * comm.size


def test_owner_0_decides_by_its_clock(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """Only owner 0 knows of a limit, and only its time counts."""
    words, state = np.zeros(4), am.State()
    state.replicate("w", words)
    run = open_run(str(mpi_tmp_path / "s"), state, comm, None, None, None, 30.0, None, 0.0)
    asked: list[str] = []

    def left() -> float:
        asked.append("left")
        return 0.05

    def again() -> None:
        asked.append("again")

    stopping = Stopping(run, Every(), (), "slurm", left=left, again=again)
    update = 0
    while not stopping.due(update + 1):
        update += 1
        time.sleep(0.002)
    assert stopping.requested() and stopping.reason == "the time limit"
    every = comm.allgather((update, asked))
    assert {u for u, _ in every} == {update} and [a for _, a in every[1:]] == [[]] * (comm.size - 1)
    assert every[0][1] == ["left", "again"]
    stopping.restore()
    run.close()


def test_different_calls_and_arguments_are_refused(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    if comm.size == 1:
        ckpt, _ = opened(mpi_tmp_path / "s", comm, signals=("SIGUSR1",))
        assert not ckpt.due(1)  # alone there is nobody to differ from
        ckpt.close()
        return
    odd = comm.rank == comm.size - 1
    for given in ({"every": 5}, {"signals": ("SIGUSR1",)}, {"time_limit": "1h"}):
        with pytest.raises(am.Refused) as caught:
            opened(mpi_tmp_path / "s", comm, **(given if odd else {}))
        assert caught.value.code == "argument-differs" and caught.value.role == comm.size - 1
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    ckpt, _ = opened(mpi_tmp_path / "s", comm, signals=("SIGUSR1",))
    for call in (lambda: ckpt.due(2 if odd else 1), lambda: ckpt.stop_requested() if odd else ckpt.due(3)):
        with pytest.raises(am.Refused) as caught:
            call()
        assert caught.value.code == "mixed-moments"
    ckpt.close()


def test_by_count_alone_there_is_no_message(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """`due` may then be asked on one rank only; with a time it is a collective."""
    ckpt, words = opened(mpi_tmp_path / "s", comm, every=2)
    with ckpt:
        ckpt.resume()
        if comm.rank == comm.size - 1:
            assert [ckpt.due(u) for u in range(5)] == [False, False, True, False, True]
        words += 1
        ckpt.save(2)
    ckpt, words = opened(mpi_tmp_path / "s", comm, every=am.Every(updates=7, seconds="1h"))
    with ckpt:
        ckpt.resume()
        assert [ckpt.due(u) for u in (13, 14, 15)] == [False, True, False]
    ckpt, words = opened(mpi_tmp_path / "s", comm, every=am.Every(seconds=1e-4))
    with ckpt:
        ckpt.resume()
        time.sleep(0.001)
        assert ckpt.due(5) and not ckpt.stop_requested()


def test_who_has_left_is_not_waited_for(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    if comm.size == 1:
        ckpt, _ = opened(mpi_tmp_path / "s", comm, signals=("SIGUSR1",))
        with pytest.raises(ValueError, match="mine"), ckpt:
            raise ValueError("mine")
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        return
    ckpt, _ = opened(mpi_tmp_path / "s", comm, hierarchy=am.Star(), signals=("SIGUSR1",))
    if comm.rank == 0:
        with pytest.raises(ValueError, match="mine"), ckpt:
            raise ValueError("mine")
    else:
        with pytest.raises(am.PeerFailed) as caught, ckpt:
            ckpt.due(1)
        assert caught.value.code == "left" and am.Exit.of(caught.value) == am.Exit.NOT_SAVED
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    comm.Barrier()


ROUNDS = 50


def test_fifty_random_moments(comm: Any, mpi_tmp_path: pathlib.Path) -> None:
    """R25: to one rank or to all, once or twice, in compute or in a save; each round goes on from the last.

    Every rank stops after the same update, and what is published is the end of that update.
    """
    rng, size = np.random.default_rng(25), comm.size  # the same plan on every rank
    hierarchies = (am.Star(), am.Tree(2)) if size > 1 else (am.Star(),)
    heard: list[int] = []

    def mine(number: int, frame: object) -> None:
        heard.append(number)

    words, state = np.zeros(8), am.State()
    state.replicate("w", words)
    last = 0
    signal.signal(signal.SIGUSR1, mine)
    for i in range(ROUNDS):
        number = int(rng.choice([signal.SIGUSR1, signal.SIGTERM]))
        to = range(size) if rng.random() < 0.3 else [int(rng.integers(size))]
        times, after = int(rng.integers(1, 3)), float(rng.uniform(1e-4, 0.02))
        hierarchy = hierarchies[i % len(hierarchies)]
        ckpt = am.Checkpointer(
            str(mpi_tmp_path / "s"),
            state,
            comm,
            every=5,
            keep=2,
            hierarchy=hierarchy,
            deadline=30,
            visibility=0.0,
            signals=("SIGUSR1", "SIGTERM"),
        )
        words[:] = -1
        heard.clear()
        before = signal.signal(signal.SIGALRM, lambda *_, n=number: os.kill(os.getpid(), n))
        with ckpt:
            update = ckpt.resume().update
            assert update == last
            if not update:
                words[:] = 0
            assert (words == update).all()
            if comm.rank in to:
                signal.setitimer(signal.ITIMER_REAL, after, 0.001 if times == 2 else 0)
            while True:
                update += 1
                words[:4] += 1
                if update % 3 == comm.rank % 3:
                    time.sleep(0.0005)  # in compute, at other times than the others
                words[4:] += 1
                if ckpt.due(update):
                    ckpt.save(update)
                if ckpt.stop_requested():
                    break
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert ckpt.exit_code == am.Exit.SAVED and ckpt.stop_reason is not None
            assert (words == update).all()
        signal.signal(signal.SIGALRM, before)
        assert signal.getsignal(signal.SIGUSR1) is mine
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if number == signal.SIGUSR1 and comm.rank in to and len(list(to)) == 1:
            assert heard, "the user's handler was not called"
        assert comm.allgather((update, ckpt.stop_reason)) == [(update, ckpt.stop_reason)] * size
        last = update
