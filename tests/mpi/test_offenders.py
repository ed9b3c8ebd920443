"""One role is at fault: nothing is published, the generation before stays, and every owner raises
the same error, which names that role. On star and tree, the offender being root, inner role, leaf.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from fill import fill, same_bits

import alpha_mpi as am
from alpha_mpi import checkpointer
from alpha_mpi.format.messages import Commitment
from alpha_mpi.model.capture import Moment


class Job:
    """Two regions, one of them replicated, on one store."""

    def __init__(self, team: Any, path: pathlib.Path, hierarchy: Any, **options: Any) -> None:
        self.team = team
        self.w = np.zeros(
            am.rows().bounds(40, team.size, team.rank)[1] - am.rows().bounds(40, team.size, team.rank)[0]
        )
        self.mean = np.zeros(257, np.float32)
        self.fault: BaseException | None = None
        state = am.State()
        state.partition("w", self.get, shape=(40,), layout=am.shares())
        state.replicate("running_mean", self.mean)
        self.ckpt = am.Checkpointer(path, state, team, hierarchy=hierarchy, **{"deadline": 20, **options})

    def get(self) -> np.ndarray:
        if self.fault is not None:
            raise self.fault
        return self.w

    def at(self, update: int) -> None:
        a, b = am.shares().bounds(40, self.team.size, self.team.rank)
        self.w[...] = fill("w", update, (40,), np.float64)[a:b]
        self.mean[...] = fill("mean", update, (257,), np.float32)

    def outcome(self, update: int, cursor: int | None = None) -> Any:
        """Save; return (type, code, role, region, text) of the error on every rank, all equal."""
        try:
            self.ckpt.save(update, cursor)
            mine: Any = "published"
        except am.CheckpointError as error:
            mine = (type(error).__name__, error.code, error.role, error.region, str(error))
        everyone = self.team.allgather(mine)
        assert all(one == everyone[0] for one in everyone), everyone
        return mine


def offenders(hierarchy: Any, size: int) -> list[int]:
    if isinstance(hierarchy, am.Star):
        return [1, size - 1]
    return sorted({1, size // 2, size - 1})


HIERARCHIES = [am.Star(), am.Tree(2), am.Tree(3)]


def names(h: Any) -> str:
    return "star" if isinstance(h, am.Star) else f"tree{h.fan_out}"


def check_previous(team: Any, path: pathlib.Path, hierarchy: Any, update: int) -> None:
    again = Job(team, path, hierarchy)
    with again.ckpt as ckpt:
        moment = ckpt.resume()
        assert moment.update == update
        mine = again.w.copy(), again.mean.copy()
        again.at(update)
        assert same_bits(mine[0], again.w) and same_bits(mine[1], again.mean)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_r04_a_diverged_replica_is_named(team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    if team is None:
        return
    job = Job(team, mpi_tmp_path / "s", hierarchy)
    with job.ckpt as ckpt:
        ckpt.resume()
        job.at(1)
        ckpt.save(1)
        update = 2
        for offender in offenders(hierarchy, team.size):
            for bit in (1, 0x80000000):
                job.at(update)
                if bit != 1:
                    job.mean[200] = 0.0
                if team.rank == offender:
                    job.mean.view(np.uint32)[200] ^= bit
                found = job.outcome(update)
                assert found[1:4] == ("diverged-replica", offender, "running_mean"), found
                job.mean[...] = team.bcast(job.mean, 0)
                assert job.outcome(update) == "published"
                update += 1
    check_previous_mean(team, mpi_tmp_path / "s", hierarchy, update - 1)


def check_previous_mean(team: Any, path: pathlib.Path, hierarchy: Any, update: int) -> None:
    again = Job(team, path, hierarchy)
    with again.ckpt as ckpt:
        assert ckpt.resume().update == update


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_a_mixed_moment_is_named(
    team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if team is None:
        return
    job = Job(team, mpi_tmp_path / "s", hierarchy)
    with job.ckpt as ckpt:
        ckpt.resume()
        job.at(1)
        ckpt.save(1)
        for offender in offenders(hierarchy, team.size):
            job.at(2)
            found = job.outcome(3 if team.rank == offender else 2)
            assert found[1:3] == ("mixed-moments", offender), found
            found = job.outcome(2, 7 if team.rank == offender else 2)
            assert found[1:3] == ("mixed-moments", offender), found
            with monkeypatch.context() as patch:
                if team.rank == offender:
                    patch.setattr(checkpointer, "check_moment", lambda *_: Moment(2, 2, 2))
                found = job.outcome(2)
            assert found[1:3] == ("mixed-moments", offender) and "epoch" in found[4], found
        found = job.outcome(0 if team.rank == team.size - 1 else 2, 2)
        assert found[1:3] == ("stale-update", team.size - 1), found
    check_previous(team, mpi_tmp_path / "s", hierarchy, 1)


class Tampered:
    """Alters what one role sends."""

    def __init__(self, ports: Any, change: Callable[[Any], Any]) -> None:
        self.ports, self.change, self.send = ports, change, ports.send

    def __enter__(self) -> None:
        def send(to: int, message: Any) -> None:
            if isinstance(message, Commitment):
                message = self.change(message)
            if message is not None:
                self.send(to, message)

        self.ports.send = send

    def __exit__(self, *_: object) -> None:
        del self.ports.send


def bigger(message: Commitment) -> Commitment:
    record = msgspec.structs.replace(message.record, size=message.record.size + 1)
    return msgspec.structs.replace(message, record=record)


def other_child(message: Commitment) -> Commitment:
    record = msgspec.structs.replace(message.record, role=message.record.role + 1)
    return msgspec.structs.replace(message, record=record)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("change", "code"),
    [(bigger, "wrong-subtree-size"), (other_child, "wrong-child"), (lambda m: None, "missing-subtree")],
    ids=["one-role-too-many", "wrong-child", "missing-subtree"],
)
@pytest.mark.parametrize("hierarchy", HIERARCHIES[1:], ids=names)
def test_a_false_commitment_publishes_nothing(
    team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any, change: Any, code: str
) -> None:
    if team is None:
        return
    job = Job(team, mpi_tmp_path / "s", hierarchy, deadline=1.0)
    with job.ckpt as ckpt:
        ckpt.resume()
        job.at(1)
        ckpt.save(1)
        for offender in offenders(hierarchy, team.size):
            job.at(2)
            if team.rank == offender:
                with Tampered(ckpt._ports, change):
                    found = job.outcome(2)
            else:
                found = job.outcome(2)
            assert found[1:3] == (code, offender), found
    check_previous(team, mpi_tmp_path / "s", hierarchy, 1)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_r17_user_code_that_fails_on_one_role(team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    if team is None:
        return
    job = Job(team, mpi_tmp_path / "s", hierarchy)
    with job.ckpt as ckpt:
        ckpt.resume()
        update = 1
        for offender in [0, *offenders(hierarchy, team.size)]:
            job.at(update)
            job.fault = ValueError("bad") if team.rank == offender else None
            found = job.outcome(update)
            assert found[1:4] == ("user-code", offender, "w"), found
            assert "ValueError: bad" in found[4]
            job.fault = None
            assert job.outcome(update) == "published"
            update += 1
        for fault in (SystemExit(3), KeyboardInterrupt()):
            job.at(update)
            job.fault = fault if team.rank == 1 else None
            if team.rank == 1:
                with pytest.raises(type(fault)):
                    ckpt.save(update)
            else:
                with pytest.raises(am.PeerFailed) as caught:
                    ckpt.save(update)
                assert caught.value.role == 1
            job.fault = None
            assert job.outcome(update) == "published"
            update += 1
        job.at(update)
        if team.rank == 1:
            job.w = np.zeros(len(job.w) + 1)
        found = job.outcome(update)
        assert found[1:4] == ("wrong-shape", 1, "w"), found


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_peers_learn_at_their_next_call_that_one_left(
    team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any
) -> None:
    if team is None:
        return
    job = Job(team, mpi_tmp_path / "s", hierarchy, deadline=60)
    job.ckpt.resume()
    job.at(1)
    job.ckpt.save(1)
    if team.rank == 1:
        with pytest.raises(ZeroDivisionError), job.ckpt:
            raise ZeroDivisionError("in the training loop")
    else:
        with pytest.raises(am.PeerFailed) as caught, job.ckpt:
            job.at(2)
            job.ckpt.save(2)
        assert caught.value.role == 1 and "ZeroDivisionError" in str(caught.value)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=names)
def test_peers_that_resume_learn_that_one_left(team: Any, mpi_tmp_path: pathlib.Path, hierarchy: Any) -> None:
    if team is None:
        return
    job = Job(team, mpi_tmp_path / "s", hierarchy, deadline=60)
    job.ckpt.resume()
    begin = time.monotonic()
    if team.rank == 1:
        with pytest.raises(ZeroDivisionError), job.ckpt:
            raise ZeroDivisionError("in the training loop")
    else:
        with pytest.raises(am.PeerFailed) as caught, job.ckpt:
            job.ckpt.resume()
        assert caught.value.role == 1 and "ZeroDivisionError" in str(caught.value)
    assert max(team.allgather(time.monotonic() - begin)) < 40
