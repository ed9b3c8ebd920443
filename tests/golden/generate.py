"""Writes the golden stores of format version 1, with the format room alone.

``python tests/golden/generate.py``. The store in ``v1/`` holds two generations and what stands
around them, that in ``signed/`` one, signed by `KEY`, that in ``device/`` one of two devices; the
bytes there are those of the first release and never change. If this script ever gives other bytes,
the format changed and needs a new version.
"""

from __future__ import annotations

import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from alpha_mpi import digest
from alpha_mpi.format.claim import (
    Claim,
    Mark,
    StoreFile,
    encode_claim,
    encode_mark,
    encode_store_file,
    root_digest,
)
from alpha_mpi.format.documents import encode_document
from alpha_mpi.format.manifest import (
    ChildRecord,
    DeviceRecord,
    Manifest,
    Place,
    RegionDecl,
    Root,
    ShardRecord,
    cover,
    encode_manifest,
    piece_ints,
    start_of,
)
from alpha_mpi.format.pack import PackPlan, Slot
from alpha_mpi.format.signature import Key
from alpha_mpi.format.signature import Place as Signed
from alpha_mpi.model.capture import Attempt, Moment, Prefix
from alpha_mpi.model.pieces import Box, Interval, Piece

STORE = "000102030405060708090a0b0c0d0e0f"
KEY = bytes(range(32))
NAMES = "a/../name; with\na newline, \u200f\u05d0 and \U0001f600 " + "\u6f22" * 30

SCHEMA = (
    RegionDecl("weights", "array", "bfloat16", (4, 6)),
    RegionDecl("bias", "array", "float32", (5,)),
    RegionDecl(NAMES, "array", "int16", (7,)),
    RegionDecl("scalar", "array", "float64", ()),
    RegionDecl("rng", "per-owner", "uint64", (4,)),
    RegionDecl("schedule", "document", "json", ()),
    RegionDecl("note", "per-owner-document", "json", ()),
    RegionDecl("ragged", "array", "uint8", (10,)),
    RegionDecl("empty", "array", "float32", (0, 3)),
    RegionDecl("page", "array", "uint8", (66000,)),
    RegionDecl("eight", "array", "float8_e4m3fn", (3,)),
    RegionDecl("waves", "array", "complex64", (2, 2, 2)),
    RegionDecl("mask", "array", "bool", (3, 3)),
)
PER_OWNER: dict[str, Any] = {"rule": "per-owner"}
REPLICATED: dict[str, Any] = {"rule": "replicated"}
LEARNER = {
    "inputs": {"seed": 7, "set": "digits"},
    "label": "golden",
    "labels": {},
    "rate": {"$float": (0.01).hex()},
}
CONTRACT = {
    "accumulation": None,
    "combine": "by rank",
    "formats": ["bfloat16", "float32"],
    "labels": {"$$odd": {"$int": str(2**60)}},
    "placement": "free",
    "product": None,
}
SCHEDULE = {
    "$step": 3,
    "betas": [0.9, 0.999],
    "large": 2**53 + 1,
    "limits": [float("inf"), -0.0, float("nan"), 5e-324],
    "name": "warm\nup \u20ac",
}

Own = list[tuple[int, int, Piece | None, bytes]]


def arrays(update: int) -> dict[int, npt.NDArray[Any]]:
    """Return the words of every array region of the generation after `update` updates."""
    base = np.arange(24).reshape(4, 6) / 4 - update
    return {
        0: base.astype(ml_dtypes.bfloat16),
        1: np.linspace(-1, update, 5, dtype="<f4"),
        2: (np.arange(7) * 100 - update).astype("<i2"),
        3: np.array(update / 3, "<f8"),
        7: np.arange(10, dtype="u1") + update,
        8: np.zeros((0, 3), "<f4"),
        9: (np.arange(66000) * 7 % 251).astype("u1"),
        10: np.array([0.5, -448, update], ml_dtypes.float8_e4m3fn),
        11: (np.arange(8) + 1j * update).reshape(2, 2, 2).astype("<c8"),
        12: np.eye(3, dtype=bool),
    }


def words(array: npt.NDArray[Any], piece: Piece) -> bytes:
    """Return the bytes of a piece."""
    if isinstance(piece, Interval):
        return array.reshape(-1)[piece.start : piece.stop].tobytes()
    return array[tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))].tobytes()


def table(data: bytes) -> bytes:
    """Return a chunk table."""
    return digest.chunks(memoryview(data))


class Role:
    """What one role writes: its shards into its pack, and the records that name them."""

    def __init__(self, attempt: Attempt, role: int, own: Own, elsewhere: tuple[ShardRecord, ...] = ()):
        self.attempt, self.role = attempt, role
        key = sorted(own, key=lambda o: (o[0], o[1], start_of(o[2], SCHEMA[o[0]].shape)))
        slots = [Slot(o[0], o[1], start_of(o[2], SCHEMA[o[0]].shape), len(o[3])) for o in key]
        plan = PackPlan.of(slots)
        pack = bytearray(plan.size)
        pack[: len(plan.header)] = plan.header
        pack[plan.directory_offset :] = plan.directory
        records = list(elsewhere)
        here = (Place(attempt.epoch, attempt.save, role),)
        for entry, (ordinal, owner, piece, data) in zip(plan.entries, key, strict=True):
            chunks = table(data)
            pack[entry.offset : entry.offset + len(data)] = data
            pack[entry.table_offset : entry.table_offset + len(chunks)] = chunks
            name = digest.shard(SCHEMA[ordinal].format, len(data), chunks)
            records.append(ShardRecord(ordinal, owner, piece_ints(piece), len(data), name, here))
        self.pack = bytes(pack) if slots else b""
        self.records = tuple(sorted(records, key=lambda r: (r.ordinal, r.owner, r.piece)))


def replicas(held: dict[int, npt.NDArray[Any]], layouts: list[dict[str, Any]]) -> tuple[tuple[int, str], ...]:
    """Return the region digests of the replicated regions."""
    listed = []
    for ordinal, (region, rule) in enumerate(zip(SCHEMA, layouts, strict=True)):
        if rule == REPLICATED:
            data = encode_document(SCHEDULE) if region.kind == "document" else held[ordinal].tobytes()
            listed.append((ordinal, digest.region(region.format, len(data), table(data))))
    return tuple(listed)


def prefix(attempt: Attempt, root: Root, whole: str, update: int) -> Prefix:
    """Return the capture prefix."""
    return Prefix(
        1,
        attempt,
        digest.combine("schema", [[r.name, r.kind, r.format, list(r.shape)] for r in SCHEMA]),
        digest.combine("learner", root.learner),
        digest.combine("contract", root.contract),
        digest.combine("layout", [list(root.layouts), root.owners, root.hierarchy]),
        whole,
        Moment(update, 16 * update, attempt.epoch),
        digest.replicas(text for _, text in root.replicas),
    )


def first() -> dict[str, bytes]:
    """Return the files of generation 1: three owners on a tree, save 2 of epoch 1."""
    attempt, held = Attempt(1, 2), arrays(1)
    layouts: list[dict[str, Any]] = [
        {"axis": 0, "rule": "rows"},
        REPLICATED,
        {"rule": "shares"},
        REPLICATED,
        PER_OWNER,
        REPLICATED,
        PER_OWNER,
        {"rule": "irregular"},
        {"axis": 0, "rule": "rows"},
        {"of": {"rule": "shares"}, "owners": [[2, 3]], "rule": "on"},
        {"of": {"rule": "replicated"}, "owners": [[1, 2]], "rule": "on"},
        {"axis": 1, "rule": "rows"},
        {"axes": [["x", 3]], "rule": "mesh", "split": [None, "x"]},
    ]
    pieces: list[list[tuple[int, Piece]]] = [
        [
            *[(0, Box((0, 0), (2, 6))), (1, Interval(0, 5)), (2, Interval(0, 3)), (3, Interval(0, 1))],
            *[(7, Interval(0, 2)), (7, Interval(7, 10))],
            *[(11, Box((0, 0, 0), (2, 1, 2))), (12, Box((0, 0), (3, 1)))],
        ],
        [
            *[(0, Box((2, 0), (3, 6))), (2, Interval(3, 5)), (7, Interval(2, 7)), (10, Interval(0, 3))],
            *[(11, Box((0, 1, 0), (2, 2, 2))), (12, Box((0, 1), (3, 2)))],
        ],
        [
            *[(0, Box((3, 0), (4, 6))), (2, Interval(5, 7)), (9, Interval(0, 66000))],
            (12, Box((0, 2), (3, 3))),
        ],
    ]
    roles = []
    for k in range(3):
        own: Own = [(i, k, piece, words(held[i], piece)) for i, piece in pieces[k]]
        own.append((4, k, None, np.arange(4 * k, 4 * k + 4, dtype="<u8").tobytes()))
        own.append((6, k, None, encode_document({"owner": k})))
        if k == 0:
            own.append((5, 0, None, encode_document(SCHEDULE)))
        roles.append(Role(attempt, k, own))
    root = Root(
        STORE, 1, None, SCHEMA, tuple(layouts), replicas(held, layouts), 3,
        {"fan_out": 2, "kind": "tree"}, LEARNER, CONTRACT,
    )  # fmt: skip
    covers = [cover(r.records) for r in roles]
    common = prefix(attempt, root, cover(roles[0].records, covers[1:]), 1)
    files, children = {}, []
    for role in roles[1:]:
        data = encode_manifest(Manifest("manifest", common, role.role, 1, role.records, (), None))
        files[f"data/e000001-000002/000/00000{role.role}.manifest.json"] = data
        children.append(ChildRecord(role.role, 1, digest.of(data), covers[role.role]))
    for role in roles:
        files[f"data/e000001-000002/000/00000{role.role}.pack"] = role.pack
    files["published/e000001-000001.json"] = encode_manifest(
        Manifest("manifest", common, 0, 3, roles[0].records, tuple(children), root)
    )
    return files


def second(before: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of generation 2: three owners on a star, save 1 of epoch 2.

    The region ``page`` did not change: its shard is named where generation 1 wrote it.
    """
    attempt, held = Attempt(2, 1), arrays(2)
    layouts: list[dict[str, Any]] = [{"rule": "shares"}, REPLICATED, {"rule": "shares"}, REPLICATED]
    layouts += [PER_OWNER, REPLICATED, PER_OWNER, {"rule": "shares"}, REPLICATED]
    layouts += [{"of": {"rule": "shares"}, "owners": [[2, 3]], "rule": "on"}, REPLICATED, REPLICATED]
    layouts += [{"dims": [3, 1], "rule": "grid"}]
    own: Own = []
    for ordinal, cuts in {0: (0, 8, 16, 24), 2: (0, 3, 5, 7), 7: (0, 4, 7, 10)}.items():
        for k in range(3):
            piece = Interval(cuts[k], cuts[k + 1])
            own.append((ordinal, k, piece, words(held[ordinal], piece)))
    for ordinal in (1, 3, 10, 11):
        every = Interval(0, held[ordinal].size)
        own.append((ordinal, 0, every, words(held[ordinal], every)))
    for k in range(3):
        box = Box((k, 0), (k + 1, 3))
        own.append((12, k, box, words(held[12], box)))
        own.append((4, k, None, np.arange(100 * k, 100 * k + 4, dtype="<u8").tobytes()))
        own.append((6, k, None, encode_document([k, None, True])))
    own.append((5, 0, None, encode_document(SCHEDULE)))
    page = held[9].tobytes()
    name = digest.shard("uint8", len(page), table(page))
    kept = ShardRecord(9, 2, (0, len(page)), len(page), name, (Place(1, 2, 2),))
    role = Role(attempt, 0, own, (kept,))
    root = Root(
        STORE, 1, root_digest(before["published/e000001-000001.json"], "root"), SCHEMA,
        tuple(layouts), replicas(held, layouts), 3, {"kind": "star"}, LEARNER, CONTRACT,
        (0.25).hex(),
    )  # fmt: skip
    common = prefix(attempt, root, cover(role.records), 2)
    return {
        "data/e000002-000001/000/000000.pack": role.pack,
        "published/e000002-000001.json": encode_manifest(
            Manifest("manifest", common, 0, 1, role.records, (), root)
        ),
    }


def device() -> dict[str, bytes]:
    """Return every file of the device store: two owners on a tree, each bound to its very card."""
    attempt, layouts = Attempt(1, 1), ({"rule": "shares"},)
    schema = (RegionDecl("w", "array", "int16", (4,)),)
    contract = {**CONTRACT, "device": "uuid", "product": "NVIDIA H200 + NVIDIA H200 MIG 1g.18gb"}
    root = Root(STORE, 1, None, schema, layouts, (), 2, {"fan_out": 2, "kind": "tree"}, LEARNER, contract)
    card = DeviceRecord(0, "NVIDIA H200", "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "")
    slice_ = DeviceRecord(1, "NVIDIA H200 MIG 1g.18gb", "MIG-0f0e0d0c-0b0a-0908-0706-050403020100", "1g.18gb")
    files, records = {"store.json": encode_store_file(StoreFile(id=STORE))}, []
    for role in range(2):
        data = np.arange(2 * role, 2 * role + 2, dtype="<i2").tobytes()
        plan = PackPlan.of([Slot(0, role, 2 * role, len(data))])
        (entry,) = plan.entries
        pack, chunks = bytearray(plan.size), table(data)
        pack[: len(plan.header)] = plan.header
        pack[plan.directory_offset :] = plan.directory
        pack[entry.offset : entry.offset + len(data)] = data
        pack[entry.table_offset : entry.table_offset + len(chunks)] = chunks
        name = digest.shard("int16", len(data), chunks)
        piece = piece_ints(Interval(2 * role, 2 * role + 2))
        records.append(ShardRecord(0, role, piece, len(data), name, (Place(1, 1, role),)))
        files[f"data/e000001-000001/000/00000{role}.pack"] = bytes(pack)
    below = cover(records[1:])
    common = Prefix(
        1,
        attempt,
        digest.combine("schema", [["w", "array", "int16", [4]]]),
        digest.combine("learner", LEARNER),
        digest.combine("contract", contract),
        digest.combine("layout", [list(layouts), 2, root.hierarchy]),
        cover(records[:1], [below]),
        Moment(1, 16, 1),
        digest.replicas(()),
    )
    child = encode_manifest(Manifest("manifest", common, 1, 1, tuple(records[1:]), (), None, (slice_,)))
    files["data/e000001-000001/000/000001.manifest.json"] = child
    children = (ChildRecord(1, 1, digest.of(child), below),)
    files["published/e000001-000001.json"] = encode_manifest(
        Manifest("manifest", common, 0, 2, tuple(records[:1]), children, root, (card,))
    )
    claim = Claim(store=STORE, epoch=1, continues=None, base=None, nonce="0" * 32, owners=2)
    files["epochs/e000001.json"] = encode_claim(claim)
    return files


def store() -> dict[str, bytes]:
    """Return every file of the golden store, by its path below the store."""
    files = {"store.json": encode_store_file(StoreFile(id=STORE))}
    one = Claim(store=STORE, epoch=1, continues=None, base=None, nonce="0" * 32, owners=3, job="4711")
    files["epochs/e000001.json"] = encode_claim(one)
    files |= first()
    base = root_digest(files["published/e000001-000001.json"], "root")
    two = Claim(
        store=STORE, epoch=2, continues=base, base=(1, 1), nonce="1" * 32, owners=3, job="4711",
        restart=1, host="n\u00f8de-7", skipped=(("e000001-000002", "corrupt-shard"),),
        accepted=(
            ("extra", NAMES, "not needed any more"),
            ("learner", "rate: expected 0.01, found 0.1", "the rate \u03bb is lower from here on"),
        ),
    )  # fmt: skip
    files["epochs/e000002.json"] = encode_claim(two)
    files["published/e000001-000003.json"] = encode_claim(two)
    removed = Mark(kind="removed", store=STORE, entry=(1, 2), root=digest.of(b"gone"))
    files["published/e000001-000002.removed"] = encode_mark(removed)
    pinned = Mark(kind="pinned", store=STORE, entry=(1, 1), root=base)
    files["published/e000001-000001.pinned"] = encode_mark(pinned)
    return files | second(files)


def signed() -> dict[str, bytes]:
    """Return every file of the signed store: one owner, four words, one signed root and claim."""
    algorithm, attempt, key = "sha256", Attempt(1, 1), Key(KEY)
    data = np.arange(4, dtype="<i2").tobytes()
    chunks = digest.chunks(memoryview(data), algorithm)
    plan = PackPlan.of([Slot(0, 0, 0, len(data))], algorithm)
    pack = bytearray(plan.size)
    pack[: len(plan.header)] = plan.header
    pack[plan.directory_offset :] = plan.directory
    [entry] = plan.entries
    pack[entry.offset : entry.offset + len(data)] = data
    pack[entry.table_offset : entry.table_offset + len(chunks)] = chunks
    name = digest.shard("int16", len(data), chunks, algorithm)
    record = ShardRecord(0, 0, (0, 4), len(data), name, (Place(1, 1, 0),))
    region = digest.region("int16", len(data), chunks, algorithm)
    root = Root(
        STORE, 1, None, (RegionDecl("w", "array", "int16", (4,)),), (REPLICATED,), ((0, region),), 1,
        {"kind": "star"}, LEARNER, CONTRACT, None, True,
    )  # fmt: skip
    common = Prefix(
        1,
        attempt,
        digest.combine("schema", [["w", "array", "int16", [4]]], algorithm=algorithm),
        digest.combine("learner", LEARNER, algorithm=algorithm),
        digest.combine("contract", CONTRACT, algorithm=algorithm),
        digest.combine("layout", [[REPLICATED], 1, {"kind": "star"}], algorithm=algorithm),
        cover((record,), (), algorithm),
        Moment(3, 48, 1),
        digest.replicas([region], algorithm),
    )
    claim = Claim(
        store=STORE, epoch=1, continues=None, base=None, nonce="2" * 32, owners=1, job="4712", signed=True
    )
    top = encode_manifest(Manifest("manifest", common, 0, 1, (record,), (), root), algorithm)
    return {
        "store.json": encode_store_file(StoreFile(id=STORE, digest=algorithm)),
        "epochs/e000001.json": key.sign(encode_claim(claim, algorithm), Signed("claim", STORE, 1, 0)),
        "data/e000001-000001/000/000000.pack": bytes(pack),
        "published/e000001-000001.json": key.sign(top, Signed("root", STORE, 1, 1)),
    }


def main() -> None:
    """Write the stores beside this file."""
    for directory, files in (("v1", store()), ("signed", signed()), ("device", device())):
        for name, data in files.items():
            path = pathlib.Path(__file__).parent / directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main()
