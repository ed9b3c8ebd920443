"""One owner's part of a restore: what it reads, what it receives, what it passes on, what it writes.

Every method is called by every owner in the same order; those that are said to be local send nothing.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from .. import digest
from ..errors import Cause, CheckpointError, cause_of, error_of
from ..model import formats
from ..model.layout import Rule
from ..model.pieces import Interval, Piece, size
from ..model.schema import Region, Schema
from ..mpi.agreement import agree
from ..mpi.families import Families
from ..mpi.groups import split
from ..mpi.world import World
from ..store.store import Store
from . import copies
from .apply import fill
from .packs import Packs, opener
from .path import Path
from .plan import Held, Need, Plan, plan
from .replicas import Bundle, Incoming, Share, Spreading, Stored, bundles, replicated_shares
from .staging import Staging
from .together import long_work
from .validate import Checked, Target, validate

T = TypeVar("T")


class Destination(Protocol):
    """Where the words of one held piece go (`alpha_mpi.declared.Destination`)."""

    ordinal: int
    piece: Piece | None
    shape: tuple[int, ...]

    def view(self) -> Any: ...
    def check(self, value: Any) -> None: ...
    def set(self, value: Any) -> None: ...


class Declared(Protocol):
    """What this owner declares and holds (`alpha_mpi.declared.Declared`)."""

    schema: Schema
    rules: tuple[Rule, ...]
    finite: tuple[bool, ...]

    def destinations(self) -> Sequence[Destination]: ...


class Part:
    """One owner's part of a restore (see the module's docstring)."""

    def __init__(
        self,
        store: Store,
        file: str,
        path: Path,
        declared: Declared,
        families: Families,
        deadline: float,
        ceiling: int,
    ) -> None:
        self.packs = Packs(opener(store.data))
        self._path = path
        self._declared = declared
        self._families = families
        self._world = families.world
        self._deadline = deadline
        self._ceiling = ceiling
        self._file = file
        self._destinations: tuple[Destination, ...] = ()
        self._needs: list[Need] = []
        self._targets: list[Target] = []
        self._number: dict[int, int] = {}  # need of each destination that is read here
        self._plan = Plan((), (), ())
        self._carried: list[Bundle] = []
        self._own_shares: dict[Share, int] = {}
        self._received: dict[int, Incoming] = {}
        self._groups: dict[int, tuple[int, ...]] = {}
        self._copied: dict[int, int] = {}  # bytes of the own piece of each copied region
        self._validated: Checked | None = None
        self._spreadings: list[Spreading] = []
        self._subs: list[World] = []
        self._closed = False

    # ------------------------------------------------ before anything is read

    def prepare(self) -> None:
        """Ask for the destinations, and plan what this owner reads and what it receives. Local."""
        path, schema, owner = self._path, self._path.schema, self._world.rank
        root = path.root.root
        assert root is not None
        self._destinations = tuple(self._declared.destinations())
        everywhere = replicated_shares(path.root, schema, self._file)
        documents = frozenset(r.ordinal for r in schema.regions if r.is_document)
        self._carried = bundles(everywhere, self._ceiling, documents)
        listed, nbytes = dict(root.replicas), collections.Counter[int]()
        for share in everywhere:
            nbytes[share.ordinal] += share.nbytes
            if share.writer == owner:
                self._own_shares[share] = self._need(
                    Need(share.ordinal, None, self._words(share)), Target(hold=True)
                )
        for i, destination in enumerate(self._destinations):
            ordinal, region = destination.ordinal, schema.regions[destination.ordinal]
            target = Target(destination.view(), tuple(destination.shape))
            if ordinal in nbytes:
                self._receive(region, target, nbytes[ordinal], listed[ordinal])
                continue
            if not region.is_document and not region.size:
                continue
            if region.kind != "array":
                self._number[i] = self._need(Need(ordinal, owner, None), target)
                continue
            group = self._group(region)
            if len(group) > 1:
                assert destination.piece is not None
                length = size(destination.piece) * formats.by_name(region.format).itemsize
                self._groups[ordinal], self._copied[ordinal] = group, length
                if group[0] != owner:
                    self._receive(region, target, length, path.root.prefix.cover)
                    continue
            self._number[i] = self._need(Need(ordinal, None, destination.piece), target)
        helds = [Held(record, path.own.role) for record in path.own.shards]
        self._plan = plan(self._needs, helds, schema.regions)

    def _need(self, need: Need, target: Target) -> int:
        self._needs.append(need)
        self._targets.append(target)
        return len(self._needs) - 1

    def _words(self, share: Share) -> Interval | None:
        region = self._path.schema.regions[share.ordinal]
        if region.is_document:
            return None
        itemsize = formats.by_name(region.format).itemsize
        return Interval(share.at // itemsize, (share.at + share.nbytes) // itemsize)

    def _receive(self, region: Region, target: Target, nbytes: int, named: str) -> None:
        self._received[region.ordinal] = Incoming(region, target, nbytes, named.partition(":")[0])

    def _group(self, region: Region) -> tuple[int, ...]:
        """The owners that hold the same piece; none on a star, where each reads it itself."""
        rule = self._declared.rules[region.ordinal]
        if self._families.star or not copies.has_groups(rule):
            return ()
        return tuple(rule.group(region.shape, self._world.size, self._world.rank))

    # ------------------------------------------------ reading and checking

    def validate(self) -> None:
        """Read and check the own shards. Local; may take long, and runs on another thread."""
        kept = sum(b.nbytes for b in self._carried if b.kept and b.writer != self._world.rank)
        staging = Staging(self._ceiling - kept - self._budget())
        self._validated = validate(
            self._plan, self.packs, self._targets, staging, lambda ordinal: self._declared.finite[ordinal]
        )

    def _budget(self) -> int:
        """Bytes of copied pieces that are kept: half of what replicated words leave, at most."""
        kept = sum(b.nbytes for b in self._carried if b.kept)
        return min(sum(self._copied.values()), max(0, self._ceiling - kept) // 2)

    def receive(self) -> Cause | None:
        """Pass on what others need, and receive what others have read.

        Returns the agreed cause of a failure, or None.
        """
        stored = self._stored(list(self._own_shares.values()))
        sources = {share: stored[need] for share, need in self._own_shares.items()}
        incoming = {o: i for o, i in self._received.items() if o not in self._groups}
        world = self._world
        spreading = Spreading(world, range(world.size), self._carried, sources, incoming, self._deadline)
        self._spreadings.append(spreading)
        cause = spreading.receive()
        if cause is not None:
            return cause
        failed: Cause | None = None
        if not self._families.star and not world.alone:
            budget = self._budget()
            for ordinals in copies.alike(self._path.schema, self._declared.rules):
                failed = self._receive_copies(ordinals, budget) or failed
                budget = max(0, budget - sum(self._copied.get(o, 0) for o in ordinals))
        return agree(world, failed, self._deadline)

    def _receive_copies(self, ordinals: Sequence[int], budget: int) -> Cause | None:
        """Exchange the copied pieces of regions with the same groups; a failure stays in its group."""
        group = self._groups.get(ordinals[0], ())
        sub = split(self._world, group[0] if group else None, self._deadline)
        if sub is None:
            return None
        self._subs.append(sub)
        try:
            spreading, cause = copies.receive(
                sub,
                group,
                {ordinal: self._copied[ordinal] for ordinal in ordinals},
                budget,
                self._own_copies(ordinals) if group[0] == self._world.rank else {},
                self._received,
                self._deadline,
            )
        except CheckpointError as error:
            return cause_of(error, self._world.rank)
        self._spreadings.append(spreading)
        return cause

    def _own_copies(self, ordinals: Sequence[int]) -> dict[int, tuple[str, Stored]]:
        """Shard digest and bytes of the pieces that this owner reads for its group."""
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
        root = self._path.root.root
        assert root is not None
        for ordinal, named in root.replicas:
            if ordinal in self._received:
                self._received[ordinal].check(named, digest.region)
        for destination, value in self._made():
            destination.check(value)

    def _made(self) -> Iterator[tuple[Destination, object]]:
        """The destinations that are not filled in place, each with its new array or document."""
        assert self._validated is not None
        made = self._validated.made
        for i, destination in enumerate(self._destinations):
            incoming = self._received.get(destination.ordinal)
            if incoming is not None:
                if not incoming.in_place:
                    yield destination, incoming.made
            elif i in self._number and self._number[i] in made:
                yield destination, made[self._number[i]]

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
        for destination, value in list(self._made()):
            destination.set(value)

    def close(self) -> None:
        """Close packs, give memory back, free sub-communicators. Called by every owner."""
        if self._closed:
            return
        self._closed = True
        if self._validated is not None:
            self._validated.close()
        self.packs.close()
        self._spreadings.clear()
        self._received.clear()
        for sub in self._subs:
            if self._world.lost is None:
                sub.free()
