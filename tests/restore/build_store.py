"""Builds a store file by file with the format room alone, so that restore is tested by itself."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np

from alpha_mpi import digest
from alpha_mpi.format import (
    ChildRecord,
    Claim,
    Manifest,
    PackPlan,
    Place,
    RegionDecl,
    Root,
    ShardRecord,
    Slot,
    StoreFile,
    cover,
    encode_claim,
    encode_document,
    encode_manifest,
    encode_store_file,
    piece_ints,
    start_of,
)
from alpha_mpi.model import Attempt, Contract, Learner, Moment, Prefix, Schema, formats, layout
from alpha_mpi.model.pieces import Box, Interval
from alpha_mpi.protocol import hierarchy as h
from alpha_mpi.store import names

STORE = "0123456789abcdef0123456789abcdef"


@dataclasses.dataclass
class Built:
    path: pathlib.Path
    epoch: int
    entry: int
    root: str  # root digest
    schema: Schema
    rules: list[Any]
    manifests: dict[int, Manifest]
    algorithm: str

    @property
    def root_file(self) -> pathlib.Path:
        return self.path / names.PUBLISHED / names.entry(self.epoch, self.entry)

    def data_file(self, role: int, kind: str) -> pathlib.Path:
        attempt = names.attempt(self.manifests[0].prefix.attempt)
        name = names.pack(role) if kind == "pack" else names.manifest(role)
        return self.path / names.DATA / attempt / names.group(role) / name

    def files(self) -> list[pathlib.Path]:
        """The root, every group manifest and every pack of the generation."""
        found = [self.root_file]
        for role in sorted(self.manifests):
            found += [self.data_file(role, "manifest")] if role else []
            found += [self.data_file(role, "pack")] if self.manifests[role].shards else []
        return found


def take(array: np.ndarray, piece: Any) -> np.ndarray:
    """The words of a piece, flattened."""
    if piece is None:
        return np.ascontiguousarray(array).reshape(-1)
    if isinstance(piece, Interval):
        return np.ascontiguousarray(array).reshape(-1)[piece.start : piece.stop]
    assert isinstance(piece, Box)
    index = tuple(slice(a, b) for a, b in zip(piece.starts, piece.stops, strict=True))
    return np.ascontiguousarray(array[index]).reshape(-1)


def build(
    path: pathlib.Path,
    regions: list[tuple[str, str, str, tuple[int, ...]]],
    rules: list[Any],
    values: list[Any],
    *,
    owners: int = 4,
    hierarchy: Any = None,
    epoch: int = 1,
    save: int = 1,
    entry: int = 1,
    update: int = 10,
    algorithm: str = digest.DEFAULT,
    irregular: dict[int, list[list[Any]]] | None = None,
    dealt: int = 64 << 20,
    gap: int = 0,
    change: Any = None,
) -> Built:
    """Write one generation. `values`: a global array, a list of per-owner arrays or documents, or a
    document. `change(role, manifest)` may return another manifest, whose digests then count."""
    hierarchy = h.Tree(2) if hierarchy is None else hierarchy
    schema = Schema.of(regions)
    attempt = Attempt(epoch, save)
    roles = h.roles(hierarchy, owners)
    own: dict[int, list[tuple[int, int, Any, bytes]]] = {role: [] for role in range(roles)}
    replicas = []
    for region, rule, value in zip(schema.regions, rules, values, strict=True):
        ordinal = region.ordinal
        for owner in range(owners):
            role = h.role_of(hierarchy, owner)
            if region.kind == "document":
                if owner == 0:
                    data = encode_document(value)
                    own[role].append((ordinal, owner, None, data))
                    replicas.append((ordinal, replica("json", data, algorithm)))
                continue
            if region.kind == "per-owner-document":
                own[role].append((ordinal, owner, None, encode_document(value[owner])))
                continue
            fmt = formats.by_name(region.format)
            if region.kind == "per-owner":
                pieces = [None]
                array = value[owner]
            elif isinstance(rule, layout.Replicated):
                array = value
                everything = bytes(formats.payload(array, fmt))
                if owner == 0:
                    replicas.append((ordinal, replica(region.format, everything, algorithm)))
                    if not everything:
                        continue
                pieces = []
                if everything and len(everything) >= dealt and not isinstance(hierarchy, h.Star):
                    who = [0, *(r for r, _ in h.place(hierarchy, owners, 0).children)]
                    if owner in who:
                        a, b = layout.share(digest.chunk_count(len(everything)), len(who), who.index(owner))
                        step = digest.CHUNK // fmt.itemsize
                        pieces = [Interval(min(a * step, region.size), min(b * step, region.size))]
                elif owner == 0 and everything:
                    pieces = [Interval(0, region.size)]
            elif isinstance(rule, layout.Irregular):
                array, pieces = value, (irregular or {})[ordinal][owner]
            else:
                array = value
                group = rule.group(region.shape, owners, owner)
                pieces = list(rule.pieces(region.shape, owners, owner)) if group and group[0] == owner else []
            for piece in pieces:
                data = bytes(formats.payload(take(array, piece), fmt))
                if data:
                    own[role].append((ordinal, owner, piece, data))
    for shards in own.values():
        shards.sort(key=lambda s: (s[0], s[1], start_of(s[2], schema.regions[s[0]].shape)))
    covers = covers_of(hierarchy, owners, own, algorithm)
    moment = Moment(update, update, epoch)
    learner = Learner("test")
    contract = Contract().resolved(schema)
    rules_data = [r.as_data() for r in rules]
    hierarchy_data = (
        {"kind": "star"} if isinstance(hierarchy, h.Star) else {"kind": "tree", "fan_out": hierarchy.fan_out}
    )
    prefix = Prefix(
        version=1,
        attempt=attempt,
        schema=schema.digest(algorithm),
        learner=learner.digest(algorithm),
        contract=contract.digest(algorithm),
        layout=digest.combine("layout", [rules_data, owners, hierarchy_data], algorithm=algorithm),
        cover=covers[0],
        moment=moment,
        replicas=digest.replicas((d for _, d in replicas), algorithm),
    )
    for name in (names.EPOCHS, names.PUBLISHED, names.DATA):
        (path / name).mkdir(parents=True, exist_ok=True)
    (path / names.STORE_FILE).write_bytes(encode_store_file(StoreFile(id=STORE, digest=algorithm)))
    claim = Claim(store=STORE, epoch=epoch, continues=None, base=None, nonce="0" * 32, owners=owners)
    (path / names.EPOCHS / names.claim(epoch)).write_bytes(encode_claim(claim, algorithm))
    manifests: dict[int, Manifest] = {}
    records: dict[int, ChildRecord] = {}
    root_digest = ""
    for role in reversed(range(roles)):
        place = h.place(hierarchy, owners, role)
        shards = write_pack(path, attempt, role, own[role], schema, algorithm)
        root = None
        if role == 0:
            root = Root(
                store=STORE,
                entry=entry,
                continues=None,
                schema=tuple(RegionDecl(r.name, r.kind, r.format, r.shape) for r in schema.regions),
                layouts=tuple(rules_data),
                replicas=tuple(replicas),
                owners=owners,
                hierarchy=hierarchy_data,
                learner=learner.as_data(),
                contract=contract.as_data(),
            )
        manifest = Manifest(
            kind="manifest",
            prefix=prefix,
            role=role,
            size=place.size,
            shards=tuple(shards),
            children=tuple(records[child] for child, _ in place.children),
            root=root,
        )
        if change is not None:
            manifest = change(role, manifest) or manifest
        data = encode_manifest(manifest, algorithm)
        manifests[role] = manifest
        records[role] = ChildRecord(role, manifest.size, digest.of(data, algorithm), covers[role])
        if role == 0:
            target = path / names.PUBLISHED / names.entry(epoch, entry)
            root_digest = data.splitlines()[1].decode()
        else:
            target = directory(path, attempt, role) / names.manifest(role)
        target.write_bytes(data)
    return Built(path, epoch, entry, root_digest, schema, rules, manifests, algorithm)


def replica(format: str, data: bytes, algorithm: str) -> str:
    return digest.region(format, len(data), digest.chunks(memoryview(data), algorithm), algorithm)


def covers_of(hierarchy: Any, owners: int, own: Any, algorithm: str) -> dict[int, str]:
    covers: dict[int, str] = {}
    for role in reversed(range(h.roles(hierarchy, owners))):
        pieces = [(ordinal, owner, piece) for ordinal, owner, piece, _ in own[role]]
        children = [covers[child] for child, _ in h.place(hierarchy, owners, role).children]
        covers[role] = cover(pieces, children, algorithm)
    return covers


def directory(path: pathlib.Path, attempt: Attempt, role: int) -> pathlib.Path:
    made = path / names.DATA / names.attempt(attempt) / names.group(role)
    os.makedirs(made, exist_ok=True)
    return made


def write_pack(
    path: pathlib.Path, attempt: Attempt, role: int, shards: Any, schema: Schema, algorithm: str
) -> list[ShardRecord]:
    """Write one role's pack (none without shards); return its records."""
    place = (Place(attempt.epoch, attempt.save, role),)
    slots, records, payloads, tables = [], [], {}, {}
    for ordinal, owner, piece, data in shards:
        region = schema.regions[ordinal]
        start = start_of(piece, region.shape)
        slots.append(Slot(ordinal, owner, start, len(data)))
        table = digest.chunks(memoryview(data), algorithm)
        payloads[ordinal, owner, start], tables[ordinal, owner, start] = data, table
        named = digest.shard(region.format, len(data), table, algorithm)
        records.append(ShardRecord(ordinal, owner, piece_ints(piece), len(data), named, place))
    if not slots:
        return []
    plan = PackPlan.of(slots, algorithm)
    file = bytearray(plan.size)
    file[: len(plan.header)] = plan.header
    for slot, offset, table_offset in plan.entries:
        data, table = payloads[slot[:3]], tables[slot[:3]]
        file[offset : offset + len(data)] = data
        file[table_offset : table_offset + len(table)] = table
    file[plan.directory_offset :] = plan.directory
    (directory(path, attempt, role) / names.pack(role)).write_bytes(file)
    return records


def values_of(regions: list[tuple[str, str, str, tuple[int, ...]]], owners: int, seed: int = 0) -> list[Any]:
    """Random finite values for `build`, one per region."""
    rng = np.random.default_rng(seed)

    def array(format: str, shape: tuple[int, ...]) -> np.ndarray:
        fmt = formats.by_name(format)
        return rng.integers(0, 100, shape).astype(fmt.dtype)

    made: list[Any] = []
    for name, kind, format, shape in regions:
        if kind == "document":
            made.append({"name": name, "value": 0.5})
        elif kind == "per-owner-document":
            made.append([{"owner": k} for k in range(owners)])
        elif kind == "per-owner":
            made.append([array(format, shape) for _ in range(owners)])
        else:
            made.append(array(format, shape))
    return made
