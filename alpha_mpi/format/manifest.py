"""Group manifests: what one role names. Normative: docs/format.md, section 7.

A *shard record* names one own piece and the digest of its bytes; a *child record* names one child
by role, subtree size, manifest digest and cover digest. The root's manifest also explains the
generation: schema, learner, contract, hierarchy and layout rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from .. import digest
from ..model.capture import Prefix
from ..model.pieces import Box, Interval, Piece
from . import body, columns, valid
from .envelope import MANIFEST_LIMIT, open_envelope, seal


class Place(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Where a shard's bytes lie: the pack of `role` of attempt (epoch, save)."""

    epoch: int
    save: int
    role: int


class ShardRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One own piece: [ordinal, owner, piece, nbytes, digest, places].

    `piece` is [start, stop] for an Interval, [rank, *starts, *stops] for a Box (odd length), and
    [] for the whole of a per-owner region or a document. `places` lists where the bytes lie.
    Records are ordered by (ordinal, owner, start).
    """

    ordinal: int
    owner: int
    piece: tuple[int, ...]
    nbytes: int
    digest: str
    places: tuple[Place, ...]


class ChildRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One child: [role, subtree size, digest of its whole manifest file, cover digest]."""

    role: int
    size: int
    manifest: str
    cover: str


class DeviceRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One device on which an owner's words lay: [owner, product, UUID, MIG profile or ""]."""

    owner: int
    product: str
    uuid: str
    mig: str


class RegionDecl(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One region of the schema. `kind`: array, per-owner, document, per-owner-document.

    Documents have format "json" and shape [].
    """

    name: str
    kind: str
    format: str
    shape: tuple[int, ...]


class Root(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What only the root says: rules and names, never per-role lists."""

    store: str  # store id
    entry: int
    continues: str | None  # root digest of the generation before this one in the lineage
    schema: tuple[RegionDecl, ...]
    layouts: tuple[Any, ...]  # one rule per region, as JSON data (model/layout.py)
    replicas: tuple[tuple[int, str], ...]  # (ordinal, region digest) of every replicated region
    owners: int
    hierarchy: dict[str, Any]  # {"kind": "star"} or {"fan_out": 4, "kind": "tree"}
    learner: dict[str, Any]  # model/identity.py, as JSON data
    contract: dict[str, Any]
    score: str | None = None  # a user's number, as `float.hex` writes it; for retention alone
    signed: bool = False  # whether the file has a signature line


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group manifest. `size` counts the roles of the subtree, this one included."""

    kind: str  # "manifest"
    prefix: Prefix
    role: int
    size: int
    shards: tuple[ShardRecord, ...]
    children: tuple[ChildRecord, ...]
    root: Root | None
    #: Of the owners whose shards it names, where the contract binds devices and there are any.
    devices: tuple[DeviceRecord, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def recorded(self) -> tuple[DeviceRecord, ...]:
        """The device records; none where the field is left out."""
        return () if self.devices is msgspec.UNSET else self.devices

    def devices_of(self, owner: int) -> tuple[DeviceRecord, ...]:
        """Return the devices of one owner."""
        return tuple(device for device in self.recorded if device.owner == owner)


class Table(NamedTuple):
    """The shard records that one role writes, in columns and in their order: all in the same places."""

    pieces: columns.Pieces
    nbytes: Sequence[int]
    digests: Sequence[str]
    places: tuple[Place, ...]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the fields of each record."""
        own, places = self.pieces, itertools.repeat(self.places, len(self.pieces))
        return zip(own.ordinals, own.owners, own.ints, self.nbytes, self.digests, places, strict=True)


_DECODER = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest, algorithm: str = digest.DEFAULT, table: Table | None = None) -> bytes:
    """Return the bytes of the manifest's file.

    Called by each role before it commits. With a `table` its records stand for `manifest.shards`.
    Raises `Refused` (`corrupt-manifest`, `corrupt-root`) rather than return a file that
    `decode_manifest` would refuse.
    """
    code = "corrupt-manifest" if manifest.root is None else "corrupt-root"
    shards: Any = manifest.shards
    if table is not None:
        shards = list(table.rows())
        # Where all are sound in columns one of them is looked at, for the places.
        sound = columns.are_sound(table.pieces, table.nbytes, table.digests)
        judged = tuple([ShardRecord(*row) for row in (shards[:1] if sound else shards)])
        manifest = msgspec.structs.replace(manifest, shards=judged)
    valid.check_manifest(manifest, file="(being written)", code=code)
    root: Any = manifest.root
    if root is not None:
        root = msgspec.structs.replace(root, schema=msgspec.Raw(valid.schema_body(root)))
    return seal(body.encode_body(msgspec.structs.replace(manifest, shards=shards, root=root)), algorithm)


def decode_manifest(
    data: bytes, file: str, *, code: str = "corrupt-manifest", limit: int = MANIFEST_LIMIT
) -> tuple[Manifest, str]:
    """Return (manifest, digest of its body) of a whole manifest file, root or not.

    The manifest returned is valid by itself: numbers, names, digests, order and preorder of the
    children. Whether it is the one its parent named is the caller's question (docs/format.md,
    section 12). Raises `Refused` with `code`, `truncated`, `too-large` or `format-version`.
    """
    text, found = open_envelope(data, file=file, limit=limit, code=code)
    body.kind_of(text, ("manifest",), file=file, code=code)
    return decode_manifest_body(text, file=file, code=code), found


def decode_manifest_body(text: bytes, *, file: str, code: str) -> Manifest:
    """Return the manifest of a body whose digest, kind and version have been checked."""
    manifest = body.decode_body(text, _DECODER, file=file, code=code)
    valid.check_manifest(manifest, file=file, code=code)
    return manifest


def piece_ints(piece: Piece | None) -> tuple[int, ...]:
    """Return a piece as a record writes it; None is the whole of a per-owner region or document."""
    if piece is None:
        return ()
    if isinstance(piece, Interval):
        return (piece.start, piece.stop)
    return (len(piece.starts), *piece.starts, *piece.stops)


def piece_of(ints: Sequence[int]) -> Piece | None:
    """Return the piece a record's integers say. Raises `ValueError` if they say none."""
    wrong = valid.piece_fault(ints)
    if wrong:
        raise ValueError(f"{list(ints)[:9]}: {wrong}")
    if not ints:
        return None
    if len(ints) == 2:
        return Interval(ints[0], ints[1])
    rank = ints[0]
    return Box(tuple(ints[1 : rank + 1]), tuple(ints[rank + 1 :]))


def start_of(piece: Piece | None, shape: Sequence[int]) -> int:
    """Return the index of the piece's first word in the flattened C order; 0 for a whole."""
    if piece is None:
        return 0
    if isinstance(piece, Interval):
        return piece.start
    start = 0
    for at, extent in zip(piece.starts, shape, strict=True):
        start = start * extent + at
    return start


def start_in(ints: Sequence[int], shape: Sequence[int]) -> int:
    """Return what `start_of` gives for the piece a record's integers say, known to be one inside
    the shape: a role may hold a hundred thousand."""
    if len(ints) <= 2:
        return ints[0] if ints else 0
    if ints[0] == 1:
        return ints[1]
    start = 0
    for at, extent in zip(ints[1 : ints[0] + 1], shape, strict=True):
        start = start * extent + at
    return start


def cover(
    own: Table | Iterable[ShardRecord | tuple[int, int, Piece | None]],
    child_covers: Iterable[str] = (),
    algorithm: str = digest.DEFAULT,
) -> str:
    """Return the cover digest of a role: of its own pieces in order and its children's covers.

    `own` are its shard records, or (ordinal, owner, piece) in the order of the records.
    Same digest as ``combine("cover", [own, child covers])``, at the speed a large role needs.
    """
    pieces: Any
    if isinstance(own, Table):
        pieces = own.pieces.body
    else:
        pieces = [
            (r.ordinal, r.owner, r.piece) if isinstance(r, ShardRecord) else (r[0], r[1], piece_ints(r[2]))
            for r in own
        ]
    h = digest.hasher(algorithm)
    h.update(body.encode_body(["cover", [pieces, tuple(child_covers)]]))
    h.update(b"\n")
    return digest.text(h.digest(), algorithm)
