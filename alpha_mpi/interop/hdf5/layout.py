"""Layout: what every export holds beside the words: attributes, documents, the table of shards."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from ...canonical import canonical
from ...format.documents import encode_document
from ...format.manifest import Place, piece_of, start_of
from ...model.schema import Region
from ...restore.generation import Generation
from ...restore.packs import Packs, opener
from ...restore.plan import DOCUMENTS, Held
from . import names

TEXT = h5py.string_dtype("utf-8")


class Segment(NamedTuple):
    """One shard's bytes: in `file`, a name below the store, from `offset` on."""

    held: Held
    file: str
    offset: int
    nbytes: int


class Found(NamedTuple):
    """Where all shards lie, by ordinal and in the order of their words; and the size of each file."""

    segments: dict[int, list[Segment]]
    sizes: dict[str, int]


def locate(generation: Generation) -> Found:
    """Return where every shard's bytes lie. Opens each pack once; raises `Refused` for a damaged one."""
    by_place: dict[Place, list[Held]] = {}
    for held in generation.helds():
        by_place.setdefault(held.record.places[0], []).append(held)
    found: dict[int, list[Segment]] = {}
    sizes: dict[str, int] = {}
    for place, helds in by_place.items():
        with generation.present(), Packs(opener(generation.store.data)) as packs:
            pack = packs.open(place)
            starts = [_start(held, generation.regions) for held in helds]
            sizes[pack.path] = pack.header.size
            for held, at in zip(helds, pack.locate([h.record for h in helds], starts), strict=True):
                segment = Segment(held, pack.path, pack.offsets[at], held.record.nbytes)
                found.setdefault(held.record.ordinal, []).append(segment)
    for segments in found.values():
        segments.sort(
            key=lambda s: (s.held.record.owner, 0) if not s.held.record.piece else _key(s, generation)
        )
    return Found(found, sizes)


def _start(held: Held, regions: Sequence[Region]) -> int:
    return start_of(piece_of(held.record.piece), regions[held.record.ordinal].shape)


def _key(segment: Segment, generation: Generation) -> tuple[int, int]:
    return _start(segment.held, generation.regions), segment.held.record.owner


def describe(file: Any, generation: Generation, kind: str, verified: bool) -> None:
    """Write what the root says as attributes of the file."""
    root, prefix, candidate = generation.root, generation.candidate.manifest.prefix, generation.candidate
    said: dict[str, Any] = {
        names.VERSION: 1,
        names.KIND: kind,
        names.GENERATION: candidate.name,
        names.STORE: generation.store.id,
        names.ROOT: candidate.root,
        names.UPDATE: prefix.moment.update,
        names.CURSOR: prefix.moment.cursor,
        names.EPOCH: prefix.moment.epoch,
        names.OWNERS: root.owners,
        names.LEARNER: text_of(root.learner),
        names.CONTRACT: text_of(root.contract),
        names.SCHEMA: prefix.schema,
        names.LAYOUTS: prefix.layout,
        names.COVER: prefix.cover,
        names.VERIFIED: verified,
    }
    if kind == "view":
        said[names.ELSEWHERE] = f"{names.PREFIX_VARIABLE}={names.PREFIX}"
    for name, value in said.items():
        file.attrs[name] = value


def label(dataset: Any, generation: Generation, region: Region, path: str, stored: str) -> None:
    """Write what is known of a region as attributes of its dataset."""
    dataset.attrs[names.ORDINAL] = region.ordinal
    dataset.attrs[names.REGION] = region.kind
    dataset.attrs[names.FORMAT] = region.format
    dataset.attrs[names.LAYOUT] = text_of(generation.root.layouts[region.ordinal])
    if path != region.name:
        dataset.attrs[names.NAME] = json.dumps(region.name)
    if region.kind not in DOCUMENTS:
        dataset.attrs[names.STORED] = stored
    digests = dict(generation.root.replicas)
    if region.ordinal in digests:
        dataset.attrs[names.DIGEST] = digests[region.ordinal]


def write_document(file: Any, generation: Generation, region: Region, path: str) -> Any:
    """Write a document as the text of docs/format.md, section 8: of each owner's own, one per owner."""
    value = generation.document(region.name)
    if region.kind == "document":
        return file.create_dataset(path, data=encode_document(value).decode(), dtype=TEXT)
    texts = [encode_document(one).decode() for one in value]
    return file.create_dataset(path, data=np.array(texts, object), dtype=TEXT)


def write_tables(file: Any, found: Found, folder: str, above: str) -> None:
    """Write which shard lies where, with its digest; and the size of each file.

    File names are relative to `above`, the folder of the export; `folder` is the store.
    """
    row = np.dtype(
        [
            ("ordinal", "<u4"),
            ("owner", "<u4"),
            ("file", TEXT),
            ("offset", "<u8"),
            ("nbytes", "<u8"),
            ("digest", TEXT),
        ]
    )
    rows = [
        (
            s.held.record.ordinal,
            s.held.record.owner,
            relative(folder, s.file, above),
            s.offset,
            s.nbytes,
            s.held.record.digest,
        )
        for _, segments in sorted(found.segments.items())
        for s in segments
    ]
    file.create_dataset(names.SHARDS, data=np.array(rows, row))
    sizes = np.dtype([("file", TEXT), ("size", "<u8")])
    listed = [(relative(folder, name, above), size) for name, size in sorted(found.sizes.items())]
    file.create_dataset(names.FILES, data=np.array(listed, sizes))


def relative(folder: str, name: str, above: str) -> str:
    """Return the name of a file of the store as seen from the folder of an export."""
    return os.path.relpath(os.path.join(folder, name), above)


def text_of(data: Any) -> str:
    """Return JSON data as canonical text."""
    return canonical(data).decode()


def place_file(region: Region) -> str:
    """Return the name of the group of a region's pieces."""
    return f"{names.PIECES}/{region.ordinal}"
