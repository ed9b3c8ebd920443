"""Packs: every offset computed before a byte is written, every byte judged when read."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from format.format_values import bounded
from growth import growth
from hypothesis import given
from hypothesis import strategies as st

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format import pack
from alpha_mpi.format.pack import ENTRY, HEADER, Header, PackPlan, Slot, find, find_all, padding

ALGORITHMS = st.sampled_from(("xxh3-128", "sha256"))
sizes = st.integers(1, 200) | st.sampled_from((65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 3 << 20))
slots = st.lists(
    st.builds(Slot, st.integers(0, 5), st.integers(0, 3), st.integers(0, 2**53 - 1), sizes),
    unique_by=lambda s: s[:3],
    max_size=12,
)


def build(plan: PackPlan, payloads: dict[tuple[int, int, int], bytes]) -> bytes:
    """Return the bytes of a pack as docs/format.md puts them together."""
    data = bytearray(plan.size)
    data[:HEADER] = plan.header
    for entry in plan.entries:
        payload = payloads[entry.slot[:3]]
        table = digest.chunks(memoryview(payload), plan.algorithm)
        data[entry.offset : entry.offset + len(payload)] = payload
        data[entry.table_offset : entry.table_offset + len(table)] = table
    data[plan.directory_offset :] = plan.directory
    return bytes(data)


def open_pack(data: bytes) -> tuple[Header, pack.Directory]:
    header = pack.open_header(data[:HEADER], "p", len(data))
    return header, pack.open_directory(header, data[header.directory_offset :], "p")


def judge(data: bytes, named: dict[tuple[int, int, int], tuple[int, str]]) -> None:
    """Refuse a pack that is not whole: what a reader of the whole file does."""
    header, directory = open_pack(data)
    for start, stop in padding(header, directory):
        if any(data[start:stop]):
            raise Refused("padding", code="corrupt-pack")
    for key, (nbytes, name) in named.items():
        at = find(directory, key)
        if at is None or directory[at]["nbytes"] != nbytes:
            raise Refused("missing", code="missing-shard")
        offset, table = int(directory[at]["offset"]), int(directory[at]["table"])
        width = digest.SIZES[header.algorithm] * digest.chunk_count(nbytes)
        found = data[table : table + width]
        payload = data[offset : offset + nbytes]
        if digest.shard("int8", nbytes, found, header.algorithm) != name:
            raise Refused("table", code="corrupt-shard")
        if digest.chunks(memoryview(payload), header.algorithm) != found:
            raise Refused("chunk", code="corrupt-shard")


@bounded
@given(slots, ALGORITHMS, st.booleans())
def test_plans_are_as_the_page_says(drawn: list[Slot], algorithm: str, by_owner: bool) -> None:
    plan = PackPlan.of(drawn, algorithm, by_owner)
    header = pack.open_header(plan.header, "p", plan.size)
    directory = pack.open_directory(header, plan.directory, "p")
    assert [e.slot for e in plan.entries] == sorted(drawn)
    assert (header.algorithm, header.count) == (algorithm, len(drawn))
    assert header.directory_nbytes == len(plan.directory)
    at = HEADER
    rows = {entry.slot: row for entry, row in zip(plan.entries, directory, strict=True)}
    order = sorted(drawn, key=lambda s: (s.owner, s[:3])) if by_owner else sorted(drawn)
    assert [entry.slot for entry in plan.in_file] == order
    for entry in plan.in_file:
        row = rows[entry.slot]
        step = 4096 if entry.slot.nbytes >= 65536 else 64
        assert entry.offset == -(-at // step) * step
        at = entry.offset + entry.slot.nbytes
        assert tuple(row) == (*entry.slot[:3], entry.offset, entry.slot.nbytes, entry.table_offset)
    assert plan.tables_offset == -(-at // 64) * 64
    chunks = sum(digest.chunk_count(s.nbytes) for s in drawn)
    assert plan.tables_nbytes == chunks * digest.SIZES[algorithm]
    assert plan.directory_offset == -(-(plan.tables_offset + plan.tables_nbytes) // 64) * 64
    assert plan.size == plan.directory_offset + 40 * len(drawn)
    covered = sum(s.nbytes for s in drawn) + HEADER + plan.tables_nbytes + len(plan.directory)
    assert covered + sum(b - a for a, b in padding(header, directory)) == plan.size


@bounded
@given(slots, st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 2**53 - 1)))
def test_keys_are_found(drawn: list[Slot], other: tuple[int, int, int]) -> None:
    plan = PackPlan.of(drawn)
    directory = pack.open_directory(pack.open_header(plan.header, "p"), plan.directory, "p")
    keys = [s[:3] for s in drawn]
    for i, key in enumerate(sorted(keys)):
        assert find(directory, key) == i
    asked = [*keys, other, (2**32 - 1, 0, 256)]
    expected = [sorted(keys).index(k) if k in keys else -1 for k in asked]
    assert find_all(directory, asked).tolist() == expected
    assert [find(directory, k) for k in asked] == [None if e < 0 else e for e in expected]


def small() -> tuple[bytes, dict[tuple[int, int, int], tuple[int, str]]]:
    payloads = {(0, 2, 5): b"abc", (0, 2, 70): bytes(range(65)), (1, 2, 0): b"\0" * 64}
    plan = PackPlan.of([Slot(*key, len(p)) for key, p in payloads.items()])
    names = {
        k: (len(p), digest.shard("int8", len(p), digest.chunks(memoryview(p)))) for k, p in payloads.items()
    }
    return build(plan, payloads), names


def test_every_flipped_bit_is_refused() -> None:
    data, names = small()
    judge(data, names)
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        with pytest.raises(Refused):
            judge(bytes(flipped), names)


def test_every_cut_and_every_byte_more_is_refused() -> None:
    data, names = small()
    for n in range(len(data)):
        with pytest.raises(Refused) as caught:
            judge(data[:n], names)
        assert caught.value.code == "truncated"
    for more in (b"\0", b"x" * 100):
        with pytest.raises(Refused) as caught:
            judge(data + more, names)
        assert caught.value.code == "corrupt-pack"


def header_with(**changes: int | bytes) -> bytes:
    """Return the small pack's header with other fields and its own digest repaired."""
    data, _ = small()
    names = ("magic", "version", "chunk", "algorithm", "count", "tables", "directory", "size", "digest")
    values = dict(zip(names, struct.unpack("<8sII16sQQQQ32s", data[:96]), strict=True))
    values.update(changes)
    head = struct.pack("<8sII16sQQQQ32s", *values.values())
    return head + digest.raw(head).ljust(32, b"\0")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"magic": b"\x89AMPK\r\n\x1b"}, "corrupt-pack"),
        ({"version": 2}, "format-version"),
        ({"chunk": 1 << 21}, "corrupt-pack"),
        ({"algorithm": b"md5"}, "corrupt-pack"),
        ({"algorithm": b"\xff\xfe"}, "corrupt-pack"),
        ({"algorithm": b"xxh3-128\0\0x"}, "corrupt-pack"),
        ({"count": 4}, "corrupt-pack"),
        ({"count": 2**60}, "corrupt-pack"),
        ({"tables": 64}, "corrupt-pack"),
        ({"tables": 129}, "corrupt-pack"),
        ({"tables": 2**63}, "corrupt-pack"),
        ({"directory": 128}, "corrupt-pack"),
        ({"size": 2**63, "count": 2**57}, "corrupt-pack"),
        ({"size": 0}, "corrupt-pack"),
        ({"digest": b"x" * 32}, "corrupt-pack"),
    ],
)
def test_a_wrong_header_is_refused(changes: dict[str, int | bytes], code: str) -> None:
    size = len(small()[0])
    assert pack.open_header(header_with(), "p", size).count == 3
    with pytest.raises(Refused) as caught:
        pack.open_header(header_with(**changes), "the-pack", size)
    assert (caught.value.code, caught.value.file) == (code, "the-pack")


def with_directory(**changes: list[int]) -> tuple[Header, bytes]:
    """Return the small pack's header and directory with columns changed, all digests repaired."""
    data, _ = small()
    header, directory = open_pack(data)
    directory = directory.copy()
    for column, values in changes.items():
        directory[column] = values
    raw = directory.tobytes()
    fields = (header.algorithm, header.count, header.tables_offset, header.directory_offset, header.size)
    return Header(*fields, digest.raw(raw)), raw


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"ordinal": [0, 1, 0]}, "out of order"),
        ({"start": [70, 70, 0]}, "out of order"),
        ({"owner": [2, 1, 2]}, "out of order"),
        ({"offset": [0, 192, 320]}, "outside"),
        ({"offset": [128, 192, 384]}, "outside"),
        ({"offset": [128, 192, 2**64 - 64]}, "outside"),
        ({"nbytes": [3, 65, 2**64 - 64]}, "outside"),
        ({"nbytes": [3, 0, 64]}, "outside"),
        ({"offset": [128, 200, 320]}, "not aligned"),
        ({"offset": [128, 256, 320]}, "over another"),
        ({"offset": [192, 192, 320]}, "over another"),
        ({"table": [384, 400, 432]}, "table elsewhere"),
        ({"table": [400, 384, 416]}, "table elsewhere"),
    ],
)
def test_a_wrong_directory_is_refused(changes: dict[str, list[int]], match: str) -> None:
    header, raw = with_directory()
    assert pack.open_directory(header, raw, "p")["offset"].tolist() == [128, 192, 320]
    header, raw = with_directory(**changes)
    with pytest.raises(Refused, match=match) as caught:
        pack.open_directory(header, raw, "the-pack")
    assert (caught.value.code, caught.value.file) == ("corrupt-pack", "the-pack")


def test_a_large_payload_off_its_page_and_tables_that_end_elsewhere_are_refused() -> None:
    plan = PackPlan.of([Slot(0, 0, 0, 65536), Slot(0, 0, 9, 64)])
    header = pack.open_header(plan.header, "p")
    rows = np.frombuffer(plan.directory, ENTRY).copy()
    rows["offset"] = [128, 128 + 65536]
    moved = Header(
        header.algorithm, 2, header.tables_offset, header.directory_offset, header.size, digest.raw(rows)
    )
    with pytest.raises(Refused, match="not aligned"):
        pack.open_directory(moved, rows.tobytes(), "p")
    longer = Header(
        header.algorithm, 2, header.tables_offset, header.directory_offset + 64, header.size + 64,
        header.directory_digest,
    )  # fmt: skip
    with pytest.raises(Refused, match="end of the chunk tables"):
        pack.open_directory(longer, plan.directory, "p")
    with pytest.raises(Refused) as caught:
        pack.open_directory(header, plan.directory[:-1], "p")
    assert caught.value.code == "truncated"
    with pytest.raises(Refused, match="another digest"):
        pack.open_directory(header, plan.directory[::-1], "p")


def test_payloads_in_another_order_are_the_same_pack() -> None:
    # Placement is no part of what a shard is: offsets may be swapped, with the directory's digest.
    data, names = small()
    header, raw = with_directory(offset=[320, 192, 128])
    other = bytearray(data)
    other[128:192], other[320:384] = data[320:384], data[128:192]
    other[header.directory_offset :] = raw
    head = bytearray(data[:96])
    head[64:96] = digest.raw(raw).ljust(32, b"\0")
    other[:HEADER] = bytes(head) + digest.raw(head).ljust(32, b"\0")
    judge(bytes(other), names)


@pytest.mark.parametrize(
    "wrong",
    [
        [Slot(0, 0, 0, 4), Slot(0, 0, 0, 8)],
        [Slot(0, 0, 0, 0)],
        [Slot(-1, 0, 0, 1)],
        [Slot(2**32, 0, 0, 1)],
        [Slot(0, 2**32, 0, 1)],
        [Slot(0, 0, -1, 1)],
        [Slot(0, 0, 0, 2**53)],
    ],
)
def test_a_pack_that_would_be_refused_is_not_planned(wrong: list[Slot]) -> None:
    with pytest.raises(ValueError, match=r"slot|key|large"):
        PackPlan.of(wrong)


def test_100_000_shards_in_one_pack() -> None:
    # benchmarks/shards.py measures the seconds.
    def through(n: int) -> Callable[[], object]:
        slots = [Slot(i // 1000, 3, i % 1000, 80) for i in range(n)]

        def call() -> None:
            plan = PackPlan.of(slots)
            header = pack.open_header(plan.header, "p", plan.size)
            directory = pack.open_directory(header, plan.directory, "p")
            assert (find_all(directory, [e.slot[:3] for e in plan.entries]) == np.arange(n)).all()
            assert len(padding(header, directory)) == n

        return call

    assert growth(through, 10_000, 10) < 3
