"""A stop asked for by a signal, the program or a time limit; what the job script hears of it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi import stopping
from alpha_mpi.stopping import Signals, numbers_of
from alpha_mpi.testing import launch

ROOT = pathlib.Path(__file__).resolve().parent.parent

USR1, TERM = signal.SIGUSR1, signal.SIGTERM


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Leave the handlers as they were."""
    numbers = (USR1, signal.SIGUSR2, TERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def opened(path: pathlib.Path, **given: Any) -> tuple[am.Checkpointer, np.ndarray]:
    words, state = np.zeros(4), am.State()
    state.replicate("w", words)
    return am.Checkpointer(path, state, **given), words


def hit(number: int = USR1) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_becomes_a_save_and_a_stop(tmp_path: pathlib.Path) -> None:
    ckpt, words = opened(tmp_path / "s", every=4, signals=("SIGUSR1", "SIGTERM"))
    with ckpt:
        ckpt.resume()
        saved = []
        for update in range(1, 20):
            words += 1
            if update == 6:
                hit()
            if ckpt.due(update):
                saved.append(ckpt.save(update).moment.update)
            if ckpt.stop_requested():
                break
        assert saved == [4, 6] and update == 6
        assert ckpt.stop_reason == "SIGUSR1 on rank 0" and ckpt.exit_code == am.Exit.SAVED
        assert ckpt.save_seconds is not None and ckpt.save_seconds > 0
        # It stays so; what was asked for is saved, so only the count makes another save due.
        assert ckpt.stop_requested() and not ckpt.due(7) and ckpt.due(8)


def test_without_signals_nothing_is_installed(tmp_path: pathlib.Path) -> None:
    before = signal.getsignal(TERM)
    ckpt, _ = opened(tmp_path / "s")
    assert signal.getsignal(TERM) == before
    assert not ckpt.stop_requested() and ckpt.exit_code == am.Exit.FINISHED and ckpt.stop_reason is None
    ckpt.close()
    for call in (ckpt.stop_requested, lambda: ckpt.due(1)):
        with pytest.raises(am.Refused) as caught:
            call()
        assert caught.value.code == "closed"


def test_the_program_asks(tmp_path: pathlib.Path) -> None:
    ckpt, words = opened(tmp_path / "s", every=100)
    with ckpt:
        ckpt.resume()
        words += 1
        thread = threading.Thread(target=ckpt.request_stop)
        thread.start()
        thread.join()
        assert ckpt.stop_requested() and ckpt.stop_reason == "the program on rank 0"
        assert ckpt.exit_code == am.Exit.NOT_SAVED
        ckpt.save(1)
        assert ckpt.exit_code == am.Exit.SAVED


def test_a_failed_save_stays_due(tmp_path: pathlib.Path) -> None:
    ckpt, words = opened(tmp_path / "s", signals=["SIGUSR1"])
    with ckpt:
        ckpt.resume()
        words[:] = np.nan
        hit()
        assert ckpt.due(1)
        with pytest.raises(am.Refused):
            ckpt.save(1)
        assert ckpt.exit_code == am.Exit.NOT_SAVED and ckpt.due(1) and ckpt.due(2)
        words[:] = 1
        ckpt.save(2)
        assert ckpt.exit_code == am.Exit.SAVED and not ckpt.due(3)


def test_the_users_handler_is_kept_called_and_put_back(tmp_path: pathlib.Path) -> None:
    heard: list[int] = []

    def mine(number: int, frame: object) -> None:
        heard.append(number)

    signal.signal(USR1, mine)
    ckpt, _ = opened(tmp_path / "s", signals=("SIGUSR1", TERM, int(TERM)))
    hit()
    hit()
    assert heard == [USR1, USR1] and ckpt.stop_requested()
    ckpt.close()
    assert signal.getsignal(USR1) is mine
    # The program is ending: a second SIGTERM must not take its exit code from it.
    hit(TERM)
    signal.signal(TERM, signal.SIG_DFL)
    ckpt, _ = opened(tmp_path / "s", signals=("SIGUSR1", TERM))
    assert not ckpt.stop_requested()
    ckpt.close()
    assert signal.getsignal(USR1) is mine and signal.getsignal(TERM) is signal.SIG_DFL
    # Also when the block ends with an error; but not a handler that was installed meanwhile.
    ckpt, _ = opened(tmp_path / "s", signals=("SIGUSR1", "SIGTERM"))
    with pytest.raises(ValueError, match="mine"), ckpt:
        signal.signal(TERM, mine)
        raise ValueError("mine")
    assert signal.getsignal(USR1) is mine and signal.getsignal(TERM) is mine


def test_an_ignored_signal_asks_and_is_ignored_again() -> None:
    signal.signal(USR1, signal.SIG_IGN)
    signals = Signals()
    signals.install([USR1])
    hit()
    assert signals.noted == USR1
    signals.restore()
    assert signal.getsignal(USR1) is signal.SIG_IGN


def test_who_insists_with_ctrl_c_is_interrupted() -> None:
    signals = Signals()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has none
    try:
        signals.install([signal.SIGINT])
        hit(signal.SIGINT)
        assert signals.noted == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            hit(signal.SIGINT)
        signals.restore()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_during_a_save_neither_harms_nor_hurries_it(tmp_path: pathlib.Path) -> None:
    """Twice, inside the save: the save is published, and the stop is agreed at the next update."""
    state, words, hits = am.State(), np.zeros(4), []

    def schedule() -> dict[str, int]:
        hits.append(1)
        hit()
        hit(TERM)
        return {"n": len(hits)}

    state.replicate("w", words)
    state.document("schedule", schedule, lambda _: None)
    with am.Checkpointer(tmp_path / "s", state, every=1, signals=("SIGUSR1", "SIGTERM")) as ckpt:
        ckpt.resume()
        words += 1
        assert ckpt.due(1)
        assert ckpt.save(1).moment.update == 1
        assert not ckpt.stop_requested()  # the answer of due(1)
        words += 1
        assert ckpt.due(2) and ckpt.stop_requested()
        ckpt.save(2)
        assert ckpt.exit_code == am.Exit.SAVED
    with am.open(tmp_path / "s") as store:
        assert store.latest().moment.update == 2


def test_by_time_and_before_the_time_limit(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1")  # long over
    ckpt, words = opened(tmp_path / "s")
    monkeypatch.setenv("PATH", "/nonexistent")
    with ckpt:
        ckpt.resume()
        words += 1
        assert ckpt.due(1) and ckpt.stop_requested() and ckpt.stop_reason == "the time limit"
        ckpt.save(1)
        assert ckpt.exit_code == am.Exit.SAVED
    ckpt, words = opened(tmp_path / "s", time_limit=None)
    with ckpt:
        ckpt.resume()
        assert not ckpt.due(2) and not ckpt.stop_requested()
    ckpt, words = opened(tmp_path / "s", every=am.Every(mtbf="24h"), time_limit="10h")
    with ckpt:
        ckpt.resume()
        words += 1
        assert ckpt.due(2)
        ckpt.save(2)
        assert not ckpt.due(3) and not ckpt.stop_requested()


@pytest.mark.parametrize("signals", [("SIGNO",), (0,), (10**6,), "SIGNO", (None,)])
def test_what_is_no_signal(tmp_path: pathlib.Path, signals: Any) -> None:
    with pytest.raises(am.Refused) as caught:
        opened(tmp_path / "s", signals=signals)
    assert caught.value.code == "argument"


def test_signals_that_cannot_be_caught(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(am.Refused) as caught:
        opened(tmp_path / "s", signals=("SIGUSR1", "SIGKILL"))
    assert caught.value.code == "signals" and signal.getsignal(USR1) is signal.SIG_DFL
    with monkeypatch.context() as patch:
        patch.setattr(stopping.signal, "getsignal", lambda number: None)  # a handler in C
        with pytest.raises(am.Refused) as caught:
            Signals().install([USR1])
    assert caught.value.code == "signals"
    found: list[str] = []

    def elsewhere() -> None:
        try:
            opened(tmp_path / "s", signals=("SIGUSR1",))
        except am.Refused as error:
            found.append(error.code)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == ["signals"]
    assert numbers_of("SIGTERM") == numbers_of(15) == (15,)


def test_bad_intervals_and_limits(tmp_path: pathlib.Path) -> None:
    for given in ({"every": "often"}, {"every": 0}, {"time_limit": "soon"}, {"time_limit": -1}):
        with pytest.raises(am.Refused) as caught:
            opened(tmp_path / "s", **given)
        assert caught.value.code == "argument"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (am.Superseded("x"), am.Exit.SUPERSEDED),
        (am.Refused("x", code="held"), am.Exit.HELD),
        (am.Refused("x", code="other-learner"), am.Exit.FAILED),
        (am.CommitFailed("x", code="no-space"), am.Exit.NOT_SAVED),
        (am.InDoubt("x"), am.Exit.NOT_SAVED),
        (am.PeerFailed("x", code="silent"), am.Exit.NOT_SAVED),
        (am.PeerFailed("x", code="user-code"), am.Exit.FAILED),
        (ValueError("x"), am.Exit.FAILED),
    ],
)
def test_the_exit_code_of_an_error(error: BaseException, code: am.Exit) -> None:
    assert am.Exit.of(error) == code


def test_codes_survive_a_launcher_that_folds_them() -> None:
    """By OR or by the largest: SAVED comes out only if some rank said it; a loser never requeues."""
    others = [code for code in am.Exit if code is not am.Exit.SAVED] + [2, 9, 15, 128 + 9, 128 + 15]
    for a in others:
        for b in others:
            assert int(a) | int(b) != am.Exit.SAVED and max(a, b) != am.Exit.SAVED
    for code in (am.Exit.NOT_SAVED, am.Exit.SUPERSEDED, am.Exit.HELD):
        assert code | 1 == code and code != 1
    assert am.Exit.NOT_SAVED | am.Exit.SUPERSEDED == am.Exit.SUPERSEDED
    assert len({int(code) for code in am.Exit}) == len(am.Exit) and max(am.Exit) < 126


def fails(error: BaseException) -> Callable[[], None]:
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "code"),
    [
        (lambda: None, 0),
        (lambda: am.Exit.SAVED, 75),
        (lambda: 3, 3),
        (fails(am.Superseded("taken over")), 51),
        (fails(am.CommitFailed("full", code="no-space")), 35),
        (fails(SystemExit(9)), 9),
    ],
)
def test_run_ends_with_the_code(
    main: Callable[[], object], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as caught:
            am.run(main)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert caught.value.code == code
    assert ("Traceback" in capsys.readouterr().err) == (code in (51, 35))


def test_a_code_outlives_the_sigterm_of_the_launcher() -> None:
    """As under srun --kill-on-bad-exit, where another rank has ended with its code a moment before."""
    text = (
        "import atexit, os, signal, alpha_mpi as am\n"
        "def main(): raise am.Superseded('taken over')\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))\nam.run(main)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=60, check=False)
    assert done.returncode == am.Exit.SUPERSEDED


def test_run_in_another_thread_has_its_code_too() -> None:
    codes: list[object] = []

    def ends() -> None:
        try:
            am.run(lambda: am.Exit.SAVED)
        except SystemExit as error:
            codes.append(error.code)

    thread = threading.Thread(target=ends)
    thread.start()
    thread.join()
    assert codes == [75]


def test_run_passes_arguments_and_the_programs_own_errors() -> None:
    with pytest.raises(ValueError, match="mine 1 2"):
        am.run(lambda a, b: fails(ValueError(f"mine {a} {b}"))(), 1, b=2)


def test_run_leaves_at_once_where_a_peer_is_lost() -> None:
    """What Python does at its end is left out: MPI's Finalize would wait there."""
    text = (
        "import atexit, alpha_mpi as am\n"
        "def main(): raise am.PeerFailed('gone', code='lost', role=3)\n"
        "atexit.register(print, 'waiting for ever')\nprint('out')\nam.run(main)\n"
    )
    words = [sys.executable, "-c", text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == am.Exit.NOT_SAVED and done.stdout == "out\n" and "role 3" in done.stderr


def test_run_ends_all_ranks_where_one_raises() -> None:
    """The others wait for it, outside of this library."""
    text = (
        "from mpi4py import MPI\nimport alpha_mpi as am\n"
        "def main():\n"
        "    if MPI.COMM_WORLD.rank == 1: raise ValueError('mine')\n"
        "    MPI.COMM_WORLD.Recv(bytearray(1), 1)\n"
        "am.run(main)\n"
    )
    words = [*launch.mpiexec(2), sys.executable, "-c", text]
    env = launch.environment({"PYTHONPATH": str(ROOT)})
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode not in (0, am.Exit.SAVED) and "ValueError: mine" in done.stderr
