"""Packs: one role's shards, read back with every byte checked.

A *pack reader* is an open pack whose header and directory have been checked. A shard is trusted
in two steps: first its whole chunk table, against the shard digest of the manifest's record; then
each chunk that is read, against the table. The directory is trusted for nothing: it only says
where to look.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import digest
from ..canonical import canonical
from ..errors import Refused
from ..format import pack as layout
from ..format.manifest import Place, ShardRecord
from ..model.capture import Attempt
from ..store import names

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..store.durable import Directory, ReadFile

#: Most bytes of tables or padding read at once, and how far apart two parts may lie to share a read.
SPAN = 4 << 20
GAP = 64 << 10

#: Packs whose files are open at the same time; one owner may read those of thousands of roles.
OPEN_LIMIT = 128

_ZERO = bytes(1 << 16)


class PackReader:
    """An open pack: header and directory checked, sizes known. Closed by `close`.

    `path` is its name below the store, for errors; `done` counts the bytes read so far. One that
    rests has closed its file, and asks `again` for it at the next read.
    """

    def __init__(self, file: ReadFile, path: str, again: Callable[[], ReadFile] | None = None) -> None:
        """Take over `file`. Raises `Refused` if header, size or directory are damaged."""
        self._file: ReadFile | None = file
        self._again = again
        self.path = path
        self.done = 0
        try:
            head = bytearray(min(layout.HEADER, file.size))
            self.read_into(head, 0)
            self.header = layout.open_header(bytes(head), self.path, file.size)
            data = bytearray(self.header.directory_nbytes)
            self.read_into(data, self.header.directory_offset)
            self.directory = layout.open_directory(self.header, bytes(data), self.path)
            self._check_edges()
        except BaseException:
            file.close()
            raise
        self.algorithm: str = self.header.algorithm
        self.offsets: list[int] = self.directory["offset"].tolist()
        self.nbytes: list[int] = self.directory["nbytes"].tolist()
        self.tables: list[int] = self.directory["table"].tolist()
        self._next: list[int] | None = None

    def read_into(self, buffer: memoryview | bytearray, offset: int) -> None:
        """Fill the buffer with the bytes from `offset` on. Raises `Refused` ``truncated``."""
        if self._file is None:
            if self._again is None:
                raise ValueError("the pack is closed")
            self._file = self._again()
        try:
            self._file.pread_into(buffer, offset)
        except Refused as error:
            error.file = self.path
            raise
        self.done += len(buffer)

    def _check_edges(self) -> None:
        """Check the padding that follows no payload: after the header, and after the tables."""
        tables = self.header.tables_offset
        first = int(self.directory["offset"].min()) if len(self.directory) else tables
        self.check_padding(layout.HEADER, first)
        if len(self.directory):
            last = self.directory[-1]
            chunks = digest.chunk_count(int(last["nbytes"]))
            tables = int(last["table"]) + digest.SIZES[self.header.algorithm] * chunks
        self.check_padding(tables, self.header.directory_offset)

    def locate(self, records: Sequence[ShardRecord], starts: Sequence[int]) -> list[int]:
        """Return the directory index of each record's shard; `starts` completes their keys.

        Raises `Refused`: ``missing-shard``, or ``corrupt-shard`` for another byte count.
        """
        keys = [(r.ordinal, r.owner, start) for r, start in zip(records, starts, strict=True)]
        found: list[int] = layout.find_all(self.directory, keys).tolist()
        for record, start, at in zip(records, starts, found, strict=True):
            if at < 0:
                raise Refused(
                    "the pack does not hold this shard",
                    code="missing-shard",
                    role=record.owner,
                    file=self.path,
                    expected=f"region {record.ordinal} of owner {record.owner} from word {start} on",
                    found=f"{len(self.offsets)} other shards",
                )
            if self.nbytes[at] != record.nbytes:
                raise Refused(
                    "the shard has another length than its manifest says",
                    code="corrupt-shard",
                    role=record.owner,
                    file=self.path,
                    expected=f"{record.nbytes} bytes",
                    found=f"{self.nbytes[at]} bytes",
                )
        return found

    def chunk_tables(self, shards: Sequence[int]) -> list[bytes]:
        """Return the chunk tables of these directory indices, unchecked, in few reads."""
        size = digest.SIZES[self.algorithm]
        wanted = [
            (self.tables[at], digest.chunk_count(self.nbytes[at]) * size, i) for i, at in enumerate(shards)
        ]
        wanted.sort()
        found: list[bytes] = [b""] * len(shards)
        i = 0
        while i < len(wanted):
            begin, end, j = wanted[i][0], wanted[i][0] + wanted[i][1], i + 1
            while (
                j < len(wanted) and wanted[j][0] - end <= GAP and wanted[j][0] + wanted[j][1] - begin <= SPAN
            ):
                end = max(end, wanted[j][0] + wanted[j][1])
                j += 1
            span = bytearray(end - begin)
            self.read_into(span, begin)
            data = bytes(span)
            for offset, nbytes, at in wanted[i:j]:
                found[at] = data[offset - begin : offset - begin + nbytes]
            i = j
        return found

    def check_table(self, record: ShardRecord, format: str, table: bytes) -> None:
        """Raise `Refused` unless `table` is the one that the record's shard digest names."""
        found = shard_digest(format, record.nbytes, table, self.algorithm)
        if found != record.digest:
            raise Refused(
                "the chunk table of a shard is not the one its manifest names",
                code="corrupt-shard",
                role=record.owner,
                file=self.path,
                expected=record.digest,
                found=found,
            )

    def corrupt(self, record: ShardRecord, at: int, chunk: int, expected: bytes, found: bytes) -> Refused:
        """Return the error for a chunk whose bytes have another digest."""
        low = self.offsets[at] + chunk * digest.CHUNK
        high = min(low + digest.CHUNK, self.offsets[at] + record.nbytes)
        return Refused(
            f"bytes {low} to {high - 1}, chunk {chunk} of a shard, have another digest",
            code="corrupt-shard",
            role=record.owner,
            file=self.path,
            expected=digest.text(expected, self.algorithm),
            found=digest.text(found, self.algorithm),
        )

    def after(self, at: int) -> int:
        """Return where the next payload (or the tables) begin after shard `at`: padding lies between."""
        if self._next is None:
            offsets: npt.NDArray[Any] = self.directory["offset"]
            order = np.argsort(offsets, kind="stable")
            following = np.empty(len(offsets), dtype=np.int64)
            following[order[:-1]] = offsets[order[1:]]
            if len(order):
                following[order[-1]] = self.header.tables_offset
            self._next = following.tolist()
        return self._next[at]

    def check_padding(self, begin: int, end: int) -> None:
        """Read the bytes [begin, end) and raise `Refused` unless all are zero."""
        while begin < end:
            part = bytearray(min(end - begin, len(_ZERO)))
            self.read_into(part, begin)
            self.check_zero(part, begin)
            begin += len(part)

    def check_zero(self, part: bytes | bytearray | memoryview, begin: int) -> None:
        """Raise `Refused` unless these bytes, at most 64 KiB from `begin` on, are padding: zero."""
        if part != _ZERO[: len(part)]:
            at = next(i for i, byte in enumerate(part) if byte)
            raise Refused(
                f"padding at byte {begin + at} is not zero",
                code="corrupt-pack",
                file=self.path,
                expected="0",
                found=part[at],
            )

    def rest(self) -> None:
        """Close the file until the next read; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Close the file for good; a second call does nothing."""
        self.rest()
        self._again = None


class Packs:
    """The packs of a restore: each opened at most once, all closed together.

    `opener` opens the file of a place; it raises `FileNotFoundError` if there is none.
    """

    def __init__(self, opener: Callable[[Place], ReadFile]) -> None:
        self._opener = opener
        self._open: dict[Place, PackReader] = {}
        self._awake: collections.deque[PackReader] = collections.deque()

    @property
    def done(self) -> int:
        """Bytes read so far, out of all packs that are open."""
        return sum(reader.done for reader in list(self._open.values()))

    def open(self, place: Place) -> PackReader:
        """Return the reader of a place. Raises `Refused`: ``missing-pack``, or damage."""
        reader = self._open.get(place)
        if reader is None:
            file = self._file(place)
            reader = PackReader(file, file_of(place), functools.partial(self._wake, place))
            self._open[place] = reader
            self._awake.append(reader)
        return reader

    def _wake(self, place: Place) -> ReadFile:
        """Open the file of a reader that rests."""
        file = self._file(place)
        self._awake.append(self._open[place])
        return file

    def _file(self, place: Place) -> ReadFile:
        while len(self._awake) >= OPEN_LIMIT:
            self._awake.popleft().rest()
        name = file_of(place)
        try:
            return self._opener(place)
        except FileNotFoundError as error:
            raise Refused(
                "a pack that the manifest names is missing",
                code="missing-pack",
                role=place.role,
                file=name,
            ) from error
        except Refused as error:
            error.file, error.role = name, place.role
            raise

    def close(self) -> None:
        """Close every pack."""
        self._awake.clear()
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def file_of(place: Place) -> str:
    """Return the name below the store of a place's pack."""
    attempt = names.attempt(Attempt(place.epoch, place.save))
    return os.path.join(names.DATA, attempt, names.group(place.role), names.pack(place.role))


def opener(data: Directory) -> Callable[[Place], ReadFile]:
    """Return how to open a place's pack below the store's data directory."""

    def open_place(place: Place) -> ReadFile:
        attempt = names.attempt(Attempt(place.epoch, place.save))
        with data.sub(attempt) as top, top.sub(names.group(place.role)) as group:
            return group.open_file(names.pack(place.role))

    return open_place


@functools.lru_cache(maxsize=256)
def _shard_head(algorithm: str, format: str, nbytes: int) -> bytes:
    return canonical(["shard", [algorithm, format, nbytes, digest.CHUNK]]) + b"\n"


def shard_digest(format: str, nbytes: int, table: bytes, algorithm: str) -> str:
    """Return what `digest.shard` returns, fast for many shards of one size."""
    return digest.text(digest.raw(_shard_head(algorithm, format, nbytes) + table, algorithm), algorithm)
