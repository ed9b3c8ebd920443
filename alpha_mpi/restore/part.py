"""One owner's part of a restore: what it reads, what it receives, what it passes on, what it writes.

Every method is called by every owner in the same order; those that are said to be local send nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from .. import digest
from ..errors import Cause, CheckpointError, Refused, cause_of, error_of
from ..format.manifest import Manifest
from ..model.schema import Schema
from ..mpi.agreement import agree, same_bytes
from ..mpi.families import Families
from ..mpi.groups import split
from ..mpi.world import World
from ..store.store import Store
from . import copies, own_state
from .apply import fill
from .needs import Declared, Destination, Needs
from .packs import Packs, opener
from .plan import Held, Plan, plan
from .replicas import Bundle, Spreading, Stored, bundles
from .staging import Staging
from .together import long_work
from .validate import Checked, validate

T = TypeVar("T")


class Part:
    """One owner's part of a restore (see the module's docstring)."""

    def __init__(
        self,
        store: Store,
        file: str,
        root: Manifest,
        schema: Schema,
        declared: Declared,
        families: Families,
        deadline: float,
        ceiling: int,
        moved: bool = False,
    ) -> None:
        self.packs = Packs(opener(store.data))
        self._root = root
        self._schema = schema
        self._declared = declared
        self._world = families.world
        # On its own placement every owner of a star finds each piece in the one manifest it has.
        self._grouped = not self._world.alone and (moved or not families.star)
        self._moved = moved
        self._deadline = deadline
        self._ceiling = ceiling
        self._file = file
        self._needs: Needs | None = None
        self._plan = Plan((), (), ())
        self._carried: list[Bundle] = []
        self._handed: dict[int, object] = {}  # what a repartition gave, by destination
        self._validated: Checked | None = None
        self._spreadings: list[Spreading] = []
        self._subs: list[World] = []
        self._closed = False

    # ------------------------------------------------ before anything is read

    def prepare(self) -> None:
        """Ask for the destinations, and decide what this owner reads and what it receives. Local."""
        world, schema = self._world, self._schema
        self._needs = Needs(
            self._root, schema, self._file, self._declared, world.rank, world.size, self._moved, self._grouped
        )
        documents = frozenset(r.ordinal for r in schema.regions if r.is_document)
        self._carried = bundles(self._needs.everywhere, self._ceiling, documents)

    def roles(self) -> frozenset[int] | None:
        """Return the saved roles whose shards are read here; None: any may. Local."""
        return self._asked.roles()

    def plan(self, helds: Sequence[Held]) -> None:
        """Plan the reads out of the shards known here. Local; raises as `plan.plan`."""
        self._plan = plan(self._asked.needs, helds, self._schema.regions)

    @property
    def _asked(self) -> Needs:
        assert self._needs is not None
        return self._needs

    # ------------------------------------------------ reading and checking

    def validate(self) -> None:
        """Read and check the own shards. Local; may take long, and runs on another thread."""
        kept = sum(b.nbytes for b in self._carried if b.kept and b.writer != self._world.rank)
        staging = Staging(self._ceiling - kept - self._budget())
        self._validated = validate(
            self._plan,
            self.packs,
            self._asked.targets,
            staging,
            lambda ordinal: self._declared.finite[ordinal],
        )

    def _budget(self) -> int:
        """Bytes of copied pieces that are kept: half of what replicated words leave, at most."""
        kept = sum(b.nbytes for b in self._carried if b.kept)
        return min(sum(self._asked.copied.values()), max(0, self._ceiling - kept) // 2)

    def receive(self) -> Cause | None:
        """Pass on what others need, and receive what others have read.

        Returns the agreed cause of a failure, or None.
        """
        asked, world = self._asked, self._world
        stored = self._stored(list(asked.own_shares.values()))
        sources = {share: stored[need] for share, need in asked.own_shares.items()}
        incoming = {o: i for o, i in asked.received.items() if o not in asked.groups}
        spreading = Spreading(world, range(world.size), self._carried, sources, incoming, self._deadline)
        self._spreadings.append(spreading)
        cause = spreading.receive() or self._compare()
        if cause is not None:
            return cause
        failed: Cause | None = None
        if self._grouped:
            budget = self._budget()
            for ordinals in copies.alike(self._schema, self._declared.rules):
                failed = self._receive_copies(ordinals, budget) or failed
                budget = max(0, budget - sum(asked.copied.get(o, 0) for o in ordinals))
        cause = agree(world, failed, self._deadline)
        if cause is None and self._root.root is not None and self._root.root.owners != world.size:
            cause = self._repartition(self._root.root.owners)
        return cause

    def _compare(self) -> Cause | None:
        """Compare, between owners, what the root lists no digest of: everybody got the same words."""
        asked = self._asked
        if not asked.compared:
            return None
        digests = "".join(asked.received[o].digest(digest.region) for o in asked.compared)
        other = same_bytes(self._world, digests.encode(), self._deadline)
        if other is None:
            return None
        return Refused(
            "the words received are not those owner 0 received", code="corrupt-replica", role=other
        ).cause()

    def _repartition(self, old_count: int) -> Cause | None:
        """Tell every owner what each of the old ones had of its own, and ask the user's rule."""
        asked, world = self._asked, self._world
        if not self._declared.repartition:
            return None
        assert self._validated is not None
        mine = {at: self._validated.made[need] for at, need in asked.handed.items()}
        values = own_state.gather(world, mine, self._schema, old_count, self._deadline)

        def ask() -> None:
            for i, destination in enumerate(asked.destinations):
                ordinal = destination.ordinal
                if ordinal in values:
                    value = self._declared.repartitioned(ordinal, values[ordinal], old_count)
                    self._handed[i] = value

        cause: Cause | None = None
        try:
            ask()
        except BaseException as error:  # also the user's SystemExit: nobody may be left waiting
            cause = cause_of(error, world.rank)
        return agree(world, cause, self._deadline)

    def _receive_copies(self, ordinals: Sequence[int], budget: int) -> Cause | None:
        """Exchange the copied pieces of regions with the same groups; a failure stays in its group."""
        asked = self._asked
        group = asked.groups.get(ordinals[0], ())
        sub = split(self._world, group[0] if group else None, self._deadline)
        if sub is None:
            return None
        self._subs.append(sub)
        try:
            spreading, cause = copies.receive(
                sub,
                group,
                {ordinal: asked.copied[ordinal] for ordinal in ordinals},
                budget,
                self._own_copies(ordinals) if group[0] == self._world.rank else {},
                asked.received,
                self._deadline,
            )
        except CheckpointError as error:
            return cause_of(error, self._world.rank)
        self._spreadings.append(spreading)
        return cause

    def _own_copies(self, ordinals: Sequence[int]) -> dict[int, tuple[str, Stored]]:
        """Digest and bytes of the pieces that this owner reads for its group."""
        asked = self._asked
        if self._moved:
            stored = self._stored([asked.own_copies[ordinal] for ordinal in ordinals])
            algorithm = self._root.prefix.cover.partition(":")[0]
            found = {}
            for ordinal in ordinals:
                nbytes, words = asked.copied[ordinal], stored[asked.own_copies[ordinal]]
                table = digest.chunks(words.read(0, nbytes), algorithm)
                format = self._schema.regions[ordinal].format
                found[ordinal] = digest.shard(format, nbytes, table, algorithm), words
            return found
        reads = {r.record.ordinal: r for r in self._plan.reads if r.record.ordinal in ordinals}
        needs = {ordinal: reads[ordinal].copies[0].need for ordinal in ordinals}
        stored = self._stored(list(needs.values()))
        return {o: (reads[o].record.digest, stored[need]) for o, need in needs.items()}

    def _stored(self, needs: Sequence[int]) -> dict[int, Stored]:
        assert self._validated is not None
        return Stored.of(self._validated, needs)

    def check(self) -> None:
        """Compare what was received with what the root names; let destinations judge new values.

        Local, like all the caller's code.
        """
        asked = self._asked
        for ordinal, named in asked.named.items():
            if ordinal in asked.received:
                asked.received[ordinal].check(named, digest.region)
        for destination, value in self._made():
            destination.check(value)

    def _made(self) -> Iterator[tuple[Destination, object]]:
        """The destinations that are not filled in place, each with its new array or document."""
        assert self._validated is not None
        made, asked = self._validated.made, self._asked
        for i, destination in enumerate(asked.destinations):
            incoming = asked.received.get(destination.ordinal)
            if i in self._handed:
                if destination.view() is None:
                    yield destination, self._handed[i]
            elif incoming is not None:
                if not incoming.in_place:
                    yield destination, incoming.made
            elif i in asked.number and asked.number[i] in made:
                yield destination, made[asked.number[i]]

    # ------------------------------------------------ writing

    def apply(self) -> None:
        """Write everything. Every owner takes part in every transfer, whatever fails on its side.

        Raises the same error on every owner if one fails.
        """
        failures: list[BaseException] = []

        def attempt(work: Callable[[], T]) -> T | None:
            try:
                return work()
            except BaseException as error:  # also the user's: nobody may be left waiting
                failures.append(error)
                return None

        attempt(lambda: long_work(self._world, self._fill, lambda: self.packs.done, self._deadline))
        for spreading in self._spreadings:
            cause = attempt(spreading.again)
            if cause is not None:
                failures.append(error_of(cause))
        if not failures:
            attempt(self._finish)
        if failures:  # nothing may go on writing to the user's arrays behind the error
            for settle in self._settling():
                attempt(settle)
        failure = failures[0] if failures else None
        cause = None if failure is None else cause_of(failure, self._world.rank)
        agreed = agree(self._world, cause, self._deadline)
        if agreed is not None:
            raise error_of(agreed) from failure

    def _fill(self) -> None:
        assert self._validated is not None
        fill(self._validated)

    def _finish(self) -> None:
        for spreading in self._spreadings:
            spreading.fill()
        for i, value in self._handed.items():
            array = self._asked.destinations[i].view()
            if isinstance(array, np.ndarray):
                array[...] = value
            elif array is not None:
                array.fill(value)
        for destination, value in list(self._made()):
            destination.set(value)
        for settle in self._settling():
            settle()

    def _settling(self) -> list[Callable[[], None]]:
        """What waits for each destination outside of this process's memory."""
        arrays = [target.array for target in self._asked.targets]
        remote = [a.settle for a in arrays if a is not None and not isinstance(a, np.ndarray)]
        return remote + [incoming.settle for incoming in self._asked.received.values()]

    def close(self) -> None:
        """Close packs, give memory back, free sub-communicators. Called by every owner."""
        if self._closed:
            return
        self._closed = True
        if self._validated is not None:
            self._validated.close()
        self.packs.close()
        self._spreadings.clear()
        self._handed.clear()
        self._needs = None
        for sub in self._subs:
            if self._world.lost is None:
                sub.free()
