"""Gather: owner 0 of a star, which posts and announces every round, and hands over what arrives."""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Callable

from ..errors import cause_of
from ..format.messages import Enter, Go
from ..model.capture import Attempt
from ..protocol.events import Disturbed, Event, Failed, Received
from .ports import Actions, Report
from .rounds import CLOSED, INVENTORY, NOTE, PAYLOAD, RECORD, Gathers, count, decode_record, encode_record
from .world import World, mpi

#: Rounds posted or being written at the same time.
AHEAD = 2


class RootGather(Gathers):
    """Owner 0's side. `progress` is called again and again while an attempt runs."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.go: Go | None = None
        self._entries: dict[int, Enter] = {}
        self._arrived: list[Event] = []
        self._reception: _Reception | None = None

    def begin(self, attempt: Attempt) -> None:
        """Begin an attempt: the gather of its prefixes is owed."""
        self._attempt, self.go = attempt, None
        self._entries, self._arrived = {}, []
        self._owed += 1

    def progress(self) -> list[Event]:
        """Post what can be posted; return the prefixes once they are complete."""
        if self._world.alone:
            return []
        self.channel.poll()
        self.complete()
        if self._owed and not self._posted and self._world.lost is None:
            while self._owed:
                self._owed -= 1
                self._post_prefixes(self._attempt if self._owed == 0 else None)
        if self._reception is not None:
            self._reception.advance()
        arrived, self._arrived = self._arrived, []
        return arrived

    def settled(self) -> bool:
        """Whether every gather is complete."""
        return not self._posted and (self._world.alone or not self._owed)

    def gather(self, actions: Actions, report: Report) -> None:
        """Begin to gather inventories and payloads as `go` says; then the actions write."""
        if self._world.alone:
            actions.write_shards(report)
            return
        assert self.go is not None
        self._reception = _Reception(self, self.go, self._entries, actions, report)

    def stop(self, actions: Actions, report: Report) -> None:
        """Post no further round, and stop writing once nothing is being received."""
        if self._reception is None:
            actions.stop_writing(report)
        else:
            self._reception.stop(actions, report)

    def finish(self, limit: float) -> None:
        """End the attempt: no further round will be posted for it."""
        if self._reception is not None:
            self._reception.end(limit)
        if self._attempt is not None:
            self._tell(NOTE.pack(self._attempt.epoch, self._attempt.save, CLOSED, 0, 0))
        self._attempt = self._reception = None

    def leave(self) -> None:
        """Take part, with nothing, in a gather of prefixes that the members may have posted."""
        if not self._world.alone and self._world.lost is None and not self._owed:
            self._post_prefixes(None)

    def post_round(
        self, kind: int, i: int, slice: int, counts: list[int], view: memoryview, done: Callable[[], None]
    ) -> None:
        """Announce one round and post it; `done` is called once `view` is filled."""
        assert self._attempt is not None
        self._tell(NOTE.pack(self._attempt.epoch, self._attempt.save, kind, i, slice))
        module = mpi()
        receive = [view, counts, None, module.BYTE]
        request = self._world.raw.Igatherv([bytearray(0), module.BYTE], receive, 0)
        self.post(request, receive, done)

    def _post_prefixes(self, attempt: Attempt | None) -> None:
        module, size = mpi(), self._world.size
        own, records = encode_record(None), bytearray(RECORD * size)

        def complete() -> None:
            if attempt is None or attempt != self._attempt:
                return  # that attempt has ended: nobody looks at its prefixes
            for owner in range(1, size):
                self._enter(owner, memoryview(records)[RECORD * owner : RECORD * (owner + 1)])

        receive = [records, RECORD, module.BYTE]
        self.post(self._world.raw.Igather([own, module.BYTE], receive, 0), (own, receive), complete)

    def _enter(self, owner: int, record: memoryview) -> None:
        try:
            message = decode_record(record)
        except Exception as error:
            self._arrived.append(Disturbed(cause_of(error, owner)))
            return
        if message is not None:
            self._entries[owner] = message
            self._arrived.append(Received(owner, message))

    def _tell(self, note: bytes) -> None:
        for owner in range(1, self._world.size):
            self.channel.send(owner, note)


class _Reception:
    """Owner 0, one attempt: posts the rounds, hands what arrives to the actions on one thread."""

    def __init__(
        self, gather: RootGather, go: Go, entries: dict[int, Enter], actions: Actions, report: Report
    ) -> None:
        self._gather = gather
        self._actions = actions
        self._report = report
        self._owners = sorted(entries)
        self._sizes = {
            INVENTORY: {k: entries[k].inventory for k in self._owners},
            PAYLOAD: {k: entries[k].payload for k in self._owners},
        }
        self._inventories = {k: bytearray() for k in self._owners}
        self._rounds = self._plan(go)
        # Fresh pages cost two thirds of a copy: the buffers of finished rounds are used again.
        self._spare: list[bytearray] = []
        self._largest = max((sum(self._counts(*round)) for round in self._rounds), default=0)
        self._in_flight = 0
        self._jobs: list[concurrent.futures.Future[None]] = []
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "alpha_mpi-receive")
        self._over = False  # nothing more is posted, and nothing more handed to the actions
        self._handed = False
        if go.inventory_rounds == 0:
            self._hand_over_inventories()

    def advance(self) -> None:
        """Post the next rounds; once all are handed over, let the actions write."""
        self._jobs = [job for job in self._jobs if not job.done()]
        while not self._over and self._rounds and self._in_flight + len(self._jobs) < AHEAD:
            kind, i, slice = self._rounds.popleft()
            counts = self._counts(kind, i, slice)
            buffer = self._spare.pop() if self._spare else bytearray(self._largest)
            self._in_flight += 1
            done = self._taker(kind, i * slice, counts, buffer)
            self._gather.post_round(kind, i, slice, counts, memoryview(buffer)[: sum(counts)], done)
        if not (self._over or self._handed or self._rounds or self._in_flight or self._jobs):
            self._handed = True
            try:
                self._actions.write_shards(self._report)
            except BaseException as error:
                self._report(Failed(cause_of(error, 0)))

    def stop(self, actions: Actions, report: Report) -> None:
        """Stop at the next owner's slice, then let the actions stop."""
        self._over = True
        self._jobs.append(self._pool.submit(_reporting, lambda: actions.stop_writing(report), report))

    def end(self, limit: float) -> None:
        """End; waits at most `limit` seconds for the thread, which may hang in a write."""
        self._over = True
        self._pool.shutdown(wait=False)
        concurrent.futures.wait(self._jobs, limit)

    def _plan(self, go: Go) -> collections.deque[tuple[int, int, int]]:
        rounds = [(INVENTORY, i, go.inventory_slice) for i in range(go.inventory_rounds)]
        rounds += [(PAYLOAD, i, go.payload_slice) for i in range(go.payload_rounds)]
        return collections.deque(rounds)

    def _counts(self, kind: int, i: int, slice: int) -> list[int]:
        return [0, *(count(self._sizes[kind][owner], i, slice) for owner in self._owners)]

    def _taker(self, kind: int, offset: int, counts: list[int], buffer: bytearray) -> Callable[[], None]:
        last = kind == INVENTORY and not any(k == INVENTORY for k, _, _ in self._rounds)
        view, at = memoryview(buffer), 0
        parts: list[tuple[int, memoryview]] = []
        for owner in self._owners:
            parts.append((owner, view[at : at + counts[owner]]))
            at += counts[owner]

        def take() -> None:
            self._in_flight -= 1
            if kind == PAYLOAD:
                self._submit(lambda: self._hand_over(offset, parts, buffer))
                return
            for owner, part in parts:
                self._inventories[owner] += part
            self._spare.append(buffer)
            if last:
                self._hand_over_inventories()

        return take

    def _hand_over_inventories(self) -> None:
        def hand_over() -> None:
            for owner in self._owners:
                if self._sizes[INVENTORY][owner]:
                    self._actions.receive_inventory(owner, bytes(self._inventories[owner]))

        self._submit(hand_over)

    def _hand_over(self, offset: int, parts: list[tuple[int, memoryview]], buffer: bytearray) -> None:
        for owner, part in parts:
            if self._over:
                return
            if len(part):
                self._actions.receive_payload(owner, offset, part)
        self._spare.append(buffer)

    def _submit(self, job: Callable[[], None]) -> None:
        if not self._over:
            self._jobs.append(self._pool.submit(self._guarded, job))

    def _guarded(self, job: Callable[[], None]) -> None:
        if self._over:
            return
        try:
            job()
        except BaseException as error:
            self._over = True
            self._report(Failed(cause_of(error, 0)))


def _reporting(work: Callable[[], None], report: Report) -> None:
    try:
        work()
    except BaseException as error:
        report(Failed(cause_of(error, 0)))
