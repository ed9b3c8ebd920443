"""What Slurm's environment and commands say, with commands of our own in their place."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi import slurm
from alpha_mpi.format.claim import Claim
from alpha_mpi.slurm import asked_left, check_held, host, job, left, left_of, restart, running


def says(text: str | None, heard: list[list[str]] | None = None) -> slurm.Ask:
    def ask(words: Sequence[str]) -> str | None:
        if heard is not None:
            heard.append(list(words))
        return text

    return ask


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5:00\n", 300),
        ("0:07", 7),
        ("1:02:03", 3723),
        ("2-00:00:01", 172801),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_what_squeue_prints(text: str, seconds: float | None) -> None:
    assert left_of(text) == seconds


def test_time_left_from_the_environment_else_asked_for() -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "2000"}
    heard: list[list[str]] = []
    assert left(env, says("1:00", heard), lambda: 1500.0) == 500 and not heard
    assert left({"SLURM_JOB_ID": "7"}, says("1:00", heard)) == 60
    assert heard == [["squeue", "-h", "-j", "7", "-o", "%L"]]
    assert left({"SLURM_JOB_ID": "7"}, says(None)) is None
    assert left({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "soon"}, says("0:09")) == 9
    assert left({}, says("1:00")) is None and asked_left({}, says("1:00")) is None


def test_one_task_of_an_array_is_asked_for_alone() -> None:
    """The last task has the array's own number, which names all tasks to squeue."""
    heard: list[list[str]] = []
    env = {"SLURM_JOB_ID": "120", "SLURM_ARRAY_JOB_ID": "120", "SLURM_ARRAY_TASK_ID": "3"}
    asked_left(env, says("1:00", heard))
    assert heard[0][3] == "120_3"


def test_who_this_is() -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SLURMD_NODENAME": "node5"}
    assert (job(env), restart(env), host(env)) == ("7", 2, "node5")
    assert (job({}), restart({"SLURM_RESTART_COUNT": "x"})) == ("", 0) and host({})


def test_a_job_that_runs() -> None:
    heard: list[list[str]] = []
    assert running("7", "node5.cluster", says("7|7|RUNNING\n", heard)) == "7"
    assert heard == [["squeue", "-h", "-j", "7", "-w", "node5", "-o", "%A|%i|%T"]]
    # Number 120 stands for a whole array: only its own line counts.
    assert running("120", "n", says("121|120_0|RUNNING\n120|120_3|PENDING\n")) is None
    assert running("120", "n", says("121|120_0|PENDING\n120|120_3|RUNNING\n")) == "120_3"
    assert running("7", "n", says("7|7|SUSPENDED")) == "7"
    for text in ("7|7|COMPLETING", "7|7|PENDING", "7|7|COMPLETED", "", "\n", "rubbish", None):
        assert running("7", "n", says(text)) is None


def claim(job: str, host: str = "n1") -> Claim:
    return Claim(
        store="s", epoch=4, continues=None, base=None, nonce="n", owners=1, job=job, restart=1, host=host
    )


def test_held_by_another_running_job() -> None:
    alive = says("7|5_2|RUNNING")
    for env in ({"SLURM_JOB_ID": "8"}, {}):
        with pytest.raises(am.Refused) as caught:
            check_held(claim("7"), env, alive)
        assert caught.value.code == "held" and "5_2" in str(caught.value) and "takeover" in str(caught.value)
        assert am.Exit.of(caught.value) == am.Exit.HELD
    check_held(claim("7"), {"SLURM_JOB_ID": "7"}, alive)  # the same job, requeued
    check_held(claim("7"), {"SLURM_JOB_ID": "8"}, says(None))  # Slurm does not answer
    check_held(claim("7"), {"SLURM_JOB_ID": "8"}, says("7|7|COMPLETING"))
    check_held(claim("pid 7"), {"SLURM_JOB_ID": "8"}, alive)  # outside Slurm
    check_held(claim("7", ""), {"SLURM_JOB_ID": "8"}, alive)
    check_held(None, {"SLURM_JOB_ID": "8"}, alive)


Command = Callable[[str, str], None]


@pytest.fixture
def command(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Put a shell script into PATH, under the name of a command of Slurm."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return put


def test_a_command_that_is_absent_fails_or_is_silent(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "PATIENCE", 0.2)
    assert slurm.ask(["squeue-that-is-nowhere"]) is None
    command("squeue", "echo no; exit 1")
    assert slurm.ask(["squeue"]) is None
    command("squeue", "exec sleep 30")
    assert slurm.ask(["squeue"]) is None
    command("squeue", "echo yes")
    assert slurm.ask(["squeue"]) == "yes\n"


def opened(path: pathlib.Path) -> tuple[am.Checkpointer, np.ndarray]:
    words = np.zeros(4)
    state = am.State()
    state.replicate("w", words)
    return am.Checkpointer(path, state), words


def test_resume_is_refused_while_another_job_runs(
    tmp_path: pathlib.Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no epoch; with takeover= it does, and the other job is superseded."""
    store = tmp_path / "store"
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    old, words = opened(store)
    old.resume()
    words += 1
    old.save(1)
    command("squeue", f'echo "$*" >> {tmp_path}/heard\ncase "$*" in *%A*) echo "41|40_1|RUNNING";; esac')
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    new, other = opened(store)
    with pytest.raises(am.Refused) as caught:
        new.resume()
    assert caught.value.code == "held" and "40_1" in caught.value.message and not other.any()
    words += 1
    old.save(2)  # nothing was taken from it
    assert new.resume(takeover=True).update == 2 and other.all()
    words += 1
    with pytest.raises(am.Superseded) as lost:
        old.save(3)
    assert am.Exit.of(lost.value) == am.Exit.SUPERSEDED
    old.close()
    new.close()
    assert "-j 41 -w node1" in (tmp_path / "heard").read_text()


def test_the_same_job_requeued_and_a_job_that_has_ended_go_on(
    tmp_path: pathlib.Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    command("squeue", 'case "$*" in *%A*) echo "41|41|RUNNING";; esac')
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    for restart_ in range(3):
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart_))
        ckpt, words = opened(store)
        assert ckpt.resume().update == restart_
        words += 1
        ckpt.save(restart_ + 1)
        ckpt.close()
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    ckpt, _ = opened(store)
    assert ckpt.resume().update == 3
    ckpt.close()
