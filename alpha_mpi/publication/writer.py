"""Writer: shards into one pack, digested chunk by chunk while the chunk is in cache.

Small shards are gathered into writes of about 1 MiB; a large one is written in 1 MiB steps from
the memory it lies in. Once all are written that memory is looked at again: words that somebody
wrote to meanwhile are neither those of one moment, nor surely those whose digest was taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .. import digest
from ..errors import Refused
from ..format.inventory import Key
from ..format.pack import PackPlan, Slot
from ..store.durable import Directory, Target
from .shards import Few, Shards
from .source import DirectFile, Source, give_up


class Stopped(Exception):
    """The attempt was aborted; the writer gave up."""


class Direct(Protocol):
    """What writes from devices to the store (`devices.direct`)."""

    def opened(self, fd: int, wrote: Callable[[int], None]) -> DirectFile | None:
        """Open a file by its descriptor; None where the store cannot. `wrote` is told of the bytes."""


def _changed_first(few: Few, same: Sequence[bool]) -> Refused:
    """Return the refusal for the first of some shards that is not the same."""
    return few.sources[same.index(False)].changed()


class _Places:
    """Where everything in a pack lies: the plan of its slots, and each shard's place by its key."""

    def __init__(self, slots: Sequence[Slot], algorithm: str) -> None:
        self.slots, self.algorithm = slots, algorithm
        # An owner's shards come to a star's owner 0 as one stream, and go to the file as one.
        self.plan = PackPlan.of(slots, algorithm, by_owner=True)
        #: Offset of the shard, and the bytes of padding before it.
        self.of: dict[tuple[int, ...], tuple[int, int]] = {}
        self.keys: list[tuple[int, ...]] = [entry.slot[:3] for entry in self.plan.entries]
        self.end = len(self.plan.header)
        for slot, offset, _ in self.plan.in_file:
            self.of[slot[:3]] = offset, offset - self.end
            self.end = offset + slot.nbytes


#: The last ones: the sizes are nearly always those of the last save.
_LAST: list[_Places] = []


def _places(slots: Sequence[Slot], algorithm: str) -> _Places:
    for found in tuple(_LAST):
        if found.algorithm == algorithm and found.slots == slots:
            return found
    made = _Places(slots, algorithm)
    _LAST[:] = [made, *_LAST[:1]]
    return made


class _Added(NamedTuple):
    """Shards written, and quick digests of what was written, one per chunk of each; and the user's own
    memory, where all was written out of it. What was packed is not kept: it may be much."""

    few: Few
    quick: list[bytes]
    buffers: list[Any] | None = None


class PackWriter:
    """Writes one role's pack. Runs on a worker thread; `stop` is looked at between chunks."""

    def __init__(
        self,
        directory: Directory,
        name: str,
        slots: Sequence[Slot],
        algorithm: str,
        stop: threading.Event,
        direct: Direct | None = None,
    ) -> None:
        self._places = _places(slots, algorithm)
        self.plan = self._places.plan
        self._algorithm = algorithm
        self._stop = stop
        #: Chunk tables: of own shards with their keys, of others by their keys.
        self._own: tuple[Sequence[Key], Sequence[bytes]] = (), ()
        self._tables: dict[tuple[int, ...], bytes] = {}
        self._added: list[_Added] = []
        self._target = Target(directory, name, self.plan.size)
        self._direct = direct
        self._file: DirectFile | None = None  # opened with the first shard for it
        self._gathered: list[Any] = []
        self._nbytes = 0
        self._at = 0
        self._pwrite([self.plan.header], 0)

    @property
    def written(self) -> int:
        """Bytes that the kernel took so far."""
        return self._target.written

    def place_of(self, key: Key) -> tuple[int, int]:
        """Return the offset of a shard in the pack, and how many bytes of padding lie before it."""
        return self._places.of[key]

    def add_all(self, shards: Shards) -> list[bytes]:
        """Write own shards and return the chunk table of each.

        Raises `Refused`: ``non-finite``, ``changed-while-saving``.
        """
        found: list[bytes] = []
        for few in shards.few_at_once():
            if self._stop.is_set():
                raise Stopped
            tables = [self._add(few)] if few.alone else self._add_few(few)
            chunks = few.chunks
            if chunks is not None and chunks != tables:
                same = [a is None or a == b for a, b in zip(chunks, tables, strict=True)]
                if not all(same):
                    raise _changed_first(few, same)
            found += tables
        self._own = shards.wants.keys, found
        return found

    def _add_few(self, few: Few) -> list[bytes]:
        """Write small local shards; return their chunk tables, of one digest each."""
        buffers, in_place = few.shown()
        nbytes = few.nbytes
        few.check_finite(buffers)
        quick = digest.raws(buffers)
        tables = quick if self._algorithm == digest.DEFAULT else digest.raws(buffers, self._algorithm)
        keys = few.keys
        (first, gap), (last, _) = self._places.of[keys[0]], self._places.of[keys[-1]]
        if last + nbytes[-1] - first == few.total:  # one behind the other, as they lie in the pack
            self._gather(buffers, few.total, first, gap)
        else:
            for key, buffer, size in zip(keys, buffers, nbytes, strict=True):
                self._gather([buffer], size, *self._places.of[key])
        if self._nbytes >= digest.CHUNK:
            self._flush()
        self._added.append(_Added(few, quick, buffers if in_place else None))
        return tables

    def _add(self, few: Few) -> bytes:
        """Write one shard of any size; return its chunk table."""
        (source,) = few.sources
        at, local = 0, source.local
        offset, gap = self._places.of[source.key]
        tables, quick = [], []
        file = None if local else self._file_for(offset, source.nbytes)
        if file is None:
            steps = source.steps()
        else:
            self._flush()
            self._pwrite([b"\0" * gap], offset - gap)
            steps = source.steps_into(file, offset, self._late)
        try:
            for chunk in steps:
                if self._stop.is_set():
                    raise Stopped
                source.check_finite(chunk, at)
                quick.append(digest.raw(chunk))
                tables.append(
                    quick[-1] if self._algorithm == digest.DEFAULT else digest.raw(chunk, self._algorithm)
                )
                at += len(chunk)
                if file is not None:
                    continue
                # A whole chunk is written at once; a shorter one may wait for others, and a view of
                # remote words is good until the next one only.
                kept = chunk if local or len(chunk) == digest.CHUNK else bytes(chunk)
                first = at == len(chunk)
                self._gather([kept], len(kept), offset + at - len(chunk), gap if first else 0)
                if self._nbytes >= digest.CHUNK:
                    self._flush()
        except BaseException:
            give_up(steps)
            raise
        if at != source.nbytes:
            raise source.changed()
        if source.format is not None:  # the bytes of a document are the library's own
            self._added.append(_Added(few, quick))
        return b"".join(tables)

    def _file_for(self, offset: int, nbytes: int) -> DirectFile | None:
        """Return what writes so many remote bytes at an offset directly, if anything does."""
        if self._file is None and self._direct is not None and nbytes >= digest.CHUNK:
            self._file = self._direct.opened(self._target.fileno(), self._target.wrote)
            self._direct = None  # asked once
        return self._file if self._file is not None and self._file.takes(offset, nbytes) else None

    def _late(self, view: memoryview, offset: int) -> None:
        self._target.pwrite([view], offset)

    def add_foreign(self, keys: Sequence[Key], tables: Sequence[bytes]) -> None:
        """Take over the chunk tables of shards whose bytes, and the padding before each, come by
        `pwrite`."""
        self._tables.update(zip(keys, tables, strict=True))

    def pwrite(self, buffers: Sequence[Any], offset: int) -> None:
        """Write bytes of another owner's shards, about a chunk, at an offset of the pack."""
        if self._stop.is_set():
            raise Stopped
        self._pwrite(buffers, offset)

    def commit(self, sync_directory: bool) -> None:
        """Write chunk tables and directory, and commit the pack: the four stages.

        Raises `Refused` (``changed-while-saving``) where the words of a shard are others now.
        """
        self._flush()
        if self._file is not None:
            self._file.close()
        self._look_again()
        plan = self.plan
        end = self._places.end
        before = b"\0" * (plan.tables_offset - end)
        keys, own = self._own
        if not self._tables and keys == self._places.keys:
            tables = b"".join(own)
        else:
            self._tables.update(zip(keys, own, strict=True))
            tables = b"".join(map(self._tables.__getitem__, self._places.keys))
        after = b"\0" * (plan.directory_offset - plan.tables_offset - len(tables))
        self._pwrite([before, tables, after, plan.directory], end)
        if self._stop.is_set():
            raise Stopped
        self._target.commit(sync_directory)

    def abandon(self) -> None:
        """Remove what was written; harmless after a commit."""
        self._gathered.clear()
        if self._file is not None:
            self._file.close()
        self._target.abandon()

    def _look_again(self) -> None:
        """Compare the memory of every shard added with what was written from it."""
        for few, before, buffers in self._added:
            if self._stop.is_set():
                raise Stopped
            if few.alone:
                same = [self._is_same(few.sources[0], before)]
            elif buffers is not None:
                now = digest.raws(buffers)
                same = [True] if now == before else [a == b for a, b in zip(now, before, strict=True)]
            else:  # what was packed for the write alone is not the memory that may have changed
                same = [self._is_same(s, (b,)) for s, b in zip(few.sources, before, strict=True)]
            if not all(same):
                raise _changed_first(few, same)

    def _is_same(self, source: Source, before: Sequence[bytes]) -> bool:
        """Whether the memory of a shard has these quick digests, one per chunk."""
        at = 0
        steps = source.steps()
        try:
            for chunk in steps:
                if self._stop.is_set():
                    raise Stopped
                if digest.raw(chunk) != before[at]:
                    return False
                at += 1
        finally:
            give_up(steps)
        return at == len(before)

    def _gather(self, chunks: Sequence[Any], nbytes: int, offset: int, gap: int) -> None:
        """Put chunks, and the padding before them, behind those that wait; or write those first."""
        if self._at + self._nbytes != offset - gap:
            self._flush()
            self._at = offset - gap
        if gap:
            self._gathered.append(bytes(gap))
        self._gathered += chunks
        self._nbytes += gap + nbytes

    def _flush(self) -> None:
        if self._gathered:
            self._pwrite(self._gathered, self._at)
        self._at += self._nbytes
        self._gathered, self._nbytes = [], 0

    def _pwrite(self, buffers: Sequence[Any], offset: int) -> None:
        self._target.pwrite(buffers, offset)
