"""Validation: every chunk a plan reads is read and checked, before anything is written.

`validate` reads each pack once, in the order of its offsets. Validated bytes of destinations that
exist already are kept in staging while there is room, else forgotten and read once more by
`apply`. Destinations that are made anew are filled at once: nobody sees them before `apply` hands
them over.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .. import digest
from ..errors import Cause, Refused
from ..format.documents import decode_document
from ..format.manifest import Place, piece_of
from ..model import formats
from ..model.formats import Format
from ..model.pieces import Box, Interval
from .blocks import clip, touched
from .packs import PackReader, Packs
from .plan import DOCUMENTS, Plan, Read
from .staging import Array, Remote, RemoteSink, Sink, Staging, bytes_of, fresh

#: Shards of at most this size are read together with their neighbours.
SMALL = 256 << 10
#: Bytes read in one step: they are still in cache when they are hashed and copied.
STEP = digest.CHUNK
#: Padding between two shards is shorter than this.
ALIGNMENT = 4096


class Target(NamedTuple):
    """Where one need goes. `array` is filled in place by `apply`; without one, a new array of
    `shape` is made. Documents have neither. With `hold` the bytes are kept for the caller, and
    nothing is written or made."""

    array: Array | Remote | None = None
    shape: tuple[int, ...] = ()
    hold: bool = False


class Part(NamedTuple):
    """Validated bytes of `read`, from byte `start` of its shard on; None: to be read again."""

    read: int
    start: int
    stop: int
    data: memoryview | None


class Source(NamedTuple):
    """Where a read was found: its pack, its directory index, and its checked chunk table."""

    pack: PackReader
    at: int
    table: bytes


@dataclasses.dataclass
class Checked:
    """What `validate` returns and `apply` takes: nothing in it is written anywhere yet.

    `made` holds the new array or the document of each need that has one; `passed` the failures of
    places that another place of the same shard made good. Close it when it is not applied.
    """

    plan: Plan
    packs: Packs
    staging: Staging
    targets: Sequence[Target]
    made: dict[int, object] = dataclasses.field(default_factory=dict)
    parts: list[Part] = dataclasses.field(default_factory=list)
    sources: dict[int, Source] = dataclasses.field(default_factory=dict)
    passed: list[Cause] = dataclasses.field(default_factory=list)

    def close(self) -> None:
        """Close the packs and give the staged memory back."""
        self.parts.clear()
        self.packs.close()
        self.staging.clear()


def validate(
    plan: Plan,
    packs: Packs,
    targets: Sequence[Target],
    staging: Staging,
    finite: Callable[[int], bool] = lambda ordinal: True,
) -> Checked:
    """Read and check everything the plan reads; one target per need. Writes to no destination.

    `finite` says of an ordinal whether its words must be finite. Raises `Refused`: ``missing-pack``,
    ``missing-shard``, ``truncated``, ``corrupt-pack``, ``corrupt-shard``, ``non-finite``,
    ``corrupt-document``; and `OSError` as the file system gives it. A shard with several places is
    refused only when all are damaged, with the failure of the first.
    """
    checked = Checked(plan, packs, staging, targets)
    sinks: dict[int, Sink] = {}
    regions = plan.regions
    for number, (need, target) in enumerate(zip(plan.needs, targets, strict=True)):
        if target.array is None and not target.hold and regions[need.ordinal].kind not in DOCUMENTS:
            array = fresh(target.shape, regions[need.ordinal].format)
            checked.made[number] = array
            sinks[number] = Sink(array)
    try:
        queue: list[tuple[int, Refused | None]] = [(0, None)]
        todo: dict[int, dict[Place, list[int]]] = {0: {}}
        for i, read in enumerate(plan.reads):
            todo[0].setdefault(read.record.places[0], []).append(i)
        while queue:
            tries, first = queue.pop(0)
            for place, reads in todo.pop(tries).items():
                kept = len(checked.parts)
                try:
                    _Validation(checked, sinks, finite, packs.open(place), reads).run()
                except Refused as error:
                    # Every place of a shard is a whole copy: begin these shards again elsewhere.
                    if not all(len(plan.reads[i].record.places) > tries + 1 for i in reads):
                        raise (first or error) from error
                    del checked.parts[kept:]
                    checked.passed.append(error.cause())
                    again = todo.setdefault(tries + 1, {})
                    for i in reads:
                        again.setdefault(plan.reads[i].record.places[tries + 1], []).append(i)
                    if not queue:
                        queue.append((tries + 1, first or error))
        _documents(checked)
    except BaseException:
        checked.close()
        raise
    return checked


class _Validation:
    """The reads of one pack."""

    def __init__(
        self,
        checked: Checked,
        sinks: dict[int, Sink],
        finite: Callable[[int], bool],
        pack: PackReader,
        reads: Sequence[int],
    ) -> None:
        self.checked = checked
        self.sinks = sinks
        self.pack = pack
        self.algorithm = pack.algorithm
        plan = checked.plan
        records = [plan.reads[i].record for i in reads]
        located = pack.locate(records, [plan.reads[i].start for i in reads])
        self.at = dict(zip(reads, located, strict=True))
        self.reads = sorted(reads, key=lambda i: pack.offsets[self.at[i]])
        self.formats: dict[int, Format | None] = {}
        self.finite = finite
        self.ring = np.empty(STEP + ALIGNMENT, dtype=np.uint8).data

    def run(self) -> None:
        plan, pack, sources = self.checked.plan, self.pack, self.checked.sources
        tables = pack.chunk_tables([self.at[i] for i in self.reads])
        records = [plan.reads[i].record for i in self.reads]
        formats_ = [plan.regions[record.ordinal].format for record in records]
        names = digest.shards(formats_, [record.nbytes for record in records], tables, self.algorithm)
        for i, record, format, table, name in zip(self.reads, records, formats_, tables, names, strict=True):
            if name != record.digest:
                try:
                    pack.check_table(record, format, table)
                except Refused as error:
                    raise self._named(i, error) from None
            sources[i] = Source(pack, self.at[i], table)
        for batch in self._batches():
            if len(batch) == 1 and plan.reads[batch[0]].record.nbytes > SMALL:
                self._large(batch[0])
            else:
                self._small(batch)

    def _batches(self) -> Iterator[list[int]]:
        """Yield the reads in file order: large ones alone, small neighbours together."""
        offsets, nbytes = self.pack.offsets, self.pack.nbytes
        batch: list[int] = []
        begin = end = 0
        for i in self.reads:
            offset, size = offsets[self.at[i]], nbytes[self.at[i]]
            if batch and (size > SMALL or offset - end >= ALIGNMENT or offset + size - begin > STEP):
                yield batch
                batch = []
            if size > SMALL:
                yield [i]
                continue
            if not batch:
                begin = offset
            batch.append(i)
            end = offset + size
        if batch:
            yield batch

    def _small(self, batch: list[int]) -> None:
        """One read for shards that lie beside each other, then each checked out of the cache."""
        plan, pack, at = self.checked.plan, self.pack, self.at
        begin = pack.offsets[at[batch[0]]]
        end = pack.after(at[batch[-1]])
        last = pack.offsets[at[batch[-1]]] + pack.nbytes[at[batch[-1]]]
        if end - last >= ALIGNMENT:
            pack.check_padding(last, end)
            end = last
        wait = any(self._waits(i) for i in batch)
        staged = self.checked.staging.take(end - begin) if wait else None
        data = self.ring[: end - begin] if staged is None else staged
        pack.read_into(data, begin)
        sources, offsets, nbytes = self.checked.sources, pack.offsets, pack.nbytes
        lows = [offsets[at[i]] - begin for i in batch]
        parts = [data[low : low + nbytes[at[i]]] for i, low in zip(batch, lows, strict=True)]
        found = digest.raws(parts, self.algorithm)
        expected = [sources[i].table for i in batch]
        if found != expected:
            wrong = next(n for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
            i = batch[wrong]
            raise self._named(i, pack.corrupt(plan.reads[i].record, at[i], 0, expected[wrong], found[wrong]))
        # What lies between a shard and the next one of the file belongs to no digest.
        for i, low in zip(batch, lows, strict=True):
            high = low + nbytes[at[i]]
            padding = min(pack.after(at[i]) - begin, len(data))
            if padding > high:
                pack.check_zero(data[high:padding], begin + high)
        self._check_batch(batch, data, parts)
        if not self.sinks and staged is not None:  # as on most resumes: all of them wait
            self.checked.parts += [Part(i, 0, len(v), v) for i, v in zip(batch, parts, strict=True)]
            return
        for i, view in zip(batch, parts, strict=True):
            self._keep(i, 0, view, staged is not None)

    def _check_batch(self, batch: list[int], data: memoryview, parts: list[memoryview]) -> None:
        """Finiteness: in one look where all shards have one format, else one by one."""
        first = self._format(batch[0])
        if first is not None and all(self._format(i) is first for i in batch):
            words = formats.words_of(data[: len(data) // first.itemsize * first.itemsize], first)
            if formats.first_non_finite(words) is None:
                return
        for i, view in zip(batch, parts, strict=True):
            self._check_finite(i, 0, view)

    def _large(self, i: int) -> None:
        read, pack, k = self.checked.plan.reads[i], self.pack, self.at[i]
        table, size = self.checked.sources[i].table, digest.SIZES[self.algorithm]
        nbytes, offset = read.record.nbytes, pack.offsets[k]
        waits, direct = self._waits(i), self._direct(read)
        for chunk in chunks_of(read, self.checked.plan):
            start = chunk * digest.CHUNK
            stop = min(start + digest.CHUNK, nbytes)
            staged = None
            if direct is not None:
                view = direct[start:stop]
            else:
                staged = self.checked.staging.take(stop - start) if waits else None
                view = self.ring[: stop - start] if staged is None else staged
            pack.read_into(view, offset + start)
            expected = table[chunk * size : (chunk + 1) * size]
            found = digest.raw(view, self.algorithm)
            if found != expected:
                raise self._named(i, pack.corrupt(read.record, k, chunk, expected, found))
            self._check_finite(i, start, view)
            if direct is None:
                self._keep(i, start, view, staged is not None)
            if stop == nbytes:
                pack.check_padding(offset + nbytes, pack.after(k))

    def _keep(self, i: int, start: int, view: memoryview, staged: bool) -> None:
        """Copy what may be copied now; remember the rest, with its bytes if they are staged."""
        read = self.checked.plan.reads[i]
        waits = False
        for copy in read.copies:
            sink = self.sinks.get(copy.need)
            if sink is None:
                waits = True
            else:
                deliver(sink, copy.blocks, view, start, self.checked.plan.regions[read.record.ordinal].format)
        if waits:
            kept = view if staged else None
            self.checked.parts.append(Part(i, start, start + len(view), kept))

    def _waits(self, i: int) -> bool:
        """Whether some word of this read goes to an array in place, or to a document."""
        return any(copy.need not in self.sinks for copy in self.checked.plan.reads[i].copies)

    def _direct(self, read: Read) -> memoryview | None:
        """The memory of a new array that holds this shard and nothing else: read right into it."""
        if len(read.copies) != 1 or read.copies[0].blocks is not None:
            return None
        made = self.checked.made.get(read.copies[0].need)
        memory = bytes_of(made) if isinstance(made, np.ndarray) else None
        return memory if memory is not None and len(memory) == read.record.nbytes else None

    def _format(self, i: int) -> Format | None:
        """The format of a read whose words must be finite, else None."""
        ordinal = self.checked.plan.reads[i].record.ordinal
        if ordinal not in self.formats:
            region = self.checked.plan.regions[ordinal]
            known = None if region.kind in DOCUMENTS else formats.by_name(region.format)
            must = known is not None and known.floating and self.finite(ordinal)
            self.formats[ordinal] = known if must else None
        return self.formats[ordinal]

    def _check_finite(self, i: int, start: int, view: memoryview) -> None:
        format = self._format(i)
        if format is None:
            return
        words = formats.words_of(view, format)
        found = formats.first_non_finite(words)
        if found is not None:
            read = self.checked.plan.reads[i]
            region = self.checked.plan.regions[read.record.ordinal]
            index = position(read.record.piece, region.shape, start // format.itemsize + found)
            raise Refused(
                f"the word at index {index} is not finite",
                code="non-finite",
                role=read.record.owner,
                region=region.name,
                file=self.pack.path,
                expected="finite words (declare finite=False to allow others)",
                found=str(words[found]),
            )

    def _named(self, i: int, error: Refused) -> Refused:
        plan = self.checked.plan
        error.region = plan.regions[plan.reads[i].record.ordinal].name
        return error


def chunks_of(read: Read, plan: Plan) -> Sequence[int]:
    """Return which chunks of a shard hold words that are copied."""
    if any(copy.blocks is None for copy in read.copies):
        return range(digest.chunk_count(read.record.nbytes))
    itemsize = formats.by_name(plan.regions[read.record.ordinal].format).itemsize
    blocks = [block for copy in read.copies for block in copy.blocks or ()]
    return touched(blocks, digest.CHUNK // itemsize)


def deliver(
    sink: Sink | RemoteSink, blocks: Sequence[object] | None, view: memoryview, start: int, format: str
) -> None:
    """Write what a need takes of the bytes `view` of a shard, which begin at its byte `start`."""
    known = formats.by_name(format)
    if blocks is None:
        sink.put(view, start, known)
        return
    words, first = formats.words_of(view, known), start // known.itemsize
    for block in blocks:
        for part in clip(block, first, first + len(words)):  # type: ignore[arg-type]
            sink.put_block(part, words, first)


def position(piece: tuple[int, ...], shape: tuple[int, ...], word: int) -> tuple[int, ...]:
    """Return the index, in the region's global shape, of the piece's word number `word`."""
    held = piece_of(piece)
    if isinstance(held, Box):
        local = tuple(b - a for a, b in zip(held.starts, held.stops, strict=True))
        return tuple(a + i for a, i in zip(held.starts, _unravel(word, local), strict=True))
    return _unravel(word + (held.start if isinstance(held, Interval) else 0), shape)


def _unravel(word: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for axis in range(len(shape)):
        inner = math.prod(shape[axis + 1 :])
        index.append(word // inner)
        word %= inner
    return tuple(index)


def _documents(checked: Checked) -> None:
    """Decode every document now: one that cannot be decoded must be refused before anything is written."""
    plan = checked.plan
    pending: dict[int, list[Part]] = {}
    for part in checked.parts:
        read = plan.reads[part.read]
        held = all(checked.targets[copy.need].hold for copy in read.copies)
        if plan.regions[read.record.ordinal].kind in DOCUMENTS and not held:
            pending.setdefault(part.read, []).append(part)
    if not pending:
        return
    checked.parts = [part for part in checked.parts if part.read not in pending]
    for i, parts in pending.items():
        read = plan.reads[i]
        data = b"".join(_bytes(checked, part) for part in parts)
        try:
            value = decode_document(data)
        except Refused as error:
            error.region = plan.regions[read.record.ordinal].name
            error.role, error.file = read.record.owner, checked.sources[i].pack.path
            raise
        for copy in read.copies:
            checked.made[copy.need] = value


def _bytes(checked: Checked, part: Part) -> memoryview:
    return part.data if part.data is not None else read_again(checked, part)


def read_again(checked: Checked, part: Part, buffer: memoryview | None = None) -> memoryview:
    """Return the bytes of a part that was not staged, read and checked once more.

    Raises `Refused` ``changed-while-reading`` if they are not those that were validated.
    """
    read = checked.plan.reads[part.read]
    pack, at, table = checked.sources[part.read]
    size, nbytes = digest.SIZES[pack.algorithm], part.stop - part.start
    view = memoryview(bytearray(nbytes)) if buffer is None else buffer[:nbytes]
    chunk = part.start // digest.CHUNK
    expected = table[chunk * size : (chunk + 1) * size]
    try:
        pack.read_into(view, pack.offsets[at] + part.start)
        found = digest.raw(view, pack.algorithm)
        if found != expected:
            raise pack.corrupt(read.record, at, chunk, expected, found)
    except Refused as error:
        raise Refused(
            f"the store changed after it was validated: {error.message}",
            code="changed-while-reading",
            role=read.record.owner,
            region=checked.plan.regions[read.record.ordinal].name,
            file=pack.path,
            expected=error.expected,
            found=error.found,
        ) from error
    return view
