"""Group manifests: what one role names. Normative: docs/format.md.

A *shard record* names one own piece and the digest of its bytes; a *child record* names one child
by role, subtree size, manifest digest and cover digest. The root's manifest also explains the
generation: schema, learner, contract, hierarchy and layout rules.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..model.capture import Prefix


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a shard's bytes lie: the pack of `role` of attempt (epoch, save)."""

    epoch: int
    save: int
    role: int


class ShardRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
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


class RegionDecl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group manifest. `size` counts the roles of the subtree, this one included."""

    kind: str  # "manifest"
    prefix: Prefix
    role: int
    size: int
    shards: tuple[ShardRecord, ...]
    children: tuple[ChildRecord, ...]
    root: Root | None
