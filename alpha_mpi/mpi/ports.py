"""Ports: how one role reaches the others of its hierarchy; the machines' messages enter and leave here.

A *port* turns a role's number into a rank of a communicator, and bytes into messages. Ports outlive
an attempt: what arrived early is kept for the next one.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Protocol

from ..errors import Cause, CheckpointError, PeerFailed, cause_of
from ..format.manifest import ChildRecord
from ..format.messages import Left, Message, decode
from ..model.capture import Attempt
from ..protocol import causes
from ..protocol.events import Disturbed, Event, Received
from .channel import Channel
from .families import Families

Report = Callable[[Event], None]

#: How long leaving words may take to leave, in seconds; what has not left by then leaves later.
FLUSH = 2.0


class Actions(Protocol):
    """The work of one role, done by the room above.

    What takes a `report` starts the work, usually on a thread, and returns at once; `report` may be
    called from any thread, once, with the event named here or with `Failed`.
    """

    def write_shards(self, report: Report) -> None:
        """`ShardsDurable`. On a star called on owner 0, after everything was received."""

    def stop_writing(self, report: Report) -> None:
        """`WriterStopped`."""

    def write_manifest(self, children: tuple[ChildRecord, ...], report: Report) -> None:
        """`ManifestDurable`."""

    def publish_root(self, children: tuple[ChildRecord, ...], entry: int, report: Report) -> None:
        """`RootDurable`, `RootInDoubt`."""

    def look_at_next_entry(self, entry: int, report: Report) -> None:
        """`NextEntry`."""

    def written(self) -> int:
        """Return the bytes written so far."""

    def inventory(self) -> bytes:
        """Star, owner > 0: the bytes announced as `inventory`."""

    def payload(self, offset: int, nbytes: int) -> memoryview:
        """Star, owner > 0: bytes of the own stream; asked for in order, left alone until the end."""

    def receive_inventory(self, owner: int, data: bytes) -> None:
        """Star, owner 0, on the receiving thread: before any payload."""

    def receive_payload(self, owner: int, offset: int, view: memoryview) -> None:
        """Star, owner 0, on the receiving thread: in order; `view` is valid during the call."""


class Ports:
    """What the ports of star and tree share.

    Attributes
    ----------
    later : list of Received
        What a machine left for the next attempt's.
    received : Counter
        Messages received, by (role, type); for tests.
    """

    def __init__(self, families: Families) -> None:
        self.families = families
        self.later: list[Received] = []
        self.received: collections.Counter[tuple[int, str]] = collections.Counter()
        self.attempt = Attempt(1, 0)
        self._lost: set[int] = set()

    @property
    def me(self) -> int:
        """This owner's number."""
        return self.families.world.rank

    @property
    def largest(self) -> int:
        """Bytes of the largest message sent or received; for tests."""
        return max((channel.counters.largest for channel in self._channels()), default=0)

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt. Called by every owner for each save, before anything else."""
        self.attempt = attempt

    def send(self, to: int, message: Message) -> None:
        """Start sending one message to a role; returns at once."""
        raise NotImplementedError

    def poll(self) -> list[Event]:
        """Return what has arrived; lets sends and gathers progress. Raises `CheckpointError`."""
        raise NotImplementedError

    def watch(self) -> None:
        """Let every collective of this job look out for who has left, instead of waiting for them."""
        families = self.families
        for world in (families.world, families.up, families.down, families.gathers):
            if world is not None:
                world.watch = self.left

    def left(self) -> Cause | None:
        """Return why no further call can succeed, if a neighbour has left; called between saves.

        Looked at while a collective waits (`World.watch`): who left takes part in none.
        """
        self.later += [e for e in self._messages() if isinstance(e, Received)]
        for event in self.later:
            if isinstance(event.message, Left):
                return causes.left(event.message.cause, event.sender)
        return None

    def write(self, actions: Actions, report: Report) -> None:
        """Carry out `WriteShards`."""
        actions.write_shards(report)

    def contribute(self, actions: Actions, report: Report) -> None:
        """Carry out `SendPayload`; on a star alone."""
        raise NotImplementedError

    def stop(self, actions: Actions, report: Report) -> None:
        """Carry out `StopWriting`."""
        actions.stop_writing(report)

    def finish(self, limit: float = FLUSH) -> None:
        """End the attempt: every send leaves, or is kept until it does."""
        for channel in self._channels():
            channel.flush(limit)

    def leave(self, attempt: Attempt, cause: Cause, limit: float = FLUSH) -> None:
        """Tell every neighbour that this program has left the block with an error."""
        for role in self._neighbours():
            self.send(role, Left(attempt, cause))
        for channel in self._channels():
            channel.flush(limit)

    def _messages(self) -> list[Event]:
        """Return the messages that have arrived, point to point."""
        raise NotImplementedError

    def _channels(self) -> list[Channel]:
        raise NotImplementedError

    def _neighbours(self) -> list[int]:
        raise NotImplementedError

    def _take(self, channel: Channel, role_of: Callable[[int], int]) -> list[Event]:
        """Return the messages of one channel; a dead peer counts as one that left."""
        events: list[Event] = []
        for source, data in channel.poll():
            role = role_of(source)
            try:
                message = decode(data)
            except CheckpointError as error:
                events.append(Disturbed(cause_of(error, role)))
                continue
            self.received[role, type(message).__name__] += 1
            events.append(Received(role, message))
        for rank in channel.lost:
            role = role_of(rank)
            if role not in self._lost:
                self._lost.add(role)
                cause = PeerFailed("its process ended", code="lost", role=role).cause()
                events.append(Received(role, Left(self.attempt, cause)))
        return events
