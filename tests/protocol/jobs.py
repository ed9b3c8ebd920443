"""Jobs: a model of a store and of jobs that resume, publish, retire, die and come back.

Each job is a program whose every operation on the store is one step; a schedule says who steps next
and how old a listing is. Reading and creating a name are always up to date, listings are not. The
rules come from `alpha_mpi.protocol.continuation`; the invariants are judged here, from outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

from alpha_mpi.format.claim import Claim
from alpha_mpi.protocol import continuation as c

STORE = "0" * 32

Op = tuple[Any, ...]
Program = Generator[Op, Any, None]


class Violation(AssertionError):
    """An invariant does not hold."""


def root_bytes(name: str, continues: str | None) -> bytes:
    return f"root {name} {continues}".encode()


def standing(data: bytes | None) -> c.Standing | None:
    """What a reader makes of a file of the model."""
    if data is None:
        return None
    if data.startswith(b"root "):
        return c.Standing(data, root=data.decode())
    return c.Standing(data, claim=CLAIMS[data])


CLAIMS: dict[bytes, Claim] = {}


def claim_bytes(claim: Claim) -> bytes:
    data = repr(claim).encode()
    CLAIMS[data] = claim
    return data


@dataclasses.dataclass
class World:
    """The store (names to bytes, with every earlier set of names) and what jobs were told."""

    files: dict[Any, bytes] = dataclasses.field(default_factory=dict)
    history: list[frozenset[Any]] = dataclasses.field(default_factory=lambda: [frozenset()])
    acknowledged: list[tuple[str, bytes, int]] = dataclasses.field(default_factory=list)
    claimed: dict[int, str] = dataclasses.field(default_factory=dict)
    log: list[str] = dataclasses.field(default_factory=list)
    parents: dict[str, str | None] = dataclasses.field(default_factory=dict)

    def create(self, name: Any, data: bytes) -> bool:
        if name in self.files:
            return False
        self.files[name] = data
        self.history.append(frozenset(self.files))
        return True

    def unlink(self, name: Any) -> None:
        if self.files.pop(name, None) is not None:
            self.history.append(frozenset(self.files))

    def chain(self, root: str | None) -> list[str]:
        chain = []
        while root is not None:
            chain.append(root)
            root = self.parents[root]
        return chain


class Job:
    """One job: resumes once and publishes `saves` generations, keeping the newest `keep`."""

    def __init__(self, name: str, world: World, saves: int, keep: int = 1, rules: Any = c) -> None:
        self.name, self.world, self.saves, self.keep, self.rules = name, world, saves, keep, rules
        self.said = "running"
        self.lineage: list[c.Position] = []

    def program(self) -> Program:
        for _ in range(4):
            taken = yield from self.resume()
            if taken is not None:
                break
            if self.said != "running":
                return
        else:
            self.said = "gave up"
            return
        epoch, root = taken
        for n in range(1, self.saves + 1):
            data = root_bytes(f"{self.name}{n}", root)
            if not (yield from self.publish(epoch, n, data)):
                return
            root = data.decode()
            yield from self.retire(epoch, n)
        self.said = "done"

    def look(self) -> Generator[Op, Any, c.Situation | None]:
        """List, and read what the rules ask for; None where a listed name is gone."""
        names = yield ("list",)
        records: dict[int, c.Standing] = {}
        for _, epoch in sorted(n for n in names if n[0] == "record"):
            found = standing((yield ("read", ("record", epoch))))
            assert found is not None
            records[epoch] = found
        entries: dict[c.Position, c.Standing | None] = {n[1]: None for n in names if n[0] == "entry"}
        removed = frozenset(n[1] for n in names if n[0] == "removed")
        while True:
            match self.rules.decide(c.Observed(records, entries, removed)):
                case c.ReadEntry(position):
                    entries[position] = standing((yield ("read", ("entry", position))))
                    if entries[position] is None:
                        return None
                case c.WriteRecord(epoch, seal):
                    yield ("create", ("record", epoch), seal.data)
                    found = standing((yield ("read", ("record", epoch))))
                    assert found is not None
                    records[epoch] = found
                case c.Situation() as situation:
                    return situation

    def resume(self) -> Generator[Op, Any, tuple[int, str | None] | None]:
        situation = yield from self.look()
        if situation is None:
            return None
        root = None
        if situation.newest is not None:
            found = standing((yield ("read", ("entry", situation.newest))))
            if found is None or found.root is None:
                return None
            root = found.root
            if situation.root is not None and root != situation.root:
                raise Violation(f"{self.name} reads another root than the claim names")
        epoch = situation.epoch + 1
        data = claim_bytes(
            Claim(
                store=STORE,
                epoch=epoch,
                continues=root,
                base=situation.newest,
                nonce=self.name * 8,
                owners=1,
                job=self.name,
            )
        )
        if epoch > 1:
            name = ("entry", (epoch - 1, situation.next_entry))
            if not (yield ("create", name, data)):
                found = standing((yield ("read", name)))
                if found is None:
                    return None
                met = self.rules.claimant_meets(data, found)
                if met is c.Met.HELD:
                    yield ("create", ("record", epoch), found.data)
                    self.said = "held"
                if met is not c.Met.OWN:
                    return None
        if not (yield ("create", ("record", epoch), data)):
            found = standing((yield ("read", ("record", epoch))))
            assert found is not None
            if self.rules.recorder_meets(data, found) is not c.Met.OWN:
                self.said = "held"
                return None
        yield ("claimed", epoch, root)
        self.lineage = list(situation.lineage)
        return epoch, root

    def publish(self, epoch: int, number: int, data: bytes) -> Generator[Op, Any, bool]:
        name = ("entry", (epoch, number))
        if not (yield ("create", name, data)):
            found = standing((yield ("read", name)))
            if found is None or self.rules.publisher_meets(data, found) is not c.Met.OWN:
                self.said = "superseded"
                return False
        yield ("acknowledged", data.decode(), epoch)
        return True

    def retire(self, epoch: int, number: int) -> Generator[Op, Any, None]:
        """Mark what is beyond `keep`; unlink roots and marks of ended epochs, root first."""
        self.lineage.insert(0, (epoch, number))
        if (yield ("read", ("record", epoch + 1))) is not None:
            return
        if (yield ("read", ("entry", (epoch, number + 1)))) is not None:
            return
        for position in self.lineage[self.keep :]:
            yield ("create", ("removed", position), b"mark")
        for position in list(self.lineage[self.keep :]):
            if position[0] < epoch:
                yield ("unlink", ("entry", position))
                yield ("unlink", ("removed", position))
        del self.lineage[self.keep :]


def step(world: World, job: Job, op: Op, age: int) -> Any:
    """Carry out one operation and return its answer."""
    world.log.append(f"{job.name} {op} {age or ''}")
    match op:
        case ("list",):
            return world.history[max(0, len(world.history) - 1 - age)]
        case ("read", name):
            return world.files.get(name)
        case ("create", name, data):
            if data.startswith(b"root "):
                text = data.decode()
                parent = text.split(" ", 2)[2]
                world.parents[text] = None if parent == "None" else parent
            return world.create(name, data)
        case ("unlink", name):
            return world.unlink(name)
        case ("claimed", epoch, root):
            if epoch in world.claimed:
                raise Violation(f"ONE-EPOCH: epoch {epoch} is {world.claimed[epoch]}'s and {job.name}'s")
            if epoch > 1 and ("record", epoch - 1) not in world.files:
                raise Violation(f"ONE-EPOCH: epoch {epoch} follows none")
            world.claimed[epoch] = job.name
            chain = world.chain(root)
            for who, data, older in world.acknowledged:
                if older < epoch and data.decode() not in chain:
                    raise Violation(
                        f"ACKNOWLEDGED-STAYS: {job.name} resumes {root}, without {who}'s {data!r}"
                    )
            return None
        case ("acknowledged", root, epoch):
            world.acknowledged.append((job.name, root.encode(), epoch))
            chain = world.chain(root)
            acknowledged = [d.decode() for _, d, _ in world.acknowledged]
            lost = [d for d in acknowledged if d not in chain and root not in world.chain(d)]
            if lost:
                raise Violation(f"ACKNOWLEDGED-STAYS: {root} is published beside {lost}")
            return None
    raise AssertionError(op)


class Schedule:
    """Runs jobs under one schedule to their ends; then one more job resumes, and all is judged."""

    def __init__(
        self,
        jobs: list[Callable[[World], Job]],
        choose: Callable[[int, Callable[[], object]], int],
        *,
        old: int = 3,
        crashes: int = 0,
    ) -> None:
        self.world = World()
        self.choose, self.old, self.crashes = choose, old, crashes
        self.jobs = [make(self.world) for make in jobs]
        self.programs = [job.program() for job in self.jobs]
        self.next = [next(program) for program in self.programs]
        self.answers: list[tuple[Any, ...]] = [()] * len(jobs)
        self.alive = list(range(len(jobs)))

    def key(self) -> object:
        """All that the future depends on: the store, what listings may show, what each job was told."""
        world = self.world
        return (
            frozenset(world.files.items()),
            tuple(world.history[-self.old :]),
            tuple(self.alive),
            tuple(self.answers),
            self.crashes,
            frozenset(world.acknowledged),
        )

    def run(self) -> World:
        while self.alive:
            i = self.alive[self._pick(len(self.alive), "who")]
            op = self.next[i]
            age = self._pick(min(self.old, len(self.world.history)), i) if op == ("list",) else 0
            answer = step(self.world, self.jobs[i], op, age)
            if self.crashes and op[0] == "create" and self._pick(2, i):  # dead, though the name is taken
                self.crashes -= 1
                self.alive.remove(i)
                continue
            self._tell(i, answer)
        self._judge()
        return self.world

    def _pick(self, n: int, what: object) -> int:
        return self.choose(n, lambda: (what, self.key())) if n > 1 else 0

    def _tell(self, i: int, answer: Any) -> None:
        self.answers[i] = (*self.answers[i], answer)
        try:
            op = self.programs[i].send(answer)
            while op[0] in ("claimed", "acknowledged"):  # bookkeeping, not steps
                op = self.programs[i].send(step(self.world, self.jobs[i], op, 0))
            self.next[i] = op
        except StopIteration:
            self.alive.remove(i)

    def _judge(self) -> None:
        last = Job("Z", self.world, saves=1, rules=self.jobs[0].rules)
        program, answer = last.program(), None
        while True:
            try:
                answer = step(self.world, last, program.send(answer), 0)
            except StopIteration:
                break
        if last.said != "done":
            raise Violation(f"a fresh job on a quiet store ends {last.said}")


class _Seen(Exception):
    """This schedule goes on as an earlier one did."""


def every_schedule(jobs: list[Callable[[World], Job]], limit: int = 200_000, **more: Any) -> int:
    """Run every schedule, depth first, each situation once; return how many runs that took."""
    way: list[list[int]] = []  # [chosen, of how many]
    seen: set[object] = set()
    runs = 0
    while True:
        at = 0

        def choose(n: int, key: Callable[[], object]) -> int:
            nonlocal at
            if at == len(way):
                here = (n, key())
                if here in seen:
                    raise _Seen
                seen.add(here)
                way.append([0, n])
            at += 1
            return way[at - 1][0]

        try:
            Schedule(jobs, choose, **more).run()
        except _Seen:
            pass
        except Violation as violation:
            raise Violation(f"{violation}\n  schedule {[chosen for chosen, _ in way]}") from None
        runs += 1
        if runs > limit:
            raise AssertionError(f"more than {limit} schedules")
        while way and way[-1][0] + 1 == way[-1][1]:
            way.pop()
        if not way:
            return runs
        way[-1][0] += 1
