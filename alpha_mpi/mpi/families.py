"""Families: one sub-communicator for a parent and its children, made once, when a store is opened.

Each role takes part in at most two: that of its parent and its own.
"""

from __future__ import annotations

from typing import Any

from ..protocol.hierarchy import Hierarchy, Place, Star, place, role_of
from .channel import NOTES, Channel
from .onesided import trial
from .world import World, as_world, duplicate, mpi

_TAG = 7


class Families:
    """The sub-communicators of one role.

    Attributes
    ----------
    world : World
        The communicator of all owners.
    place : Place
        This owner's role in the hierarchy; on a star the one role.
    up : World or None
        The parent is rank 0 and this role is one of the children 1..k. None for the root.
    down : World or None
        This role is rank 0 and its children are ranks 1..k in preorder. None for a leaf.
    gathers : World or None
        On a star: the world of its gathers alone, which may be incomplete after a missing owner.
    notes : (Channel or None, Channel or None)
        Short notes to the family above and below, for `windows`; on a star owner 0 is above all.
    calls : int
        How many times manifests were read; tells apart notes of one reading from another's.
    """

    def __init__(self, comm: Any, hierarchy: Hierarchy, deadline: float) -> None:
        """Make this role's families; called by every owner, outside a save.

        Making communicators cannot be polled, so all agree first that they are here.
        """
        self.world = as_world(comm)
        self.hierarchy = hierarchy
        owner, owners = self.world.rank, self.world.size
        self.role = role_of(hierarchy, owner)
        self.place: Place = place(hierarchy, owners, self.role)
        self.up: World | None = None
        self.down: World | None = None
        self.gathers: World | None = None
        self.calls = 0
        self.notes: tuple[Channel | None, Channel | None] = (None, None)
        self.world.one_sided = trial(self.world, deadline) is None
        if isinstance(hierarchy, Star) and owners > 1:
            self.gathers = duplicate(self.world, deadline)
            notes = Channel(self.world, NOTES)
            self.notes = (None, notes) if owner == 0 else (notes, None)
        if isinstance(hierarchy, Star) or owners == 1:
            return
        # The trial has ended, so all are here.
        # The parent's family first: in preorder nobody waits for a role that waits for it.
        if self.place.parent is not None:
            self.up = self._make(place(hierarchy, owners, self.place.parent))
        if self.place.children:
            self.down = self._make(self.place)
        self.notes = (
            None if self.up is None else Channel(self.up, NOTES),
            None if self.down is None else Channel(self.down, NOTES),
        )

    @property
    def star(self) -> bool:
        """Whether one role holds all owners' shards."""
        return isinstance(self.hierarchy, Star)

    def role_at(self, rank: int, *, up: bool) -> int:
        """Return the owner at a rank of the family above (`up`) or below; its number is the role's."""
        if self.star:
            return rank
        if not up:
            return self.role if rank == 0 else self.place.children[rank - 1][0]
        assert self.place.parent is not None
        if rank == 0:
            return self.place.parent
        return place(self.hierarchy, self.world.size, self.place.parent).children[rank - 1][0]

    def free(self) -> None:
        """Free the sub-communicators. Called by every owner, unless a peer was lost."""
        if self.world.lost is None:
            for family in (self.up, self.down, self.gathers):
                if family is not None:
                    family.free()
        self.up = self.down = self.gathers = None
        self.notes = (None, None)

    def _make(self, parent: Place) -> World:
        module, raw = mpi(), self.world.raw
        everybody = raw.Get_group()
        members = everybody.Incl([parent.role, *(role for role, _ in parent.children)])
        comm = raw.Create_group(members, _TAG)
        comm.Set_errhandler(module.ERRORS_RETURN)
        members.Free()
        everybody.Free()
        family = World(comm, own=True, mark=self.world.mark)
        family.one_sided = self.world.one_sided
        return family
