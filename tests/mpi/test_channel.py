"""Channel: order, limits, sends that leave late, messages put back."""

from __future__ import annotations

import time
from typing import Any

import pytest

from alpha_mpi.errors import PeerFailed
from alpha_mpi.format.messages import LIMIT
from alpha_mpi.mpi.channel import Channel
from alpha_mpi.mpi.world import World, open_world

pytestmark = pytest.mark.mpi


def take(channel: Channel, count: int, limit: float = 20) -> list[tuple[int, bytes]]:
    end, got = time.monotonic() + limit, []
    while len(got) < count and time.monotonic() < end:
        got += channel.poll()
        time.sleep(1e-4)
    assert len(got) == count
    return got


def test_everybody_to_everybody_in_order(world: World) -> None:
    channel = Channel(world, 5)
    peers = [r for r in range(world.size) if r != world.rank]
    # Long and short in turn: a long one must not be overtaken by the short one behind it.
    sizes = [LIMIT, 1, 300_000, 0, 70_000, 2]
    for i, size in enumerate(sizes):
        for peer in peers:
            channel.send(peer, bytes([i]) * size)
    got = take(channel, len(sizes) * len(peers))
    for peer in peers:
        assert [m for s, m in got if s == peer] == [bytes([i]) * n for i, n in enumerate(sizes)]
        assert channel.counters.received[peer] == channel.counters.sent[peer] == len(sizes)
    assert channel.flush(20)
    assert channel.pending() == 0
    assert channel.counters.largest == (LIMIT if peers else 0)


def test_a_message_above_the_limit_is_refused(world: World) -> None:
    with pytest.raises(PeerFailed) as refused:
        Channel(world, 5).send(0, bytes(LIMIT + 1))
    assert refused.value.code == "message-too-large"


@pytest.mark.mpi(min_size=2)
def test_a_send_nobody_takes_does_not_block(world: World, comm: Any) -> None:
    channel = Channel(world, 5)
    last = world.size - 1
    if world.rank == 0:
        channel.send(last, bytes(LIMIT))
        began = time.monotonic()
        channel.flush(0.2)
        assert time.monotonic() - began < 5
    comm.Barrier()
    if world.rank == last:
        assert take(channel, 1) == [(0, bytes(LIMIT))]
    if world.rank == 0:
        assert channel.flush(20)
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_tags_are_apart_and_messages_can_be_put_back(world: World) -> None:
    one, two = Channel(world, 5), Channel(world, 6)
    if world.rank == 0:
        one.send(1, b"a")
        two.send(1, b"b")
        one.send(1, b"c")
        assert one.flush(20) and two.flush(20)
    if world.rank == 1:
        assert take(two, 1) == [(0, b"b")]
        got = take(one, 2)
        one.unread(got[1:])
        one.unread(got[:1])
        assert one.poll() == [(0, b"a"), (0, b"c")]
        assert one.poll() == []


@pytest.mark.mpi(min_size=2)
def test_messages_of_a_freed_world_never_reach_the_next(comm: Any) -> None:
    for turn in range(4):
        world = open_world(comm, 30)
        channel = Channel(world, 5)
        for size in (1, 200_000):
            channel.send((world.rank + 1) % world.size, bytes([turn]) * size)
        if turn == 3:
            assert take(channel, 2) == [((world.rank - 1) % world.size, bytes([3]) * n) for n in (1, 200_000)]
            assert channel.flush(20)
        world.free()
