"""Role: what every publication machine shares: watching its neighbours, and the three endings.

A role *aborts* when nothing will be published, *doubts* when the root was renamed but is not known
durable, and is *released* when it is. The *first cause* is the one that reaches the root first: the
root's abort is final and every role reports its cause. A role that has *committed* may not abort
alone, because its parent may already have counted it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NoReturn

from ..errors import Cause
from ..format.messages import Abort, Doubt, Ended, Group, Left, Message, Release, Sign
from ..model.capture import Attempt
from . import causes
from .causes import RegionName
from .events import (
    Disturbed,
    Effect,
    End,
    Entered,
    Event,
    Failed,
    LookAtNextEntry,
    ManifestDurable,
    NextEntry,
    PayloadSent,
    Received,
    RootDurable,
    RootInDoubt,
    Send,
    ShardsDurable,
    StopWriting,
    Tick,
    WriterStopped,
)
from .silence import Silence, child_limit, parent_limit


@dataclasses.dataclass
class _Abortion:
    """An abort in progress on this role."""

    cause: Cause
    since: float
    final: bool
    stopping: bool
    waiting: set[int]
    clean: bool = True
    answered: bool = False


class Role:
    """One role (on a star: owner) in one attempt. Subclasses say what leads to the commitment.

    Driven by calling `handle` with every event, `Entered` first and `Tick` at least every tenth of
    a deadline, from one thread. When `ended` is true the machine asks for nothing more; messages
    in `later` belong to the next attempt and are handed to its machine.

    Attributes
    ----------
    entry : int or None
        The entry this attempt takes, as soon as it is known.
    outcome : End or None
        How the attempt ended here.
    later : list of Received
        What arrived for a later attempt.
    """

    #: On a star owner 0 bears its own stillness longer, so that a lost owner is named first.
    _stall_share = 1.0

    def __init__(
        self,
        me: int,
        attempt: Attempt,
        deadline: float,
        now: float,
        *,
        parent: int | None,
        children: Iterable[int],
        height: int,
        entry: int | None,
        region_name: RegionName | None,
    ) -> None:
        self.attempt = attempt
        self.entry = entry
        self.outcome: End | None = None
        self.later: list[Received] = []
        self._me = me
        self._parent = parent
        self._children = tuple(children)
        self._region_name = region_name
        self._deadline = deadline
        self._child_limit = child_limit(deadline, height)
        self._parent_limit = parent_limit(deadline)
        peers = self._children if parent is None else (*self._children, parent)
        self._silence = Silence(deadline, now, peers)
        self._news = False
        self._started = False
        self._committed = False
        self._publishing = False
        self._looking: float | None = None
        self._answered = set[int]()  # children whose part is over: they ended or left
        self._lost = set[int]()  # peers from whom nothing more is expected
        self._abortion: _Abortion | None = None
        self._out: list[Effect] = []

    @property
    def ended(self) -> bool:
        """Whether the attempt has ended on this role."""
        return self.outcome is not None

    @property
    def committed(self) -> bool:
        """Whether this role may no longer abort alone."""
        return self._committed or self._publishing

    @property
    def aborting(self) -> bool:
        """Whether this role knows that the attempt publishes nothing."""
        return self._abortion is not None

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return what to do, in order. Raises nothing on any peer's message."""
        if self.ended:
            if isinstance(event, Received) and (
                event.message.attempt > self.attempt or isinstance(event.message, Left)
            ):
                self.later.append(event)
            return []
        match event:
            case Received():
                self._receive(event, now)
            case Tick():
                self._tick(event.written, now)
            case WriterStopped():
                if self._abortion is not None:
                    self._abortion.stopping = False
            case Failed():
                self._failed(event.cause, now)
            case Disturbed():
                if self._abortion is None and self._may_abort():
                    self._abort(event.cause, now)
            case NextEntry():
                self._looked(event, now)
            case RootDurable():
                if self._publishing:
                    assert self.entry is not None
                    self._release(event.root, self.entry)
            case RootInDoubt():
                if self._publishing:
                    self._doubt(event.cause)
            case Entered() | ShardsDurable() | ManifestDurable() | PayloadSent():
                if self._abortion is None:
                    self._own(event, now)
            case _:
                _unknown(event)
        if not self.ended:
            if self._abortion is None:
                self._advance(now)
            if self._abortion is not None:
                self._finish(now)
        out, self._out = self._out, []
        return out

    # ------------------------------------------------ what subclasses say

    def _own(self, event: Entered | ShardsDurable | ManifestDurable | PayloadSent, now: float) -> None:
        """Take a report about the own work."""
        raise NotImplementedError

    def _take(self, sender: int, message: Message, now: float) -> bool:
        """Take a message of this attempt that belongs to its way forward; False if unexpected."""
        raise NotImplementedError

    def _advance(self, now: float) -> None:
        """Do what has become possible."""

    def _may_abort(self) -> bool:
        return not self.committed

    def _awaited_children(self) -> Iterable[int]:
        """The children whose silence matters now."""
        return ()

    def _watch(self, now: float) -> None:
        """Look for further silences, before the commitment."""

    def _sign(self, news: bool) -> None:
        """A sign is due; `news`: own bytes grew or somebody awaited gave a sign since the last."""

    # ------------------------------------------------ messages

    def _receive(self, event: Received, now: float) -> None:
        sender, message = event.sender, event.message
        if isinstance(message, Left):
            self._peer_left(event, now)
            return
        if message.attempt < self.attempt:
            return
        in_group = isinstance(message, Group) or (isinstance(message, Sign) and message.group)
        if message.attempt > self.attempt:
            # Who has ended this attempt may already be in the next one; a sender in our family
            # cannot have ended it before we know, so there it is a fault.
            if in_group or self._abortion is not None or not self._may_abort():
                self.later.append(event)
            else:
                cause = causes.out_of_step(sender, self.attempt, message.attempt)
                self._send(sender, Abort(message.attempt, cause, final=sender != self._parent))
                self._lost.add(sender)
                self._abort(cause, now)
            return
        if not in_group:
            self._hear(sender, now)
        match message:
            case Sign():
                if message.group:
                    self._group_sign(sender, now)
                elif sender in self._children:
                    self._news = True
            case Abort():
                self._told_to_abort(sender, message, now)
            case Ended():
                if sender in self._children:
                    self._child_ended(sender, message.clean)
            case Release():
                if sender == self._parent and self._committed and self._abortion is None:
                    self._release(message.root, message.entry)
                else:
                    self._unexpected(sender, message, now)
            case Doubt():
                if sender == self._parent and self._abortion is None:
                    self._doubt(message.cause)
                else:
                    self._unexpected(sender, message, now)
            case _:
                if self._abortion is None and not self._take(sender, message, now):
                    self._unexpected(sender, message, now)

    def _child_ended(self, child: int, clean: bool) -> None:
        if clean:
            self._answered.add(child)
        else:
            self._lost.add(child)
        if self._abortion is not None:
            self._abortion.waiting.discard(child)
            self._abortion.clean &= clean

    def _hear(self, sender: int, now: float) -> None:
        """A role of the family lives."""
        self._silence.hear(sender, now)

    def _group_sign(self, sender: int, now: float) -> None:
        """Somebody of a replica group says that its digests will come."""

    def _unexpected(self, sender: int, message: Message, now: float) -> None:
        if self._abortion is None and self._may_abort():
            self._abort(causes.unexpected(sender, type(message).__name__.lower()), now)

    def _peer_left(self, event: Received, now: float) -> None:
        sender, left = event.sender, event.message
        assert isinstance(left, Left)
        self.later.append(event)  # nor does any later save succeed
        self._answered.add(sender)
        self._lost.add(sender)
        if self._abortion is not None:
            self._abortion.waiting.discard(sender)
            self._abortion.final |= sender == self._parent
        elif self._may_abort():
            self._abort(causes.left(left.cause, sender), now)

    # ------------------------------------------------ time

    def _tick(self, written: int, now: float) -> None:
        self._news |= self._silence.tick(written, now)
        if self._abortion is not None:
            self._wait_for_ends(self._abortion, now)
            return
        if self._publishing:
            if self._silence.idle(now) >= self._deadline:
                self._doubt(causes.stalled(self._me, self._deadline, publishing=True))
        elif self._committed:
            self._watch_parent(now)
        else:
            self._watch_before_commitment(now)
        if self._abortion is None and not self.ended and self._silence.sign_due(now):
            self._sign(self._news)
            self._news = False

    def _watch_before_commitment(self, now: float) -> None:
        silent = self._silence.silent
        for child in self._awaited_children():
            if silent(child, now) >= self._child_limit:
                self._lost.add(child)
                self._abort(causes.missing(child), now)
                return
        if self._parent is not None and silent(self._parent, now) >= self._parent_limit:
            self._lost.add(self._parent)
            self._abort(causes.missing(self._parent), now)
            return
        if self._silence.idle(now) >= self._deadline * self._stall_share:
            self._abort(causes.stalled(self._me, self._deadline), now)
            return
        self._watch(now)

    def _watch_parent(self, now: float) -> None:
        assert self._parent is not None
        if self._looking is not None:
            if now - self._looking >= self._deadline:
                self._doubt(causes.silent_parent(self._parent, None))
        elif self._silence.silent(self._parent, now) >= self._parent_limit:
            self._looking = now
            self._out.append(LookAtNextEntry(self.entry or 0))

    def _looked(self, seen: NextEntry, now: float) -> None:
        if self._looking is None or self._abortion is not None:
            return
        if seen.superseded is not None:
            # Certain: a claim stands where this attempt's root would have been named.
            assert self._parent is not None
            self._lost.add(self._parent)
            self._abort(seen.superseded, now)
        else:
            self._doubt(causes.silent_parent(self._parent, seen.visible))

    # ------------------------------------------------ the endings

    def _failed(self, cause: Cause, now: float) -> None:
        """Own writing, manifest or root failed, and surely nothing was published."""
        if self._abortion is None and (self._publishing or self._may_abort()):
            self._abort(cause, now)

    def _told_to_abort(self, sender: int, message: Abort, now: float) -> None:
        above = sender == self._parent
        if not above and sender not in self._children:
            self._unexpected(sender, message, now)
        elif self._abortion is None:
            if above or self._may_abort():
                self._abort(message.cause, now, source=sender, final=above and message.final)
        elif above and message.final and not self._abortion.final:
            self._abortion.cause, self._abortion.final = message.cause, True
            self._send_down(Abort(self.attempt, message.cause, final=True))

    def _abort(self, cause: Cause, now: float, *, source: int | None = None, final: bool = False) -> None:
        """Begin to abort: stop the own writer, tell everybody but who told us."""
        parent = self._parent
        final = final or parent is None or parent in self._lost
        self._abortion = _Abortion(
            cause=cause,
            since=now,
            final=final,
            stopping=self._started,
            waiting=set(self._children) - self._answered - self._lost,
            clean=not (self._lost & set(self._children)) - self._answered,
        )
        self._publishing = False
        if self._started:
            self._out.append(StopWriting())
        for child in self._children:
            if child != source or final:
                self._send(child, Abort(self.attempt, cause, final=final))
        if parent is not None and parent != source:
            self._send(parent, Abort(self.attempt, cause))

    def _wait_for_ends(self, abortion: _Abortion, now: float) -> None:
        # Bounded on every level: a child's limit lies below its parent's, so its answer is in time.
        if (abortion.waiting or abortion.stopping) and now - abortion.since >= self._child_limit:
            abortion.waiting.clear()
            abortion.stopping = False
            abortion.clean = False
        if self._parent is not None and not abortion.final:
            silent = min(self._silence.silent(self._parent, now), now - abortion.since)
            if silent >= self._parent_limit:
                abortion.final = True
                self._send_down(Abort(self.attempt, abortion.cause, final=True))

    def _finish(self, now: float) -> None:
        """Answer the parent and end, once nothing of this subtree is awaited any more."""
        abortion = self._abortion
        assert abortion is not None
        if abortion.waiting or abortion.stopping:
            return
        if not abortion.answered:
            abortion.answered = True
            if self._parent is not None:
                self._send(self._parent, Ended(self.attempt, abortion.clean))
        if abortion.final:
            clean = abortion.clean and self._parent is None
            self._end(End("not-published", cause=abortion.cause, clean=clean))

    def _release(self, root: str, entry: int) -> None:
        self._send_down(Release(self.attempt, root, entry))
        self._end(End("published", root=root, entry=entry, clean=self._parent is None))

    def _doubt(self, cause: Cause) -> None:
        self._send_down(Doubt(self.attempt, cause))
        self._end(End("in-doubt", entry=self.entry, cause=cause))

    def _end(self, end: End) -> None:
        self.outcome = end
        self._out.append(end)

    # ------------------------------------------------ small things

    def _send(self, to: int, message: Message) -> None:
        self._out.append(Send(to, message))

    def _send_down(self, message: Message) -> None:
        for child in self._children:
            self._send(child, message)


def _unknown(event: object) -> NoReturn:
    raise TypeError(f"not an event: {event!r}")
