"""Pack: one file that holds many shards of one role (docs/format.md, section 9).

A *slot* is one shard's place in a pack. All offsets follow from the slots' keys and sizes, so the
header is written before any payload. The directory is trusted for nothing: a reader takes what is
to be read, and how long it is, from the manifest, and only where it lies from here.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import digest
from ..model.capture import FORMAT_VERSION
from .question import LARGEST, Question

MAGIC = b"\x89AMPK\r\n\x1a"
#: Bytes of the header.
HEADER = 128
#: Payloads are aligned to this, and to `PAGE` from `LARGE` bytes on.
ALIGNMENT = 64
PAGE = 4096
LARGE = 1 << 16
#: One entry of the directory.
ENTRY = np.dtype(
    [
        ("ordinal", "<u4"),
        ("owner", "<u4"),
        ("start", "<u8"),
        ("offset", "<u8"),
        ("nbytes", "<u8"),
        ("table", "<u8"),
    ]
)

_HEADER = struct.Struct("<8sII16sQQQQ32s")  # and 32 bytes: the digest of these 96

Directory = npt.NDArray[np.void]


class Slot(NamedTuple):
    """One shard in a pack: its key (ordinal, owner, start) and its byte count, at least 1."""

    ordinal: int
    owner: int
    start: int
    nbytes: int


class Entry(NamedTuple):
    """A slot with the offset of its payload and that of its chunk table."""

    slot: Slot
    offset: int
    table_offset: int


def alignment(nbytes: int) -> int:
    """Return what the offset of a payload of `nbytes` is a multiple of."""
    return PAGE if nbytes >= LARGE else ALIGNMENT


@dataclasses.dataclass(frozen=True)
class PackPlan:
    """Where everything in one pack lies, known before its first byte is written.

    The file is: `header`, the payloads at the entries' offsets, the chunk tables joined at
    `tables_offset` in order of the entries, `directory` at `directory_offset`; zero between them.
    Entries are in the order of their keys, `in_file` has them in that of their payloads.
    """

    algorithm: str
    entries: tuple[Entry, ...]
    tables_offset: int
    tables_nbytes: int
    directory_offset: int
    directory: bytes
    size: int
    header: bytes

    @classmethod
    def of(cls, slots: Iterable[Slot], algorithm: str = digest.DEFAULT, by_owner: bool = False) -> PackPlan:
        """Return the plan of a pack that holds these slots: its payloads in the order of their keys, or
        `by_owner`: those of one owner together.

        Raises `ValueError` for a key that comes twice, an empty slot, or numbers no pack holds.
        """
        ordered = sorted(slots)
        width = digest.SIZES[algorithm]
        last = (-1, -1, -1)
        for slot in ordered:
            if slot[:3] == last:
                raise ValueError(f"two slots of one key {last}")
            last = slot[:3]
            if not (0 <= slot.ordinal < 1 << 32 and 0 <= slot.owner < 1 << 32 and slot.start >= 0):
                raise ValueError(f"no pack holds the key {last}")
            if slot.nbytes < 1:
                raise ValueError(f"slot {last} holds no bytes: an empty piece has no shard")
        at, offsets, in_file = HEADER, [0] * len(ordered), list(range(len(ordered)))
        if by_owner:
            in_file.sort(key=lambda i: ordered[i].owner)
        for i in in_file:
            nbytes = ordered[i].nbytes
            offsets[i] = _up(at, alignment(nbytes))
            at = offsets[i] + nbytes
        tables = at = _up(at, ALIGNMENT)
        entries = []
        for slot, offset in zip(ordered, offsets, strict=True):
            entries.append(Entry(slot, offset, at))
            at += width * digest.chunk_count(slot.nbytes)
        directory_offset = _up(at, ALIGNMENT)
        size = directory_offset + ENTRY.itemsize * len(entries)
        if size > LARGEST:
            raise ValueError(f"a pack of {size} bytes is too large")
        rows = [(*e.slot[:3], e.offset, e.slot.nbytes, e.table_offset) for e in entries]
        directory = np.array(rows, ENTRY).tobytes()
        head = _HEADER.pack(
            MAGIC,
            FORMAT_VERSION,
            digest.CHUNK,
            algorithm.encode(),
            len(entries),
            tables,
            directory_offset,
            size,
            digest.raw(directory, algorithm),
        )
        header = head + digest.raw(head, algorithm).ljust(32, b"\0")
        return cls(algorithm, tuple(entries), tables, at - tables, directory_offset, directory, size, header)

    @property
    def in_file(self) -> list[Entry]:
        """The entries in the order of their payloads in the file."""
        return sorted(self.entries, key=lambda entry: entry.offset)


@dataclasses.dataclass(frozen=True)
class Header:
    """The header of a pack, checked: lengths agree with each other, and with the file's size."""

    algorithm: str
    count: int
    tables_offset: int
    directory_offset: int
    size: int
    directory_digest: bytes

    @property
    def directory_nbytes(self) -> int:
        """Bytes of the directory, which ends the file."""
        return self.size - self.directory_offset


def open_header(data: bytes, file: str, size: int | None = None) -> Header:
    """Return the header of a pack from its first 128 bytes.

    `size` is the size of the file, where the caller knows it (it should). Raises `Refused`:
    `truncated`, `corrupt-pack`, `format-version`.
    """
    ask = Question(file, "corrupt-pack")
    if len(data) < HEADER:
        ask.refuse("the header is cut short", f"{HEADER} bytes", f"{len(data)} bytes", "truncated")
    data = bytes(data[:HEADER])
    magic, version, chunk, name, count, tables, directory, end, dirdigest = _HEADER.unpack(data[:96])
    if magic != MAGIC:
        ask.refuse("not a pack: wrong magic", MAGIC.hex(), magic.hex())
    try:
        algorithm = name.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        algorithm = repr(name)
    if algorithm not in digest.SIZES or name != algorithm.encode().ljust(16, b"\0"):
        ask.refuse("digest algorithm of the header", " or ".join(digest.ALGORITHMS), algorithm)
    found = digest.raw(data[:96], algorithm).ljust(32, b"\0")
    if found != data[96:]:
        ask.refuse("the header has another digest", data[96:].hex(), found.hex())
    if version != FORMAT_VERSION:
        ask.refuse("a format version this library does not read", FORMAT_VERSION, version, "format-version")
    if chunk != digest.CHUNK:
        ask.refuse("chunk size", digest.CHUNK, chunk)
    width = digest.SIZES[algorithm]
    if any(dirdigest[width:]):
        ask.refuse("padding of the directory's digest", "zero", dirdigest[width:].hex())
    if not HEADER <= tables <= directory <= end <= LARGEST or tables % ALIGNMENT or directory % ALIGNMENT:
        ask.refuse(
            "offsets of the header", f"multiples of {ALIGNMENT}, in order", f"{tables}, {directory}, {end}"
        )
    if end - directory != count * ENTRY.itemsize:
        ask.refuse("bytes of the directory", count * ENTRY.itemsize, end - directory)
    if size is not None and size != end:
        code = "truncated" if size < end else "corrupt-pack"
        ask.refuse("size of the file", f"{end} bytes", f"{size} bytes", code)
    return Header(algorithm, count, tables, directory, end, dirdigest[:width])


def open_directory(header: Header, data: bytes, file: str) -> Directory:
    """Return the directory of a pack as an array of `ENTRY`, every entry checked.

    Checked: length, digest, strict order of the keys, alignment and bounds of every payload, no
    overlap, and that the chunk tables lie as the byte counts say. Raises `Refused`: `truncated`,
    `corrupt-pack`.
    """
    ask = Question(file, "corrupt-pack")
    if len(data) != header.directory_nbytes:
        code = "truncated" if len(data) < header.directory_nbytes else "corrupt-pack"
        ask.refuse("length of the directory", header.directory_nbytes, len(data), code)
    found = digest.raw(data, header.algorithm)
    if found != header.directory_digest:
        ask.refuse("the directory has another digest", header.directory_digest.hex(), found.hex())
    directory = np.frombuffer(data, ENTRY)
    _check_keys(directory, ask)
    _check_places(directory, header, ask)
    return directory


def _check_keys(directory: Directory, ask: Question) -> None:
    keys = _keys(directory["ordinal"], directory["owner"], directory["start"])
    wrong = np.flatnonzero(keys[1:] <= keys[:-1])
    if wrong.size:
        a, b = directory[wrong[0]], directory[wrong[0] + 1]
        ask.refuse("directory out of order", f"a key after {_key(a)}", f"{_key(b)}")


def _check_places(directory: Directory, header: Header, ask: Question) -> None:
    offset, nbytes = directory["offset"], directory["nbytes"]
    wrong = (nbytes < 1) | (nbytes > LARGEST) | (offset < HEADER) | (offset > LARGEST)
    stop = np.where(wrong, np.uint64(LARGEST), offset + nbytes)
    _first(wrong | (stop > header.tables_offset), directory, header, "outside the payload", ask)
    step = np.where(nbytes >= LARGE, PAGE, ALIGNMENT).astype(np.uint64)
    _first(offset % step != 0, directory, header, "not aligned", ask)
    order = np.argsort(offset, kind="stable")
    overlap = np.zeros(len(directory), bool)
    overlap[order[1:]] = offset[order[1:]] < stop[order[:-1]]
    _first(overlap, directory, header, "over another payload", ask)
    widths = digest.SIZES[header.algorithm] * (
        (nbytes + np.uint64(digest.CHUNK - 1)) // np.uint64(digest.CHUNK)
    )
    ends = np.uint64(header.tables_offset) + np.cumsum(widths, dtype=np.uint64)
    _first(directory["table"] != ends - widths, directory, header, "its chunk table elsewhere", ask)
    end = int(ends[-1]) if len(ends) else header.tables_offset
    if _up(end, ALIGNMENT) != header.directory_offset:
        ask.refuse("end of the chunk tables", f"{header.directory_offset} when aligned", end)


def _first(
    wrong: npt.NDArray[np.bool_], directory: Directory, header: Header, what: str, ask: Question
) -> None:
    at = np.flatnonzero(wrong)
    if at.size:
        e = directory[at[0]]
        ask.refuse(
            f"shard {_key(e)} lies {what}",
            f"in [{HEADER}, {header.tables_offset}) where docs/format.md says",
            f"offset {e['offset']}, {e['nbytes']} bytes, table at {e['table']}",
        )


def find(directory: Directory, key: tuple[int, int, int]) -> int | None:
    """Return the index of a key (ordinal, owner, start) in a directory, or None."""
    low, high = 0, len(directory)
    while low < high:
        middle = (low + high) // 2
        if _key(directory[middle]) < key:
            low = middle + 1
        else:
            high = middle
    return low if low < len(directory) and _key(directory[low]) == key else None


def find_all(directory: Directory, keys: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the index of each of (n, 3) keys in a directory, -1 for a key that is not there."""
    wanted = np.asarray(keys, np.uint64).reshape(-1, 3)
    mine = _keys(directory["ordinal"], directory["owner"], directory["start"])
    theirs = _keys(wanted[:, 0], wanted[:, 1], wanted[:, 2])
    if not len(mine):
        return np.full(len(theirs), -1, np.int64)
    at = np.minimum(np.searchsorted(mine, theirs), len(mine) - 1)
    return np.where(mine[at] == theirs, at, -1)


def _keys(ordinal: Any, owner: Any, start: Any) -> npt.NDArray[np.bytes_]:
    """Return keys as 16 bytes each, big-endian, so that they sort as the numbers do."""
    keys = np.empty(len(ordinal), np.dtype([("ordinal", ">u4"), ("owner", ">u4"), ("start", ">u8")]))
    keys["ordinal"], keys["owner"], keys["start"] = ordinal, owner, start
    return keys.view("S16")


def _key(entry: Any) -> tuple[int, int, int]:
    return int(entry["ordinal"]), int(entry["owner"]), int(entry["start"])


def padding(header: Header, directory: Directory) -> list[tuple[int, int]]:
    """Return the ranges [start, stop) of a pack that no header, payload, table or entry fills.

    Every byte in them is zero, or the pack is corrupt: a reader of the whole file checks it.
    """
    order = np.argsort(directory["offset"], kind="stable")
    starts = [int(o) for o in directory["offset"][order]] + [header.tables_offset]
    stops = [HEADER] + [int(s) for s in (directory["offset"] + directory["nbytes"])[order]]
    gaps = list(zip(stops, starts, strict=True))
    tables = header.tables_offset
    for nbytes in directory["nbytes"]:
        tables += digest.SIZES[header.algorithm] * digest.chunk_count(int(nbytes))
    gaps.append((tables, header.directory_offset))
    return [(a, b) for a, b in gaps if a < b]


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
