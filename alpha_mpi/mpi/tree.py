"""Tree: each role speaks to its parent and its children, and inside its replica groups."""

from __future__ import annotations

from ..format.messages import Message, encode
from ..protocol.events import Event
from .channel import GROUPS, MESSAGES, Channel
from .families import Families
from .ports import Ports


class TreePorts(Ports):
    """The ports of one role of a tree; made with the families, used for every save."""

    def __init__(self, families: Families) -> None:
        super().__init__(families)
        self._up = None if families.up is None else Channel(families.up, MESSAGES)
        self._down = None if families.down is None else Channel(families.down, MESSAGES)
        self._groups = Channel(families.world, GROUPS)
        self._ranks = {role: i for i, (role, _) in enumerate(families.place.children, 1)}

    def send(self, to: int, message: Message) -> None:
        """Send through the family; to a role that is no neighbour, directly."""
        data = encode(message)
        if self._up is not None and to == self.families.place.parent:
            self._up.send(0, data)
        elif self._down is not None and to in self._ranks:
            self._down.send(self._ranks[to], data)
        else:
            self._groups.send(to, data)

    def poll(self) -> list[Event]:
        """Return what has arrived."""
        return self._messages()

    def _messages(self) -> list[Event]:
        families = self.families
        events = self._take(self._groups, lambda rank: rank)
        if self._up is not None:
            events += self._take(self._up, lambda rank: families.role_at(rank, up=True))
        if self._down is not None:
            events += self._take(self._down, lambda rank: families.role_at(rank, up=False))
        return events

    def _channels(self) -> list[Channel]:
        return [c for c in (self._up, self._down, self._groups) if c is not None]

    def _neighbours(self) -> list[int]:
        parent = self.families.place.parent
        return [*([] if parent is None else [parent]), *self._ranks]
