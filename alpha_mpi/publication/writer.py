"""Writer: shards into one pack, digested chunk by chunk while the chunk is in cache.

Small shards are gathered into writes of about 1 MiB; a large one is written in 1 MiB steps from
the memory it lies in. Once all are written that memory is looked at again: words that somebody
wrote to meanwhile are neither those of one moment, nor surely those whose digest was taken.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from .. import digest
from ..errors import Refused
from ..format.inventory import Item
from ..format.pack import PackPlan, Slot
from ..model.formats import JSON
from ..store.durable import Directory, Target
from .capture import Source, give_up


class Stopped(Exception):
    """The attempt was aborted; the writer gave up."""


def changed(owner: int, region: str) -> Refused:
    """Return the refusal for words that were not the same twice within one save."""
    return Refused(
        "the words changed between capture and write: nothing may write to them during a save",
        code="changed-while-saving",
        role=owner,
        region=region,
    )


@functools.lru_cache(maxsize=2)  # the sizes are nearly always those of the last save
def _planned(
    slots: tuple[Slot, ...], algorithm: str
) -> tuple[PackPlan, dict[tuple[int, ...], int], dict[int, int], int]:
    """Return a pack's plan, the offset of each shard by its key, the bytes of padding before each
    that has some by its offset, and the end of the last one."""
    plan = PackPlan.of(slots, algorithm)
    offsets: dict[tuple[int, ...], int] = {}
    gaps: dict[int, int] = {}
    end = len(plan.header)
    for entry in plan.entries:
        offsets[entry.slot[:3]] = entry.offset
        if entry.offset > end:
            gaps[entry.offset] = entry.offset - end
        end = entry.offset + entry.slot.nbytes
    return plan, offsets, gaps, end


class PackWriter:
    """Writes one role's pack. Runs on a worker thread; `stop` is looked at between chunks."""

    def __init__(
        self,
        directory: Directory,
        name: str,
        slots: Sequence[Slot],
        algorithm: str,
        stop: threading.Event,
    ) -> None:
        self.plan, self.offsets, self._gaps, self._payload_end = _planned(tuple(slots), algorithm)
        self._algorithm = algorithm
        self._stop = stop
        self._tables: dict[tuple[int, ...], bytes] = {}
        self._added: list[Source] = []
        self._quick: list[bytes] = []  # of each added: quick digests of what was written
        self._target = Target(directory, name, self.plan.size)
        self._gathered: list[Any] = []
        self._nbytes = 0
        self._at = 0
        self._pwrite([self.plan.header], 0)

    @property
    def written(self) -> int:
        """Bytes that the kernel took so far."""
        return self._target.written

    def add(self, source: Source) -> Item:
        """Write one own shard and return what it is.

        Raises `Refused`: ``non-finite``, ``changed-while-saving``.
        """
        own, at, local = source.own, 0, source.local
        key, nbytes = own.key, source.nbytes
        offset = self.offsets[key]
        tables, quick = [], []
        steps = source.steps()
        try:
            for chunk in steps:
                if self._stop.is_set():
                    raise Stopped
                source.check_finite(chunk, at)
                if self._algorithm != digest.DEFAULT:
                    quick.append(digest.raw(chunk))
                tables.append(digest.raw(chunk, self._algorithm))
                # A whole chunk is written at once; a shorter one may wait for others, and a view of
                # remote words is good until the next one only.
                self._gather(chunk if local or len(chunk) == digest.CHUNK else bytes(chunk), offset + at)
                at += len(chunk)
        except BaseException:
            give_up(steps)
            raise
        if at != nbytes:
            raise changed(own.owner, source.region.name)
        table = b"".join(tables)
        if source.chunks is not None and source.chunks != table:
            raise changed(source.own.owner, source.region.name)
        if source.region.format != JSON:  # the bytes of a document are the library's own
            self._added.append(source)
            self._quick.append(b"".join(quick) or table)
        self._tables[key] = table
        return Item(*key, own.ints, nbytes, source.region.format, table)

    def add_foreign(self, one: Item) -> None:
        """Take over the chunk table of a shard whose bytes come by `pwrite`."""
        key = one.key
        self._tables[key] = one.chunks
        gap = self._gaps.get(self.offsets[key])
        if gap:
            self._pwrite([b"\0" * gap], self.offsets[key] - gap)

    def pwrite(self, view: memoryview, offset: int) -> None:
        """Write bytes of another owner's shard at an offset of the pack."""
        if self._stop.is_set():
            raise Stopped
        for at in range(0, len(view), digest.CHUNK):
            self._target.pwrite([view[at : at + digest.CHUNK]], offset + at)

    def commit(self, sync_directory: bool) -> None:
        """Write chunk tables and directory, and commit the pack: the four stages.

        Raises `Refused` (``changed-while-saving``) where the words of a shard are others now.
        """
        self._flush()
        self._look_again()
        plan = self.plan
        before = b"\0" * (plan.tables_offset - self._payload_end)
        tables = b"".join(self._tables[e.slot[:3]] for e in plan.entries)
        after = b"\0" * (plan.directory_offset - plan.tables_offset - len(tables))
        self._pwrite([before, tables, after, plan.directory], self._payload_end)
        if self._stop.is_set():
            raise Stopped
        self._target.commit(sync_directory)

    def abandon(self) -> None:
        """Remove what was written; harmless after a commit."""
        self._gathered.clear()
        self._target.abandon()

    def _look_again(self) -> None:
        """Compare the memory of every shard added with what was written from it."""
        for source, before in zip(self._added, self._quick, strict=True):
            if self._stop.is_set():
                raise Stopped
            if not self._is_same(source, before):
                raise changed(source.own.owner, source.region.name)

    def _is_same(self, source: Source, before: bytes) -> bool:
        width, at = digest.SIZES[digest.DEFAULT], 0
        steps = source.steps()
        try:
            for chunk in steps:
                if self._stop.is_set():
                    raise Stopped
                if digest.raw(chunk) != before[at : at + width]:
                    return False
                at += width
        finally:
            give_up(steps)
        return at == len(before)

    def _gather(self, chunk: Any, offset: int) -> None:
        gap = self._gaps.get(offset, 0)  # padding before a shard's first chunk
        if self._gathered and self._at + self._nbytes != offset - gap:
            self._flush()
        if not self._gathered:
            self._at = offset - gap
        if gap:
            self._gathered.append(b"\0" * gap)
        self._gathered.append(chunk)
        self._nbytes += gap + len(chunk)
        if self._nbytes >= digest.CHUNK or len(self._gathered) >= 1000:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            self._pwrite(self._gathered, self._at)
        self._gathered, self._nbytes = [], 0

    def _pwrite(self, buffers: list[Any], offset: int) -> None:
        self._target.pwrite(buffers, offset)
