"""Agreement: the lowest cause for all, bytes from one to all, and an end within the deadline."""

from __future__ import annotations

import time
from typing import Any

import pytest

from alpha_mpi.errors import Cause, PeerFailed, Refused
from alpha_mpi.mpi import agreement
from alpha_mpi.mpi.world import Solo, World

pytestmark = pytest.mark.mpi

LONG = Cause(
    kind="refused",
    code="corrupt-shard",
    message="\U0001f9ea" * 2000,
    role=3,
    region="\U0001f9ea" * 900,
    file="\U0001f9ea" * 900,
    expected="\U0001f9ea" * 900,
    found="\U0001f9ea" * 900,
    stage="rename",
    errno=28,
    visible=True,
)


def test_no_cause_agrees(world: World) -> None:
    assert agreement.agree(world, None, 20) is None


def test_the_lowest_cause_is_everybodys(world: World) -> None:
    for first in range(world.size):
        cause = None
        if world.rank >= first:
            cause = Refused(f"rank {world.rank}", code="schema", role=world.rank).cause()
        agreed = agreement.agree(world, cause, 20)
        assert agreed == Refused(f"rank {first}", code="schema", role=first).cause()


def test_every_bounded_cause_crosses(world: World) -> None:
    encoded = agreement.encode_cause(LONG)
    assert len(encoded) <= agreement.CAUSE_LIMIT
    assert agreement.decode_cause(encoded) == LONG.bounded()
    last = world.size - 1
    assert agreement.agree(world, LONG if world.rank == last else None, 20) == LONG.bounded()


def test_a_cause_too_long_for_a_message_is_cut() -> None:
    cause = Cause(kind="refused", code="x" * 40_000, message="m", role=7)
    encoded = agreement.encode_cause(cause)
    assert len(encoded) <= agreement.CAUSE_LIMIT
    assert agreement.decode_cause(encoded).role == 7


@pytest.mark.parametrize("bad", [b"", b"\xc1", b"\x80", b"\x81\xa4kind\x01"])
def test_a_cause_that_cannot_be_read_is_a_cause(bad: bytes) -> None:
    assert agreement.decode_cause(bad).code == "bad-message"


@pytest.mark.parametrize("size", [0, 1, 1000, 300_001])
def test_bcast(world: World, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "SLICE", 100_000)
    root = world.size - 1
    data = bytes(i % 251 for i in range(size))
    assert agreement.bcast(world, data if world.rank == root else None, root, 20) == data


def test_gather_text(world: World) -> None:
    got = agreement.gather_text(world, b"x" * world.rank, 20)
    assert got == ([b"x" * r for r in range(world.size)] if world.rank == 0 else None)
    got = agreement.gather_text(world, bytes(agreement.TEXT_LIMIT + 5), 20)
    assert got is None or [len(text) for text in got] == [agreement.TEXT_LIMIT] * world.size


def test_same_bytes(world: World) -> None:
    assert agreement.same_bytes(world, b"same", 20) is None
    for differs in range(1, world.size):
        data = b"other" if world.rank in (differs, world.size - 1) else b"same"
        assert agreement.same_bytes(world, data, 20) == differs


def test_spread_in_slices(world: World) -> None:
    data = bytes(i % 253 for i in range(100_003))
    got = bytearray(len(data))

    def read(offset: int, n: int) -> memoryview:
        assert world.rank == 0
        return memoryview(data)[offset : offset + n]

    def sink(offset: int, view: memoryview) -> None:
        got[offset : offset + len(view)] = view

    cause = agreement.spread(world, 0, read if world.rank == 0 else None, len(data), sink, 20, slice=7001)
    assert cause is None
    assert got == data
    assert agreement.spread(world, 0, read if world.rank == 0 else None, 0, sink, 20) is None


def test_a_failed_read_ends_a_spread_for_all(world: World) -> None:
    seen: list[int] = []

    def read(offset: int, n: int) -> bytes:
        if offset >= 20:
            raise Refused("the chunk differs", code="corrupt-shard")
        return bytes(n)

    cause = agreement.spread(world, 0, read, 100, lambda at, view: seen.append(at), 20, slice=10)
    assert cause is not None and (cause.code, cause.role) == ("corrupt-shard", 0)
    assert seen == [0, 10]
    assert agreement.agree(world, None, 20) is None  # in step again


def test_a_failed_sink_is_everybodys(world: World) -> None:
    last = world.size - 1

    def sink(offset: int, view: memoryview) -> None:
        if world.rank == last and offset == 10:
            raise ValueError("no room")

    cause = agreement.spread(world, 0, lambda at, n: bytes(n), 100, sink, 20, slice=10)
    assert cause is not None and (cause.code, cause.role) == ("user-code", last)


def test_a_read_of_the_wrong_length_is_refused(world: World) -> None:
    cause = agreement.spread(world, 0, lambda at, n: bytes(n + 1), 100, lambda at, view: None, 20)
    assert cause is not None and cause.role == 0


@pytest.mark.mpi(min_size=2)
def test_a_silent_rank_ends_everybodys_wait(world: World, everyone: Any) -> None:
    began = time.monotonic()
    if world.rank > 0:
        with pytest.raises(PeerFailed) as failed:
            agreement.agree(world, None, 0.3)
        assert failed.value.code == "silent"
        assert time.monotonic() - began < 10
        with pytest.raises(PeerFailed) as again:  # the collectives are out of step: none is started
            agreement.bcast(world, b"", 0, 20)
        assert again.value.code == "silent"
    assert sum(everyone(world.lost is not None)) == world.size - 1
    if world.rank == 0:
        agreement.agree(world, None, 20)  # the late one: nothing is left pending for the next test


def test_alone_without_mpi() -> None:
    solo = Solo()
    cause = Refused("no", code="schema").cause()
    assert agreement.agree(solo, None, 1) is None
    assert agreement.agree(None, cause, 1) == cause
    assert agreement.bcast(solo, b"abc", 0, 1) == b"abc"
    assert agreement.gather_text(solo, b"abc", 1) == [b"abc"]
    assert agreement.same_bytes(solo, b"abc", 1) is None
    assert agreement.spread(solo, 0, lambda at, n: bytes(n), 10, lambda at, view: None, 1) is None
