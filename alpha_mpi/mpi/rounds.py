"""Rounds: the collectives of a star. One gather of prefixes per save, then slices of words.

A non-blocking collective cannot be cancelled, and owners match them by the order of posting alone.
So every owner posts exactly what owner 0 has posted: one gather of prefixes per save, and each
*round* (one slice of the inventories or payloads) that owner 0 announces. Who is late, or whose
attempt has ended, contributes bytes that nobody looks at. Owner 0 *closes* each attempt once it
posts no further round for it; nothing of the next attempt is posted before the last one's gathers
are complete.
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Callable
from typing import Any

from ..errors import PeerFailed
from ..format.messages import Enter, decode, encode
from ..model.capture import Attempt
from ..protocol.events import Event
from .agreement import decode_cause, encode_cause
from .channel import ROUNDS, Channel
from .waiting import Nap, Patience
from .world import World, lost_peer, mpi

#: Bytes of one owner's record in the gather of prefixes: its `Enter`, or nothing.
RECORD = 1 << 14

_LENGTH = struct.Struct("<I")
#: What owner 0 announces: epoch, save number, one of the three below, round, bytes per owner.
NOTE = struct.Struct("<qqBqq")
INVENTORY, PAYLOAD, CLOSED = 0, 1, 2


def count(size: int, i: int, slice: int) -> int:
    """Return the bytes of slice `i` of a stream of `size` bytes."""
    return min(slice, max(0, size - i * slice))


def encode_record(message: Enter | None) -> bytearray:
    """Return one owner's record: the length of the message, the message, zeros."""
    data = b"" if message is None else encode(message)
    if message is not None and len(data) > RECORD - _LENGTH.size:
        # Only a cause can be that long; `encode_cause` cuts it.
        cause = None if message.cause is None else decode_cause(encode_cause(message.cause))
        data = encode(Enter(message.attempt, None, cause))
    record = bytearray(RECORD)
    record[: _LENGTH.size] = _LENGTH.pack(len(data))
    record[_LENGTH.size : _LENGTH.size + len(data)] = data
    return record


def decode_record(record: memoryview) -> Enter | None:
    """Return the message in one owner's record, or None. Raises `CheckpointError`."""
    (size,) = _LENGTH.unpack_from(record)
    if size == 0:
        return None
    message = decode(bytes(record[_LENGTH.size : _LENGTH.size + min(size, RECORD)]))
    if not isinstance(message, Enter):
        raise PeerFailed("an owner entered with another message", code="bad-message")
    return message


class Gathers:
    """What owner 0 and the members share: collectives in the order posted, completed in that order."""

    def __init__(self, world: World) -> None:
        self.channel = Channel(world, ROUNDS)
        self._world = world
        world.settle = self.settle
        self._attempt: Attempt | None = None  # the one that runs
        self._owed = 0  # gathers of prefixes not posted yet, the running attempt's included
        self._posted: collections.deque[tuple[Any, Any, Callable[[], None]]] = collections.deque()

    def post(self, request: Any, buffers: Any, done: Callable[[], None]) -> None:
        """Keep a collective just started; `done` is called when it is complete."""
        self._posted.append((request, buffers, done))

    def settle(self, limit: float) -> bool:
        """Post and complete what is owed; say whether nothing is left within `limit` seconds."""
        patience, nap = Patience(limit), Nap()
        while not self.settled():
            if self._world.lost is not None:
                return False
            self.progress()
            if patience.ended() and not self.settled():
                return False
            nap()
        return True

    def settled(self) -> bool:
        """Whether every gather that owner 0 posted is complete on this owner."""
        raise NotImplementedError

    def progress(self) -> list[Event]:
        """Post what is due; return what the gathers brought."""
        raise NotImplementedError

    def complete(self) -> None:
        """Let the collectives progress."""
        module = mpi()
        while self._posted:
            request, _, done = self._posted[0]
            try:
                complete = request.Test()
            except module.Exception as error:
                self._world.fail(lost_peer(error, self._world.raw))
            if not complete:
                return
            self._posted.popleft()
            done()
