"""Star: members speak to owner 0 point to point, and contribute to its gathers."""

from __future__ import annotations

from ..errors import Cause
from ..format.messages import Enter, Go, Message, encode
from ..model.capture import Attempt
from ..protocol.events import Event, Received
from .channel import MESSAGES, Channel
from .contribution import MemberGather
from .families import Families
from .gather import RootGather
from .ports import FLUSH, Actions, Ports, Report


class StarPorts(Ports):
    """The ports of one owner of a star; made when the store is opened, used for every save."""

    def __init__(self, families: Families) -> None:
        super().__init__(families)
        world = families.world
        self._channel = Channel(world, MESSAGES)
        gathers = families.gathers or world
        self._root = RootGather(gathers) if world.rank == 0 else None
        self._member = MemberGather(gathers) if world.rank > 0 else None

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt: owner 0 is about to gather everybody's prefix."""
        super().begin(attempt)
        if self._root is not None:
            self._root.begin(attempt)
        if self._member is not None:
            self._member.begin(attempt)

    def send(self, to: int, message: Message) -> None:
        """Send one message; an `Enter` goes into the gather of prefixes."""
        if isinstance(message, Enter) and self._member is not None:
            self._member.enter(message)
            return
        if isinstance(message, Go) and self._root is not None:
            self._root.go = message
        self._channel.send(to, encode(message))

    def poll(self) -> list[Event]:
        """Return what has arrived, point to point and by gather."""
        events = self._messages()
        for event in events:
            go = event.message if isinstance(event, Received) else None
            if self._member is not None and isinstance(go, Go) and go.attempt == self.attempt:
                self._member.go = go
        if self._root is not None:
            events += self._root.progress()
        if self._member is not None:
            self._member.progress()
        return events

    def _messages(self) -> list[Event]:
        return self._take(self._channel, lambda rank: rank)

    def write(self, actions: Actions, report: Report) -> None:
        """Gather everybody's words, then write."""
        assert self._root is not None
        self._root.gather(actions, report)

    def contribute(self, actions: Actions, report: Report) -> None:
        """Contribute to the gathers, as owner 0 posts them."""
        assert self._member is not None
        self._member.contribute(actions, report)

    def stop(self, actions: Actions, report: Report) -> None:
        """Stop gathering and writing; what owner 0 has posted is still completed, later."""
        if self._root is not None:
            self._root.stop(actions, report)
        if self._member is not None:
            self._member.stop(actions, report)

    def finish(self, limit: float = FLUSH) -> None:
        """End the attempt; gathers not complete are completed before the next one begins."""
        if self._root is not None:
            self._root.finish(limit)
        if self._member is not None:
            self._member.finish()
        super().finish(limit)

    def leave(self, attempt: Attempt, cause: Cause, limit: float = FLUSH) -> None:
        """Tell everybody, and contribute nothing to a gather others may have posted already."""
        super().leave(attempt, cause, limit)
        if self._root is not None:
            self._root.leave()
        if self._member is not None:
            self._member.leave()

    def _channels(self) -> list[Channel]:
        rounds = self._root or self._member
        assert rounds is not None
        return [self._channel, rounds.channel]

    def _neighbours(self) -> list[int]:
        return list(range(1, self.families.world.size)) if self.me == 0 else [0]
