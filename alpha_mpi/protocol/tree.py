"""Tree: one role of a tree writes its own shards and manifest and sends its parent one commitment.

The root's prefix goes down first; whoever differs says so itself. A parent counts a child once it
has checked prefix, child, subtree size and cover digest; the root takes the entry once everybody
below it is durable, and the release goes down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..errors import Cause
from ..format.manifest import ChildRecord
from ..format.messages import Begin, Commitment, Group, Message, Sign
from ..model.capture import Attempt, Prefix
from . import causes, prefixes
from .causes import RegionName
from .events import (
    Entered,
    ManifestDurable,
    PayloadSent,
    PublishRoot,
    ShardsDurable,
    WriteManifest,
    WriteShards,
)
from .groups import Copies, Groups
from .hierarchy import Place, Tree, height
from .role import Role
from .silence import group_limit

#: Decides at the root, with all commitments at hand: may this attempt be published?
Verdict = Callable[[bool], Cause | None]


class TreeRole(Role):
    """One role of a tree in one attempt; see `Role` for how it is driven.

    Parameters
    ----------
    place : Place
        This role's place in the tree (`hierarchy.place`).
    owners : int
        Number of roles of the tree.
    deadline : float
        The longest silence, in seconds.
    entry : int, optional
        The entry to take; known to the root alone, which tells the others.
    groups : iterable of (ordinal, owners)
        The replica groups this owner is in; only regions of which it holds words.
    covers : mapping of child to cover digest, optional
        What the layout check computed for each child; None leaves covers to the prefix.
    verdict : callable, optional
        Called by the root before it takes the entry, with whether any word of any role changed;
        a cause that it returns aborts the attempt for everybody.
    """

    def __init__(
        self,
        place: Place,
        owners: int,
        attempt: Attempt,
        deadline: float,
        entry: int | None = None,
        groups: Groups = (),
        region_name: RegionName | None = None,
        now: float = 0.0,
        *,
        fan_out: int = 16,
        nodes: tuple[int, ...] = (),
        covers: Mapping[int, str] | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        if not 0 <= place.role < owners or place.role + place.size > owners:
            raise ValueError(f"role {place.role} with {place.size} roles does not fit among {owners}")
        if (place.parent is None) != (entry is not None):
            raise ValueError("the entry is given to the root, and to nobody else")
        super().__init__(
            place.role,
            attempt,
            deadline,
            now,
            parent=place.parent,
            children=[child for child, _ in place.children],
            height=height(Tree(fan_out, nodes), owners, place.role) if place.children else 0,
            entry=entry,
            region_name=region_name,
        )
        self._tree_height = height(Tree(fan_out, nodes), owners)
        self._sizes = dict(place.children)
        self._covers = covers
        self._verdict = verdict
        self._copies = Copies(place.role, attempt, groups, fan_out)
        self._group_signs = set[int]()
        self._prefix: Prefix | None = None
        self._replicas: tuple[tuple[int, str], ...] = ()
        self._begin: Begin | None = None
        self._agreed = False
        self._shards = False
        self._changed = False
        self._records: dict[int, ChildRecord] = {}
        self._naming = False

    # ------------------------------------------------ own work

    def _own(self, event: Entered | ShardsDurable | ManifestDurable | PayloadSent, now: float) -> None:
        match event:
            case Entered():
                self._silence.rest()
                if event.prefix is None:
                    self._abort(causes.no_capture(self._me, event.cause), now)
                    return
                self._prefix, self._replicas = event.prefix, event.replicas
                if self._parent is not None:
                    self._send(self._parent, Sign(self.attempt))
            case ShardsDurable() if self._agreed and not self._shards:
                self._silence.rest()
                self._shards = True
                self._changed |= event.changed
                for to, message in self._copies.own(event.copies):
                    self._send(to, message)
                for peer in self._copies.awaited():
                    self._silence.await_group(peer, now)
                self._compare_copies(now)
            case ManifestDurable() if self._naming and not self._committed:
                assert self._parent is not None and self._prefix is not None
                self._silence.rest()
                self._committed = True
                self._send(
                    self._parent,
                    Commitment(self.attempt, self._prefix, event.record, self._changed),
                )
            case _:
                pass

    def _advance(self, now: float) -> None:
        if not self._agreed:
            self._agree(now)
        elif (
            self._shards
            and not self._naming
            and not self._publishing
            and len(self._records) == len(self._sizes)
            and self._copies.agreed
        ):
            self._name(now)

    def _agree(self, now: float) -> None:
        """With the root's and the own prefix at hand: pass the root's on and write, or abort."""
        own = self._prefix
        if own is None:
            return
        if self._parent is None:
            assert self.entry is not None
            listed = self._replicas if len(self._replicas) <= prefixes.LISTED else ()
            self._begin = Begin(self.attempt, own, self.entry, listed)
        begin = self._begin
        if begin is None:
            return
        cause = prefixes.difference(
            begin.prefix,
            own,
            self._me,
            root_replicas=begin.replicas,
            replicas=self._replicas,
            region_name=self._region_name,
        )
        if cause is not None:
            self._abort(cause, now)
            return
        self._agreed = self._started = True
        self.entry = begin.entry
        self._send_down(begin)
        for child in self._children:  # until now a child had nothing to do and nothing to sign
            self._silence.hear(child, now)
        self._silence.work(now)
        self._out.append(WriteShards())

    def _name(self, now: float) -> None:
        """Everything below is durable: name it, in the own manifest or by taking the entry."""
        children = tuple(self._records[child] for child in self._children)
        if self._parent is not None:
            self._naming = True
            self._silence.work(now)
            self._out.append(WriteManifest(children))
            return
        cause = self._verdict(self._changed) if self._verdict is not None else None
        if cause is not None:
            self._abort(cause, now)
            return
        assert self.entry is not None
        self._publishing = True
        self._silence.work(now)
        self._out.append(PublishRoot(children, self.entry))

    # ------------------------------------------------ messages

    def _take(self, sender: int, message: Message, now: float) -> bool:
        match message:
            case Begin() if sender == self._parent and self._begin is None:
                self._begin = message
            case Commitment():
                self._count(sender, message, now)
            case Group() if not self.committed:
                passed_on = self._copies.receive(sender, message.digests)
                if passed_on is None:
                    return False
                for to, group in passed_on:
                    self._send(to, group)
                self._compare_copies(now)
            case _:
                return False
        return True

    def _count(self, child: int, commitment: Commitment, now: float) -> None:
        cause = self._refusal(child, commitment)
        if cause is None:
            self._records[child] = commitment.record
            self._changed |= commitment.changed
            self._news = True
        elif not self.committed:
            self._abort(cause, now)

    def _refusal(self, child: int, commitment: Commitment) -> Cause | None:
        """Return why this commitment cannot be counted."""
        record = commitment.record
        if child not in self._sizes:
            return causes.unknown_child(child, self._sizes)
        if child in self._records:
            return causes.refused("duplicate-child", "it committed twice", child)
        if record.role != child:
            return causes.refused(
                "wrong-child", "its commitment names another role", child, child, record.role
            )
        size = self._sizes[child]
        if record.size != size:
            text = f"its subtree has {record.size} roles instead of {size}"
            return causes.refused("wrong-subtree-size", text, child, size, record.size)
        if self._prefix is None or not self._agreed:
            return causes.refused("unexpected-message", "it committed before it was told to begin", child)
        cause = prefixes.difference(self._prefix, commitment.prefix, child)
        if cause is not None:
            return cause
        cover = record.cover if self._covers is None else self._covers.get(child)
        if cover != record.cover:
            return causes.refused(
                "cover-differs", "it holds other pieces than the layout gives it", child, cover, record.cover
            )
        return None

    def _compare_copies(self, now: float) -> None:
        found = self._copies.difference()
        if found is not None and not self.committed:
            ordinal, expected, actual = found
            self._abort(causes.diverged_copy(self._me, ordinal, expected, actual, self._region_name), now)

    # ------------------------------------------------ time

    def _awaited_children(self) -> Iterable[int]:
        if not self._agreed:
            return ()
        return [child for child in self._children if child not in self._records]

    def _group_sign(self, sender: int, now: float) -> None:
        if sender in self._copies.awaited():
            self._silence.hear_group(sender, now)
            self._group_signs.add(sender)

    def _watch(self, now: float) -> None:
        if not self._shards:
            return
        for peer, depth in self._copies.awaited().items():
            if self._silence.group_silent(peer, now) >= group_limit(self._deadline, self._tree_height, depth):
                self._abort(causes.missing(peer), now)
                return

    def _sign(self, news: bool) -> None:
        # Who only waits for a replica group has nothing to show, and is bound by its own limit.
        news |= self._shards and bool(self._copies.awaited())
        if self._parent is not None and news and not self._committed:
            self._send(self._parent, Sign(self.attempt))
        self._send_down(Sign(self.attempt))
        if not self.committed:
            for peer in sorted(self._copies.listeners(self._group_signs)):
                self._send(peer, Sign(self.attempt, group=True))
            self._group_signs.clear()
