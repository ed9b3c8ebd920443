"""Contribution: what owner 1, 2, ... of a star adds to each gather that owner 0 posts."""

from __future__ import annotations

import collections
from typing import Any

from ..errors import PeerFailed, cause_of
from ..format.messages import Enter, Go
from ..model.capture import Attempt
from ..protocol.events import Event, Failed, PayloadSent
from .ports import Actions, Report
from .rounds import CLOSED, INVENTORY, NOTE, Gathers, count, encode_record
from .world import World, mpi


class MemberGather(Gathers):
    """The side of owner 1, 2, ...; `progress` is called again and again while an attempt runs."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.go: Go | None = None
        self._record: Enter | None = None
        self._sizes = (0, 0)
        self._entered = self._closed = Attempt(0, 0)  # the last this owner entered, and owner 0 closed
        self._void = True  # contribute zeros: nothing real is asked for any more
        self._due: collections.deque[tuple[int, int, int]] = collections.deque()
        self._actions: Actions | None = None
        self._report: Report | None = None
        self._inventory = b""
        self._unsent = 0

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt: the gather of its prefixes is owed."""
        self._attempt, self.go, self._record = attempt, None, None
        self._void = False
        self._owed += 1

    def enter(self, message: Enter) -> None:
        """Contribute the own prefix, as soon as the last attempt's gathers are complete."""
        self._record = message

    def contribute(self, actions: Actions, report: Report) -> None:
        """Contribute to each round as owner 0 announces it; `PayloadSent` after the last."""
        assert self.go is not None
        self._actions, self._report = actions, report
        self._unsent = self.go.inventory_rounds + self.go.payload_rounds
        if not self._unsent:
            self._sent()

    def stop(self, actions: Actions, report: Report) -> None:
        """Contribute nothing real any more."""
        self._void = True
        actions.stop_writing(report)

    def finish(self) -> None:
        """End the attempt on this owner; what is owed is posted before the next one begins."""
        self._attempt = self._record = self._actions = self._report = None
        self._void = True
        self.progress()

    def leave(self) -> None:
        """Take part, with nothing, in a gather of prefixes that others may have posted."""
        self.progress()
        if self._ready() and not self._owed:
            self._post_prefix(None)

    def settled(self) -> bool:
        """Whether every gather is complete, and owner 0 posts no more."""
        return self._ready() and not self._owed

    def progress(self) -> list[Event]:
        """Post what is due, in the order owner 0 posted it; a member receives nothing."""
        for _, data in self.channel.poll():
            epoch, save, kind, i, slice = NOTE.unpack(data)
            if kind != CLOSED:
                self._due.append((kind, i, slice))
            else:
                self._closed = max(self._closed, Attempt(epoch, save))
        self.complete()
        while self._due and (self._void or self._actions is not None):
            if not self._post_round(*self._due[0]):
                break
            self._due.popleft()
        if self._ready():
            while self._owed > (self._attempt is not None):
                self._owed -= 1
                self._post_prefix(None)
            if self._owed and self._record is not None:
                self._owed -= 1
                self._post_prefix(self._record)
        return []

    def _ready(self) -> bool:
        """Whether the last attempt's gathers are complete and owner 0 posts no more of them."""
        if self._posted or self._due or self._world.lost is not None:
            return False
        return self._closed >= self._entered

    def _post_prefix(self, message: Enter | None) -> None:
        if message is not None:
            self._entered = message.attempt
            self._sizes = (message.inventory, message.payload)
        record, module = encode_record(message), mpi()
        request = self._world.raw.Igather([record, module.BYTE], None, 0)
        self.post(request, record, lambda: None)

    def _post_round(self, kind: int, i: int, slice: int) -> bool:
        """Post one gather; False where the words could not be had: the next call posts it empty.

        By then the failure is on its way: owner 0 hears of it before it sees words that are not ours.
        """
        n = count(self._sizes[kind], i, slice)
        attempt = self._attempt
        data: Any = bytearray(n)
        if not self._void:
            assert self._actions is not None and self._report is not None
            try:
                data = self._words(self._actions, kind, i * slice, n)
            except BaseException as error:  # also the user's: owner 0 must not be left waiting
                self._void = True
                self._report(Failed(cause_of(error, self._world.rank)))
                return False
        module = mpi()
        request = self._world.raw.Igatherv([data, module.BYTE], None, 0)
        self.post(request, data, lambda: self._sent_round(attempt))
        return True

    def _words(self, actions: Actions, kind: int, offset: int, n: int) -> Any:
        if kind == INVENTORY:
            if offset == 0:
                self._inventory = actions.inventory()
            whole, data = len(self._inventory), memoryview(self._inventory)[offset : offset + n]
            if whole != self._sizes[INVENTORY]:
                raise PeerFailed(
                    "the inventory is not as long as announced",
                    code="bad-length",
                    expected=self._sizes[INVENTORY],
                    found=whole,
                )
        else:
            data = memoryview(actions.payload(offset, n)).cast("B") if n else memoryview(b"")
        if len(data) != n:
            raise PeerFailed(
                "the words are not as long as announced", code="bad-length", expected=n, found=len(data)
            )
        return data

    def _sent_round(self, attempt: Attempt | None) -> None:
        if self._void or attempt != self._attempt:
            return
        self._unsent -= 1
        if self._unsent == 0:
            self._sent()

    def _sent(self) -> None:
        self._inventory = b""
        if self._report is not None:
            self._report(PayloadSent())
