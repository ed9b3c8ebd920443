"""Network: any number of publication machines in one process, with a clock that a test moves.

Messages and I/O take no time unless a test says so; everything that was sent is counted.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence

from alpha_mpi.errors import Cause
from alpha_mpi.format.manifest import ChildRecord
from alpha_mpi.format.messages import Message
from alpha_mpi.model.capture import Attempt, Moment, Prefix
from alpha_mpi.protocol import events as ev
from alpha_mpi.protocol.hierarchy import Hierarchy, Star, place
from alpha_mpi.protocol.publication import Role, StarMember, StarRoot, TreeRole

DEADLINE = 10.0
ATTEMPT = Attempt(2, 7)
ENTRY = 4
#: The kinds of messages of an attempt in which nothing goes wrong.
BOUND_KINDS = {"Sign", "Begin", "Commitment", "Release"}
ROOT = "xxh3-128:" + "0c" * 16


def digest(n: int) -> str:
    return "xxh3-128:" + f"{n:032x}"


REPLICAS = ((0, digest(100)), (3, digest(103)), (5, digest(105)))
PREFIX = Prefix(
    1, ATTEMPT, digest(1), digest(2), digest(3), digest(4), digest(5), Moment(10, 640, 2), digest(6)
)


@dataclasses.dataclass
class Counts:
    """What one role received and sent, by kind of message."""

    received: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    sent: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class Network:
    """The roles of one attempt.

    `dead` never take part. `tamper` may change or drop a message (None). `io` may answer a request
    for I/O itself: an event, None to leave it pending, or `Network.DONE` for the ordinary answer.
    """

    DONE = object()

    def __init__(
        self,
        hierarchy: Hierarchy,
        owners: int,
        *,
        dead: Iterable[int] = (),
        prefixes: dict[int, Prefix | Cause] | None = None,
        replicas: dict[int, tuple[tuple[int, str], ...]] | None = None,
        copies: Callable[[int], tuple[tuple[int, str], ...]] = lambda k: (),
        groups: Callable[[int], Sequence[tuple[int, Sequence[int]]]] = lambda k: (),
        changed: Iterable[int] = (),
        tamper: Callable[[int, int, Message], Message | None] = lambda s, t, m: m,
        io: Callable[[int, ev.Effect], object] | None = None,
        region_name: Callable[[int], str | None] = lambda ordinal: f"r{ordinal}",
        deadline: float = DEADLINE,
        **more: object,
    ) -> None:
        self.now = 0.0
        self.hierarchy, self.owners = hierarchy, owners
        self.prefixes, self.replicas = prefixes or {}, replicas or {}
        self.copies, self.changed = copies, set(changed)
        self.tamper, self.io = tamper, io
        self.queue: collections.deque[tuple[int, int, Message]] = collections.deque()
        self.counts = [Counts() for _ in range(owners)]
        self.ends: dict[int, ev.End] = {}
        self.pending: list[tuple[int, ev.Effect]] = []
        self.done: list[tuple[int, ev.Effect]] = []
        self.written = [0] * owners
        self.machines: dict[int, Role] = {}
        for k in range(owners):
            if k in set(dead):
                continue
            if isinstance(hierarchy, Star):
                self.machines[k] = (
                    StarMember(k, ATTEMPT, deadline, region_name)
                    if k
                    else StarRoot(owners, ATTEMPT, deadline, ENTRY, region_name=region_name, **more)  # type: ignore[arg-type]
                )
            else:
                self.machines[k] = TreeRole(
                    place(hierarchy, owners, k),
                    owners,
                    ATTEMPT,
                    deadline,
                    ENTRY if k == 0 else None,
                    groups(k),
                    region_name,
                    fan_out=hierarchy.fan_out,
                    nodes=hierarchy.nodes,
                    **more,  # type: ignore[arg-type]
                )

    def start(self) -> Network:
        """Every role enters; then everything happens that can happen without time."""
        for k in self.machines:
            self.enter(k)
        return self.settle()

    def enter(self, k: int) -> None:
        prefix = self.prefixes.get(k, PREFIX)
        if isinstance(prefix, Cause):
            self.tell(k, ev.Entered(None, cause=prefix))
        else:
            self.tell(k, ev.Entered(prefix, self.replicas.get(k, REPLICAS), inventory=100, payload=1 << 20))

    def tell(self, k: int, event: ev.Event) -> None:
        for effect in self.machines[k].handle(event, self.now):
            self._do(k, effect)

    def send(self, sender: int, to: int, message: Message) -> Network:
        """Put a message of a test's own under way."""
        self.queue.append((sender, to, message))
        return self.settle()

    def settle(self) -> Network:
        while self.queue:
            sender, to, message = self.queue.popleft()
            if to in self.machines:
                self.counts[to].received[type(message).__name__] += 1
                self.tell(to, ev.Received(sender, message))
        return self

    def wait(self, deadlines: float, step: float = 0.1) -> Network:
        """Let time pass in tenths of a deadline."""
        for _ in range(round(deadlines / step)):
            if len(self.ends) == len(self.machines):
                break
            self.now += step * DEADLINE
            for k, machine in self.machines.items():
                if not machine.ended:
                    self.tell(k, ev.Tick(self.written[k]))
            self.settle()
        return self

    def finish(self, k: int, kind: type) -> Network:
        """Complete the pending I/O of one kind at one role."""
        for i, (role, effect) in enumerate(self.pending):
            if role == k and isinstance(effect, kind):
                del self.pending[i]
                self.tell(k, self._answer(k, effect))
                return self.settle()
        raise AssertionError(f"role {k} has not asked for {kind.__name__}")

    @property
    def outcomes(self) -> set[str]:
        assert len(self.ends) == len(self.machines), f"{set(self.machines) - set(self.ends)} have not ended"
        return {end.outcome for end in self.ends.values()}

    @property
    def cause(self) -> Cause:
        """The one cause that every role reports."""
        assert self.outcomes == {"not-published"}
        causes = {end.cause for end in self.ends.values()}
        assert len(causes) == 1, causes
        (cause,) = causes
        assert cause is not None
        return cause

    def _do(self, k: int, effect: ev.Effect) -> None:
        match effect:
            case ev.Send():
                message = self.tamper(k, effect.to, effect.message)
                if message is not None:
                    self.counts[k].sent[type(message).__name__] += 1
                    self.queue.append((k, effect.to, message))
            case ev.End():
                assert k not in self.ends
                self.ends[k] = effect
            case _:
                self.done.append((k, effect))
                answer = self.DONE if self.io is None else self.io(k, effect)
                if answer is self.DONE:
                    self.tell(k, self._answer(k, effect))
                elif answer is None:
                    self.pending.append((k, effect))
                else:
                    self.tell(k, answer)  # type: ignore[arg-type]

    def _answer(self, k: int, effect: ev.Effect) -> ev.Event:
        match effect:
            case ev.WriteShards():
                return ev.ShardsDurable(k in self.changed, self.copies(k))
            case ev.SendPayload():
                return ev.PayloadSent()
            case ev.WriteManifest():
                size = 1 if isinstance(self.hierarchy, Star) else place(self.hierarchy, self.owners, k).size
                return ev.ManifestDurable(ChildRecord(k, size, digest(1000 + k), digest(2000 + k)))
            case ev.PublishRoot():
                return ev.RootDurable(ROOT)
            case ev.StopWriting():
                return ev.WriterStopped()
            case ev.LookAtNextEntry():
                return ev.NextEntry(None, False)
        raise AssertionError(effect)
