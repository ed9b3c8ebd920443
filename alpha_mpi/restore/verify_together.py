"""Verification by several processes: owner 0 reads the manifests, the packs are dealt to all.

Started by a command under ``mpiexec``; the report is owner 0's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from ..errors import Cause, cause_of, error_of
from ..format.manifest import Manifest, ShardRecord
from ..mpi.agreement import agree, bcast
from ..mpi.world import World, open_world
from ..store.observe import Position
from ..store.store import Store
from .plan import Held
from .verify import Judge, Report, begin

T = TypeVar("T")


class _Task(msgspec.Struct, frozen=True):
    """What owner 0 found in the manifests: the root, and every shard with its manifest's role."""

    root: Manifest
    shards: list[tuple[ShardRecord, int]]


class _Part(msgspec.Struct, frozen=True):
    """What one owner found in its packs."""

    problems: list[Cause]
    non_finite: list[tuple[str, tuple[int, ...]]]
    files: int
    shards: int
    nbytes: int
    tables: list[tuple[int, bytes]]


_encode = msgspec.msgpack.encode
_TASK = msgspec.msgpack.Decoder(_Task | None)
_PART = msgspec.msgpack.Decoder(_Part)


def open_all(comm: Any = None) -> World:
    """Return a world of all processes that the launcher started. Called by each of them."""
    return open_world(comm)


def everywhere(world: World, work: Callable[[], T]) -> T:
    """Do something on every owner; when it fails on one, raise its error on all of them."""
    result: Any = None
    cause = None
    try:
        result = work()
    except Exception as error:
        cause = cause_of(error, world.rank)
    failed = agree(world, cause, math.inf)
    if failed is not None:
        raise error_of(failed)
    return result  # type: ignore[no-any-return]


def from_first(world: World, choose: Callable[[], list[Position]]) -> list[Position]:
    """Let owner 0 choose the generations; every owner learns which."""
    mine = everywhere(world, lambda: choose() if world.rank == 0 else [])
    data = bcast(world, _encode([tuple(position) for position in mine]), 0, math.inf)
    return [Position(*position) for position in msgspec.msgpack.decode(data, type=list[tuple[int, int]])]


def verify(
    world: World, store: Store, epoch: int, number: int, progress: Callable[[int, int], None] | None = None
) -> Report | None:
    """Judge one generation as `verify.verify` does. Called by every owner; None but on owner 0.

    However long one of them reads, the others wait: a launcher ends all where one is lost.
    """
    report, judge = Report(""), None
    data = b""
    if world.rank == 0:
        report, judge = begin(store, epoch, number)
        task = None
        if judge is not None:
            task = _Task(judge.root, [(held.record, held.role) for held in judge.helds])
        data = _encode(task)
    told = _TASK.decode(bcast(world, data, 0, math.inf))
    if told is None:
        return report if world.rank == 0 else None
    if judge is None:
        helds = [Held(record, role) for record, role in told.shards]
        judge = Judge(store, Position(epoch, number), told.root, helds, report)
    mine = judge.places()[world.rank :: world.size]
    everywhere(world, lambda: judge.read(mine, progress if world.rank == 0 else None))
    _gather(world, judge)
    if world.rank != 0:
        return None
    judge.conclude()
    report.problems.sort(key=lambda error: (error.role or 0, error.file or ""))
    return report


def _gather(world: World, judge: Judge) -> None:
    """Bring every owner's part to owner 0."""
    report = judge.report
    wanted = {ordinal for ordinal, _ in judge.root.root.replicas} if judge.root.root is not None else set()
    for owner in range(1, world.size):
        data = b""
        if world.rank == owner:
            tables = [
                (i, table) for i, table in judge.tables.items() if judge.helds[i].record.ordinal in wanted
            ]
            problems = [error.cause() for error in report.problems]
            part = _Part(problems, report.non_finite, report.files, report.shards, report.nbytes, tables)
            data = _encode(part)
        data = bcast(world, data, owner, math.inf)
        if world.rank == 0:
            part = _PART.decode(data)
            report.problems += [error_of(cause) for cause in part.problems]
            report.non_finite += part.non_finite
            report.files += part.files
            report.shards += part.shards
            report.nbytes += part.nbytes
            judge.tables.update(part.tables)
