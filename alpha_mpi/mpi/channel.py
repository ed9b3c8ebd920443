"""A channel: bytes to a peer, and from any peer, without ever blocking.

Messages of one sender arrive in the order sent. Buffers are kept until MPI is done with them.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from ..errors import PeerFailed
from ..format.messages import LIMIT
from .waiting import Nap, Patience
from .world import MARK, World, failed_ranks, lost_peer, mpi

#: Tags: messages of the protocol, inside replica groups, notes of `windows`, rounds of `gather`.
MESSAGES, GROUPS, NOTES, ROUNDS = 1, 2, 3, 4


@dataclasses.dataclass
class Counters:
    """What a channel has carried, for tests: messages by peer, and the largest one in bytes."""

    received: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    sent: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    largest: int = 0

    def note(self, counter: collections.Counter[int], peer: int, size: int) -> None:
        """Count one message."""
        counter[peer] += 1
        self.largest = max(self.largest, size)


@dataclasses.dataclass
class _Arriving:
    source: int
    request: Any
    buffer: bytearray


class Channel:
    """Messages of at most 1 MiB between the ranks of one communicator, under one tag.

    Only one thread may use a channel. `lost` holds the ranks MPI reported dead; sending to them
    does nothing.
    """

    def __init__(self, comm: Any, tag: int) -> None:
        self._comm = comm.raw if isinstance(comm, World) else comm
        # MPI may give the number of a freed communicator to a new one, with the messages nobody took.
        self._mark = comm.mark if isinstance(comm, World) else bytes(MARK)
        self._tag = tag
        self._leaving: list[tuple[int, Any, bytes]] = []
        self._arriving: list[_Arriving] = []
        self._unread: list[tuple[int, bytes]] = []
        self._deaf: bool = self._comm is None or self._comm.size == 1
        if isinstance(comm, World):
            comm.channels.append(self)
        self.lost: set[int] = set()
        self.counters = Counters()

    def send(self, to: int, data: bytes) -> None:
        """Start sending; returns at once. Raises `PeerFailed` for a message above the limit."""
        if len(data) > LIMIT:
            raise PeerFailed("message too large", code="message-too-large", expected=LIMIT, found=len(data))
        if to in self.lost:
            return
        self.counters.note(self.counters.sent, to, len(data))
        module = mpi()
        try:
            data = self._mark + data
            request = self._comm.Isend([data, module.BYTE], to, self._tag)
        except module.Exception as error:
            self._note(error, to)
            return
        if self._test(request, to) is False:
            self._leaving.append((to, request, data))

    def poll(self) -> list[tuple[int, bytes]]:
        """Return every whole message that has arrived, as (source, bytes), and let sends progress.

        Raises `PeerFailed` when MPI reports a fault that names no dead process.
        """
        if self._deaf:
            return []
        self.pending()
        self._probe()
        before, self._unread = self._unread, []
        return before + self._whole()

    def unread(self, messages: list[tuple[int, bytes]]) -> None:
        """Put messages back, in order: they are for later, and the next `poll` returns them first."""
        self._unread = messages + self._unread

    def pending(self) -> int:
        """Return how many sends have not left yet."""
        self._leaving = [entry for entry in self._leaving if self._test(entry[1], entry[0]) is False]
        return len(self._leaving)

    def flush(self, deadline: float) -> bool:
        """Wait at most `deadline` seconds until every send has left; say whether they have.

        What has not left stays with the channel, and leaves at a later `poll`.
        """
        patience, nap = Patience(deadline), Nap()
        while self.pending():
            if patience.ended():
                return False
            nap()
        return True

    def _probe(self) -> None:
        module, status = mpi(), mpi().Status()
        while True:
            try:
                message = self._comm.Improbe(module.ANY_SOURCE, self._tag, status)
            except module.Exception as error:
                if self._note(error, None):
                    continue
                return
            if message is None:
                return
            source, size = status.Get_source(), status.Get_count(module.BYTE)
            if not 0 <= size <= LIMIT + MARK:
                raise PeerFailed(
                    "message too large", code="message-too-large", role=source, expected=LIMIT, found=size
                )
            buffer = bytearray(size)
            request = message.Irecv([buffer, module.BYTE])
            self._arriving.append(_Arriving(source, request, buffer))

    def _whole(self) -> list[tuple[int, bytes]]:
        whole: list[tuple[int, bytes]] = []
        waiting: list[_Arriving] = []
        held: set[int] = set()
        for one in self._arriving:
            # A long message may complete after a short one sent later: keep the order of each peer.
            done = False if one.source in held else self._test(one.request, one.source)
            if done is False:
                held.add(one.source)
                waiting.append(one)
            elif done and one.buffer.startswith(self._mark):
                data = bytes(one.buffer[MARK:])
                self.counters.note(self.counters.received, one.source, len(data))
                whole.append((one.source, data))
        self._arriving = waiting
        return whole

    def _test(self, request: Any, peer: int) -> bool | None:
        """Say whether a request is complete; None when it failed because its peer is dead."""
        try:
            return bool(request.Test())
        except mpi().Exception as error:
            self._note(error, peer)
            return None

    def _note(self, error: BaseException, peer: int | None) -> bool:
        """Record who is dead; say whether that is somebody new. Raises for any other fault."""
        dead = failed_ranks(self._comm)
        if peer is not None and dead is not None:
            dead.add(peer)
        if not dead:
            cause = lost_peer(error)
            raise PeerFailed(cause.message, code=cause.code, role=peer) from error
        new = not dead <= self.lost
        self.lost |= dead
        return new
