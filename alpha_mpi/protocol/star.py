"""Star: owner 0 gathers every owner's capture, writes it, publishes and acknowledges.

Members enter with their prefix (or the cause of having none); owner 0 compares and says *go*;
every member contributes to the gathers and waits for the acknowledgment. From *go* on a member
has committed: owner 0 may have everything it needs.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import Cause
from ..format.messages import Begin, Enter, Go, Message, Sign
from ..model.capture import Attempt, Prefix
from . import causes, prefixes
from .causes import RegionName
from .events import (
    Entered,
    ManifestDurable,
    PayloadSent,
    PublishRoot,
    SendPayload,
    ShardsDurable,
    WriteShards,
)
from .role import Role
from .tree import Verdict

#: Bytes of one slice of a gather, summed over the owners: the default, and what MPI bears.
SLICE = 64 << 20
LARGEST_SLICE = 1 << 30
_STEP = 1 << 20


def slices(largest: int, owners: int, limit: int) -> tuple[int, int]:
    """Return (bytes per owner, rounds) of a gather whose largest contribution is `largest` bytes."""
    if largest == 0:
        return 0, 0
    share = max(1, limit // owners)
    if share > _STEP:
        share -= share % _STEP
    share = min(share, largest)
    return share, -(-largest // share)


class StarRoot(Role):
    """Owner 0 of a star in one attempt; see `Role` for how it is driven.

    `slice_limit` bounds the bytes of one slice of a gather, summed over all owners. `verdict` is
    that of `TreeRole`. `WriteShards` means: gather and write everybody's shards, comparing each
    owner's replicated words with one's own; whoever differs is reported by `Failed`.
    """

    _stall_share = 2.0  # well above the limit for a silent owner: who stalls the gather is named

    def __init__(
        self,
        owners: int,
        attempt: Attempt,
        deadline: float,
        entry: int,
        slice_limit: int = SLICE,
        region_name: RegionName | None = None,
        now: float = 0.0,
        *,
        verdict: Verdict | None = None,
    ) -> None:
        if not 1 <= slice_limit <= LARGEST_SLICE:
            raise ValueError(f"a slice holds 1 to {LARGEST_SLICE} bytes, not {slice_limit}")
        super().__init__(
            0,
            attempt,
            deadline,
            now,
            parent=None,
            children=range(1, owners),
            height=1,
            entry=entry,
            region_name=region_name,
        )
        self._owners = owners
        self._limit = slice_limit
        self._verdict = verdict
        self._own_entry: Entered | None = None
        self._entries: dict[int, Enter] = {}
        self._unheard = set(range(1, owners))
        self._all_heard_at = now
        self._asked: dict[int, Cause] = {}
        self._asked_at = now

    def _own(self, event: Entered | ShardsDurable | ManifestDurable | PayloadSent, now: float) -> None:
        match event:
            case Entered() if self._own_entry is None:
                self._silence.rest()
                self._own_entry = event
            case ShardsDurable() if self._started and not self._publishing:
                cause = self._verdict(event.changed) if self._verdict is not None else None
                if cause is not None:
                    self._abort(cause, now)
                    return
                assert self.entry is not None
                self._publishing = True
                self._silence.work(now)
                self._out.append(PublishRoot((), self.entry))
            case _:
                pass

    def _take(self, sender: int, message: Message, now: float) -> bool:
        if not isinstance(message, Enter) or sender in self._entries or not 0 < sender < self._owners:
            return False
        self._entries[sender] = message
        return True

    def _advance(self, now: float) -> None:
        # Also with a failed capture of our own: the gather of prefixes must complete for all.
        if self._started or self._asked or self._own_entry is None:
            return
        if len(self._entries) < self._owners - 1:
            return
        own = self._own_entry.prefix
        if own is None:
            self._abort(causes.no_capture(self._me, self._own_entry.cause), now)
            return
        diverged: dict[int, Cause] = {}
        for owner in range(1, self._owners):
            entry = self._entries[owner]
            if entry.prefix is None:
                self._abort(causes.no_capture(owner, entry.cause), now)
                return
            cause = prefixes.difference(own, entry.prefix, owner)
            if cause is not None and cause.code == "diverged-replica":
                diverged[owner] = cause
            elif cause is not None:
                self._abort(cause, now)
                return
        if diverged:
            self._ask(own, diverged, now)
        else:
            self._go(now)

    def _ask(self, own: Prefix, diverged: dict[int, Cause], now: float) -> None:
        """Let the owners whose replicated words differ name the first region themselves."""
        assert self.entry is not None and self._own_entry is not None
        replicas = self._own_entry.replicas
        listed = replicas if len(replicas) <= prefixes.LISTED else ()
        self._asked, self._asked_at = diverged, now
        for owner in diverged:
            self._send(owner, Begin(self.attempt, own, self.entry, listed))

    def _go(self, now: float) -> None:
        entries = self._entries.values()
        inventory = slices(max((e.inventory for e in entries), default=0), self._owners, self._limit)
        payload = slices(max((e.payload for e in entries), default=0), self._owners, self._limit)
        assert self.entry is not None
        self._started = True
        self._send_down(Go(self.attempt, self.entry, *inventory, *payload))
        self._silence.work(now)
        self._out.append(WriteShards())

    def _awaited_children(self) -> Iterable[int]:
        return self._children  # all of them sign until they end

    def _hear(self, sender: int, now: float) -> None:
        super()._hear(sender, now)
        if sender in self._unheard:
            self._unheard.discard(sender)
            self._all_heard_at = now

    def _watch(self, now: float) -> None:
        if self._asked and now - self._asked_at >= self._deadline:
            self._abort(self._asked[min(self._asked)], now)
        elif not self._unheard and now - self._all_heard_at >= self._child_limit:
            # All are here and sign, so the gather of prefixes should long have completed.
            late = [owner for owner in self._children if owner not in self._entries]
            if late:
                self._abort(causes.missing(late[0]), now)

    def _sign(self, news: bool) -> None:
        self._send_down(Sign(self.attempt))


class StarMember(Role):
    """Owner 1, 2, ... of a star in one attempt; see `Role` for how it is driven.

    Its `Enter` is what the driver contributes to the gather of prefixes.
    """

    def __init__(
        self,
        owner: int,
        attempt: Attempt,
        deadline: float,
        region_name: RegionName | None = None,
        now: float = 0.0,
    ) -> None:
        if owner < 1:
            raise ValueError(f"owner {owner} is no member of a star")
        super().__init__(
            owner,
            attempt,
            deadline,
            now,
            parent=0,
            children=(),
            height=0,
            entry=None,
            region_name=region_name,
        )
        self._entered: Entered | None = None
        self._sent = False

    def _own(self, event: Entered | ShardsDurable | ManifestDurable | PayloadSent, now: float) -> None:
        match event:
            case Entered() if self._entered is None:
                self._silence.rest()
                self._entered = event
                # The sign goes point to point: from a gather nobody learns who is missing.
                self._send(0, Sign(self.attempt))
                if event.prefix is not None:
                    self._send(0, Enter(self.attempt, event.prefix, None, event.inventory, event.payload))
                    return
                cause = causes.no_capture(self._me, event.cause)
                self._send(0, Enter(self.attempt, None, cause))
                self._abort(cause, now, source=0)
            case PayloadSent():
                self._sent = True
            case _:
                pass

    def _take(self, sender: int, message: Message, now: float) -> bool:
        if self._entered is None or self._entered.prefix is None or self._started:
            return False
        match message:
            case Begin():
                self._abort(self._divergence(self._entered.prefix, self._entered, message), now)
            case Go():
                self._started = self._committed = True
                self.entry = message.entry
                self._out.append(SendPayload())
            case _:
                return False
        return True

    def _divergence(self, own: Prefix, entered: Entered, begin: Begin) -> Cause:
        cause = prefixes.difference(
            begin.prefix,
            own,
            self._me,
            root_replicas=begin.replicas,
            replicas=entered.replicas,
            region_name=self._region_name,
        )
        return cause or causes.unexpected(0, "begin")

    def _failed(self, cause: Cause, now: float) -> None:
        # Contributing failed: owner 0 cannot have everything, so nothing is published.
        if self._abortion is None and not self._sent:
            self._abort(cause, now)

    def _sign(self, news: bool) -> None:
        self._send(0, Sign(self.attempt))  # always: a gather shows no progress of a single owner
