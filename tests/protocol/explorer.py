"""Explorer: every order of events for a few roles, with faults, against the named invariants.

A *world* is the state of every role, every message under way, every I/O request, the store and the
time. All its successors are visited once. The machines are deterministic, so what one role does
with one event is computed once and looked up afterwards.

Faults have budgets: `crash` (a role dies; what it had sent may be lost), `disk` (a request fails or
its outcome is unknown), `drop` (one message is lost), `hold` (messages between two roles, or one
request, come arbitrarily late), `claim` (another job's claim takes the entry), `disturb` (a role
hears of trouble beside its own work, for example an interrupt). Time advances by a
tenth of a deadline, and only when nothing else can happen: what is late is late because it is held.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from alpha_mpi.errors import Cause
from alpha_mpi.format.manifest import ChildRecord
from alpha_mpi.format.messages import Commitment, Ended, Enter, Group, Release, Sign
from alpha_mpi.model.capture import Attempt, Moment, Prefix
from alpha_mpi.protocol import events as ev
from alpha_mpi.protocol.hierarchy import Tree, place
from alpha_mpi.protocol.publication import Role, StarMember, StarRoot, TreeRole

DEADLINE = 10.0
ATTEMPT = Attempt(2, 7)
ENTRY = 4
#: Everybody must have ended by then: silence, then a parent that never answers the abort.
BOUND = int(7 * DEADLINE)

PREFIX = Prefix(
    version=1,
    attempt=ATTEMPT,
    schema="xxh3-128:" + "01" * 16,
    learner="xxh3-128:" + "02" * 16,
    contract="xxh3-128:" + "03" * 16,
    layout="xxh3-128:" + "04" * 16,
    cover="xxh3-128:" + "05" * 16,
    moment=Moment(10, 640, 2),
    replicas="xxh3-128:" + "06" * 16,
)
COPY = ((0, "xxh3-128:" + "0a" * 16),)
SUPERSEDED = Cause(kind="superseded", code="superseded", message="a newer continuation took over")
#: What touches the store, and what can fail.
WRITES = ("shards", "manifest", "root")
WORK = (*WRITES, "payload")


class Violation(AssertionError):
    """An invariant does not hold; the message names it and lists how the world came about."""


class World(NamedTuple):
    time: int
    roles: tuple[int, ...]  # interned machine; -1: has not entered; -2: dead
    channels: tuple[tuple[tuple[int, int, bool], tuple[Any, ...]], ...]
    requests: tuple[tuple[str, ...], ...]  # per role, in the order asked
    shards: tuple[bool, ...]
    manifests: tuple[bool, ...]
    root: str  # absent, unknown (nobody can say), visible, durable
    claimed: bool
    cleaned: bool
    failed: tuple[int, ...]  # roles that had a fault of their own
    budget: tuple[int, ...]
    held: tuple[Any, ...] | None


FAULTS = ("crash", "disk", "drop", "hold", "claim", "disturb")


@dataclasses.dataclass(frozen=True)
class Scene:
    """What is explored: a hierarchy, who enters with what, and the budgets."""

    owners: int
    fan_out: int | None = None  # None: a star
    prefixes: tuple[tuple[int, Prefix | None], ...] = ()
    groups: tuple[tuple[int, tuple[int, ...]], ...] = ()
    copies: tuple[tuple[int, tuple[tuple[int, str], ...]], ...] = ()
    faults: tuple[tuple[str, int], ...] = ()
    blame: int | None = None  # the role that every cause must name

    def machine(self, k: int, now: float) -> Role:
        if self.fan_out is None:
            if k == 0:
                return StarRoot(self.owners, ATTEMPT, DEADLINE, ENTRY, now=now)
            return StarMember(k, ATTEMPT, DEADLINE, now=now)
        groups = [g for g in self.groups if k in g[1]]
        return TreeRole(
            place(Tree(self.fan_out), self.owners, k),
            self.owners,
            ATTEMPT,
            DEADLINE,
            entry=ENTRY if k == 0 else None,
            groups=groups,
            now=now,
            fan_out=self.fan_out,
        )

    def entered(self, k: int) -> ev.Entered:
        prefix = dict(self.prefixes).get(k, PREFIX)
        if prefix is None:
            return ev.Entered(None, cause=capture_failed(k))
        return ev.Entered(prefix, inventory=8, payload=8)

    def own_copies(self, k: int) -> tuple[tuple[int, str], ...]:
        held = tuple(c for c in COPY if any(k in m for o, m in self.groups if o == c[0]))
        return dict(self.copies).get(k, held)


def capture_failed(k: int) -> Cause:
    return Cause(kind="peer-failed", code="user-code", message="ValueError: bad", retryable=True, role=k)


def interrupted(k: int) -> Cause:
    return Cause(kind="peer-failed", code="user-code", message="KeyboardInterrupt", retryable=True, role=k)


def disk_failed(k: int) -> Cause:
    return Cause(kind="commit-failed", code="no-space", message="sync-data", retryable=True, role=k)


def in_doubt() -> Cause:
    return Cause(kind="in-doubt", code="in-doubt", message="directory sync failed", role=0)


def frozen(value: object) -> object:
    """A hashable picture of a machine: equal pictures behave equally."""
    if isinstance(value, dict):
        return tuple(sorted(((frozen(k), frozen(v)) for k, v in value.items()), key=repr))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=repr))
    if isinstance(value, (list, tuple)):
        return tuple(frozen(v) for v in value)
    if isinstance(value, msgspec.Struct) or callable(value):
        return value
    if dataclasses.is_dataclass(value) and value.__hash__ is not None:
        return value
    if hasattr(value, "__dict__"):
        return (type(value).__name__, frozen(vars(value)))
    return value


class Explorer:
    """Visits every world of a scene; raises `Violation` with the way that led there."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.machines: list[Role] = []
        self._ids: dict[object, int] = {}
        self._memo: dict[tuple[object, ...], tuple[int, tuple[ev.Effect, ...]]] = {}
        self.visited = 0
        self.outcomes: set[tuple[str, ...]] = set()
        if scene.fan_out is None:
            self.below = [set(range(1, scene.owners))] + [set() for _ in range(1, scene.owners)]
        else:
            places = [place(Tree(scene.fan_out), scene.owners, k) for k in range(scene.owners)]
            self.below = [set(range(p.role + 1, p.role + p.size)) for p in places]

    # -------------------------------------------- worlds

    def start(self) -> World:
        n, faults = self.scene.owners, dict(self.scene.faults)
        return World(
            time=0,
            roles=(-1,) * n,
            channels=(),
            requests=(("enter",),) * n,
            shards=(False,) * n,
            manifests=(False,) * n,
            root="absent",
            claimed=False,
            cleaned=False,
            failed=(),
            budget=tuple(faults.get(f, 0) for f in FAULTS),
            held=None,
        )

    def run(self, limit: int = 5_000_000) -> Explorer:
        seen: set[World] = set()
        stack = [(self.start(), None)]
        while stack:
            world, way = stack.pop()
            if world in seen:
                continue
            seen.add(world)
            self.visited += 1
            if self.visited > limit:
                raise Violation(f"more than {limit} worlds")
            for step, successor in self.successors(world, way):
                if successor not in seen:
                    stack.append((successor, (step, way)))
        return self

    def sample(self, choose: Callable[[int], int]) -> World:
        """Follow one way, `choose(n)` picking among n successors, to its end."""
        world, way = self.start(), None
        while True:
            steps = list(self.successors(world, way))
            if not steps:
                return world
            step, world = steps[choose(len(steps))]
            way = (step, way)

    def successors(self, w: World, way: Any) -> Iterator[tuple[str, World]]:
        # A sign only tells its receiver that somebody lives: its place among simultaneous events
        # is immaterial, so it is taken at once.
        for key, queue in w.channels:
            if isinstance(queue[0], Sign) and ("channel", key) != w.held and w.roles[key[1]] != -1:
                yield from self._deliver(w, key, way)
                return
        moves = 0
        for key, _ in w.channels:
            if ("channel", key) != w.held and w.roles[key[1]] != -1:
                moves += 1
                yield from self._deliver(w, key, way)
        for k, asked in enumerate(w.requests):
            for what in asked:
                if ("request", k, what) != w.held and self._possible(w, k, what):
                    moves += 1
                    yield from self._complete(w, k, what, way)
        yield from self._faults(w, way)
        if moves == 0:
            if self._settled(w):
                self._judge(w, way)
                return
            if w.held is not None:
                yield "released", w._replace(held=None)
            yield self._advance(w, way)

    # -------------------------------------------- moves

    def _deliver(self, w: World, key: tuple[int, int, bool], way: Any) -> Iterator[tuple[str, World]]:
        channels = dict(w.channels)
        queue = channels[key]
        if len(queue) == 1:
            del channels[key]
        else:
            channels[key] = queue[1:]
        sender, to, _ = key
        after = w._replace(channels=tuple(sorted(channels.items(), key=lambda c: c[0])))
        step = f"t={w.time} {type(queue[0]).__name__} {sender}->{to}"
        if w.roles[to] == -2:
            yield step + " (dead)", after
        else:
            yield step, self._tell(after, to, ev.Received(sender, queue[0]), (step, way))

    def _possible(self, w: World, k: int, what: str) -> bool:
        if what == "shards" and self.scene.fan_out is None:  # the gather needs everybody
            return all(w.shards[1:])
        return True

    def _complete(self, w: World, k: int, what: str, way: Any) -> Iterator[tuple[str, World]]:
        """The request comes to its end, well or (within the budget) badly."""
        step = f"t={w.time} {what} of {k}"
        done = w._replace(requests=_without(w.requests, k, what))
        bad = self._spend(done, "disk")
        way = (step, way)
        if what == "enter":
            k_id = self._intern(self.scene.machine(k, float(w.time)))
            entered = done._replace(roles=_put(done.roles, k, k_id))
            yield step, self._tell(entered, k, self.scene.entered(k), way)
        elif what == "shards":
            event = ev.ShardsDurable(True, self.scene.own_copies(k))
            durable = done._replace(shards=_put(w.shards, k, True))
            if self.scene.fan_out is None:
                durable = durable._replace(shards=(True,) * self.scene.owners)
            yield step, self._tell(durable, k, event, way)
        elif what == "manifest":
            record = ChildRecord(k, 1 + len(self.below[k]), "xxh3-128:" + "0b" * 16, PREFIX.cover)
            event_m = ev.ManifestDurable(record)
            yield step, self._tell(done._replace(manifests=_put(w.manifests, k, True)), k, event_m, way)
        elif what == "root":
            if w.claimed:
                yield step + " taken", self._tell(done, k, ev.Failed(SUPERSEDED), way)
                return
            published = done._replace(root="durable")
            self._check_published(published, way)
            yield step, self._tell(published, k, ev.RootDurable("xxh3-128:" + "0c" * 16), way)
            if bad is not None:
                for root in ("unknown", "visible"):
                    doubtful = bad._replace(root=root)
                    yield f"{step} {root}", self._tell(doubtful, k, ev.RootInDoubt(in_doubt()), way)
        elif what == "payload":
            # Handed over, though this owner may learn only later that owner 0 has it.
            handed = done._replace(shards=_put(w.shards, k, True))
            yield step, handed._replace(requests=_put(done.requests, k, (*done.requests[k], "sent")))
        elif what == "sent":
            yield step, self._tell(done, k, ev.PayloadSent(), way)
        elif what == "stop":
            rest = tuple(r for r in done.requests[k] if r not in (*WORK, "sent"))
            stopped = done._replace(requests=_put(done.requests, k, rest))
            yield step, self._tell(stopped, k, ev.WriterStopped(), way)
        elif what == "look":
            seen = ev.NextEntry(SUPERSEDED if w.claimed else None, w.root in ("visible", "durable"))
            yield step, self._tell(done, k, seen, way)
        if bad is not None and what in WORK:
            failed = bad._replace(failed=(*w.failed, k))
            yield step + " failed", self._tell(failed, k, ev.Failed(disk_failed(k)), way)

    def _faults(self, w: World, way: Any) -> Iterator[tuple[str, World]]:
        crashed = self._spend(w, "crash")
        if crashed is not None:
            for k, role in enumerate(w.roles):
                if role == -2 or (role >= 0 and self.machines[role].ended):
                    continue
                dead = crashed._replace(
                    roles=_put(w.roles, k, -2),
                    requests=_put(w.requests, k, ()),
                    failed=(*w.failed, k),
                )
                yield f"t={w.time} crash of {k}", dead
                kept = tuple(c for c in dead.channels if c[0][0] != k)
                if kept != dead.channels:
                    yield f"t={w.time} crash of {k}, its messages lost", dead._replace(channels=kept)
                if "root" in w.requests[k] and not w.claimed:
                    yield f"t={w.time} crash of {k} after the rename", dead._replace(root="durable")
        dropped = self._spend(w, "drop")
        if dropped is not None:
            for key, queue in w.channels:
                kept = tuple((k2, q[1:]) if k2 == key else (k2, q) for k2, q in w.channels)
                kept = tuple(c for c in kept if c[1])
                yield f"t={w.time} lost {type(queue[0]).__name__} {key}", dropped._replace(channels=kept)
        held = self._spend(w, "hold")
        if held is not None:
            for key, _ in w.channels:
                yield f"t={w.time} held channel {key}", held._replace(held=("channel", key))
            for k, asked in enumerate(w.requests):
                for what in asked:
                    yield f"t={w.time} held {what} of {k}", held._replace(held=("request", k, what))
        disturbed = self._spend(w, "disturb")
        if disturbed is not None:
            for k, role in enumerate(w.roles):
                if role >= 0 and not self.machines[role].ended:
                    step = f"t={w.time} {k} disturbed"
                    after = disturbed._replace(failed=(*w.failed, k))
                    yield step, self._tell(after, k, ev.Disturbed(interrupted(k)), (step, way))
        claimed = self._spend(w, "claim")
        if claimed is not None and w.root == "absent":
            yield f"t={w.time} claimed", claimed._replace(claimed=True)

    def _advance(self, w: World, way: Any) -> tuple[str, World]:
        if w.time >= BOUND:
            open_ = [k for k, r in enumerate(w.roles) if r == -1 or (r >= 0 and not self.machines[r].ended)]
            raise self._violation("BOUNDED", f"roles {open_} have not ended at {w.time}", way)
        step = f"t={w.time + 1}"
        w = w._replace(time=w.time + 1)
        for k, role in enumerate(w.roles):
            if role >= 0 and not self.machines[role].ended:
                w = self._tell(w, k, ev.Tick(0), (step, way))
        return step, w

    def _spend(self, w: World, fault: str) -> World | None:
        i = FAULTS.index(fault)
        return None if w.budget[i] == 0 else w._replace(budget=_put(w.budget, i, w.budget[i] - 1))

    # -------------------------------------------- a role takes an event

    def _intern(self, machine: Role) -> int:
        key = frozen(machine)
        if key not in self._ids:
            self._ids[key] = len(self.machines)
            self.machines.append(machine)
        return self._ids[key]

    def _tell(self, w: World, k: int, event: ev.Event, way: Any) -> World:
        memo = (w.roles[k], event, w.time)
        found = self._memo.get(memo)
        if found is None:
            machine = copy.deepcopy(self.machines[w.roles[k]])
            before = machine.ended
            effects = tuple(machine.handle(event, float(w.time)))
            ends = [e for e in effects if isinstance(e, ev.End)]
            if len(ends) + before > 1 or (ends and effects[-1] is not ends[0]):
                raise self._violation("ENDS-ONCE", f"role {k}: {effects}", way)
            if bool(ends) != (machine.ended and not before):
                raise self._violation("ENDS-ONCE", f"role {k} ended without an end", way)
            found = self._memo[memo] = (self._intern(machine), effects)
        w = w._replace(roles=_put(w.roles, k, found[0]))
        for effect in found[1]:
            w = self._do(w, k, effect, way)
        return w

    def _do(self, w: World, k: int, effect: ev.Effect, way: Any) -> World:
        below = self.below[k]
        match effect:
            case ev.Send():
                message = effect.message
                if isinstance(message, Commitment) and not (
                    w.shards[k] and all(w.manifests[i] for i in below | {k})
                ):
                    raise self._violation("DURABLE-BEFORE-NAMED", f"role {k} committed", way)
                if isinstance(message, Release) and w.root != "durable":
                    raise self._violation("SUCCESS-IS-PUBLISHED", f"role {k} released", way)
                if (
                    isinstance(message, Ended)
                    and message.clean
                    and any(what in WRITES for i in below | {k} for what in w.requests[i])
                ):
                    raise self._violation("ENDED-IS-STILL", f"role {k} answered while writing", way)
                key = (k, effect.to, isinstance(message, (Enter, Group)))
                channels = dict(w.channels)
                channels[key] = (*channels.get(key, ()), message)
                return w._replace(channels=tuple(sorted(channels.items(), key=lambda c: c[0])))
            case ev.WriteShards():
                return self._ask(w, k, "shards", way)
            case ev.SendPayload():
                return self._ask(w, k, "payload", way)
            case ev.WriteManifest():
                if not all(w.manifests[i] for i in below) or not w.shards[k]:
                    raise self._violation("DURABLE-BEFORE-NAMED", f"role {k} names what is not durable", way)
                return self._ask(w, k, "manifest", way)
            case ev.PublishRoot():
                durable = all(w.shards) and (self.scene.fan_out is None or all(w.manifests[1:]))
                if not durable:
                    raise self._violation("DURABLE-BEFORE-NAMED", "the root names what is not durable", way)
                return self._ask(w, k, "root", way)
            case ev.StopWriting():
                return self._ask(w, k, "stop", way)
            case ev.LookAtNextEntry():
                if effect.entry != ENTRY:
                    raise self._violation("LOOKS-RIGHT", f"role {k} looks at {effect.entry}", way)
                return self._ask(w, k, "look", way)
            case ev.End():
                return self._ended(w, k, effect, way)
        raise AssertionError(effect)

    def _ask(self, w: World, k: int, what: str, way: Any) -> World:
        if w.cleaned and what in WRITES:
            raise self._violation("CLEAN-IS-OVER", f"role {k} asks for {what} after a clean end", way)
        return w._replace(requests=_put(w.requests, k, (*w.requests[k], what)))

    # -------------------------------------------- judging

    def _ended(self, w: World, k: int, end: ev.End, way: Any) -> World:
        if end.outcome == "published" and w.root != "durable":
            raise self._violation("SUCCESS-IS-PUBLISHED", f"role {k} reports what is not there", way)
        if end.outcome == "not-published" and w.root != "absent":
            raise self._violation("SAME-OUTCOME", f"role {k} says not published, but it is", way)
        if end.outcome != "published" and end.cause is None:
            raise self._violation("NAMED-CAUSE", f"role {k} ended without a cause", way)
        if end.clean:
            if k != 0:
                raise self._violation("CLEAN-IS-OVER", f"role {k} is not the root", way)
            busy = [i for i, asked in enumerate(w.requests) if any(what in WRITES for what in asked)]
            if busy:
                raise self._violation("CLEAN-IS-OVER", f"roles {busy} still write", way)
            return w._replace(cleaned=True)
        return w

    def _check_published(self, w: World, way: Any) -> None:
        said = [k for k, r in enumerate(w.roles) if r >= 0 and self._outcome(r) == "not-published"]
        if said:
            raise self._violation("SAME-OUTCOME", f"published after roles {said} said it was not", way)

    def _outcome(self, role: int) -> str | None:
        end = self.machines[role].outcome
        return None if end is None else end.outcome

    def _settled(self, w: World) -> bool:
        """Every role has ended, but for the dead and for one that never calls save."""
        return all(
            r == -2 or (r == -1 and w.held == ("request", k, "enter")) or (r >= 0 and self.machines[r].ended)
            for k, r in enumerate(w.roles)
        )

    def _judge(self, w: World, way: Any) -> None:
        ends = [self.machines[r].outcome for r in w.roles if r >= 0]
        outcomes = {e.outcome for e in ends if e is not None}
        self.outcomes.add(tuple(sorted(outcomes)))
        if {"published", "not-published"} <= outcomes:
            raise self._violation("SAME-OUTCOME", f"{ends}", way)
        if "not-published" in outcomes and w.root != "absent":
            raise self._violation("SAME-OUTCOME", "not published, yet there", way)
        if "published" in outcomes and w.root != "durable":
            raise self._violation("SUCCESS-IS-PUBLISHED", "published, yet not there", way)
        causes = {e.cause for e in ends if e is not None and e.outcome == "not-published"}
        reliable = w.held is None and not any(
            self.scene_budget(f) != w.budget[FAULTS.index(f)] for f in ("crash", "drop", "hold")
        )
        if reliable and len(causes) > 1:
            raise self._violation("SAME-CAUSE", f"{causes}", way)
        blame = {self.scene.blame} if self.scene.blame is not None else set(w.failed)
        if self.scene_budget("drop") == self.scene_budget("hold") == 0:
            for cause in causes:
                if cause != SUPERSEDED and cause.role not in blame:
                    raise self._violation("NAMED-CAUSE", f"{cause} should name {blame}", way)

    def scene_budget(self, fault: str) -> int:
        return dict(self.scene.faults).get(fault, 0)

    def _violation(self, name: str, text: str, way: Any) -> Violation:
        steps = []
        while way is not None:
            steps.append(way[0])
            way = way[1]
        return Violation(f"{name}: {text}\n  " + "\n  ".join(reversed(steps)))


def _put(values: tuple[Any, ...], k: int, value: Any) -> tuple[Any, ...]:
    return (*values[:k], value, *values[k + 1 :])


def _without(requests: tuple[tuple[str, ...], ...], k: int, what: str) -> tuple[tuple[str, ...], ...]:
    asked = list(requests[k])
    asked.remove(what)
    return _put(requests, k, tuple(asked))


def explore(scene: Scene) -> Explorer:
    """Visit every world of a scene."""
    return Explorer(scene).run()


def wander(scene: Scene, seed: int) -> World:
    """Follow one random way through a scene that is too large to visit whole."""
    return Explorer(scene).sample(random.Random(seed).randrange)
