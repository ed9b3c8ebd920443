"""Generation: one published generation, read by one process without MPI.

For commands, tests and tools on a login node. Everything read is checked as a restore checks it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import CheckpointError
from ..format.manifest import ChildRecord, Manifest, Root
from ..model.pieces import Interval, Piece, local_shape
from ..model.schema import Region, Schema
from ..store import names
from ..store.observe import Candidate, Position, candidate
from ..store.store import Store
from .apply import apply
from .packs import Packs, opener
from .path import check_whole_root, manifest_file, open_child, read_manifest
from .plan import DOCUMENTS, PER_OWNER, Held, Need, plan
from .refuse import check_root
from .staging import Array, Staging, fresh
from .validate import Target, validate


class Node(NamedTuple):
    """One manifest of a tree, or why it cannot be believed. `record` is None for the root."""

    file: str
    role: int
    record: ChildRecord | None
    manifest: Manifest | None
    error: CheckpointError | OSError | None


def root_file(epoch: int, number: int) -> str:
    """Return the name below the store of an entry."""
    return os.path.join(names.PUBLISHED, names.entry(epoch, number))


def walk(store: Store, root: Manifest) -> Iterator[Node]:
    """Yield every manifest below a root in preorder, each checked against the record above it.

    A manifest that fails comes with its error, and without what lies below it: nothing names that.
    """
    stack = list(reversed(root.children))
    while stack:
        record = stack.pop()
        file = manifest_file(root.prefix.attempt, record.role)
        try:
            data = read_manifest(store, root.prefix.attempt, record.role)
            manifest = open_child(data, record, root, file)
        except (CheckpointError, OSError) as error:
            yield Node(file, record.role, record, None, error)
            continue
        yield Node(file, record.role, record, manifest, None)
        stack.extend(reversed(manifest.children))


@dataclasses.dataclass
class Generation:
    """A generation opened for reading: its root, and on demand all its manifests.

    Arrays are assembled whole in this process's memory.
    """

    store: Store
    candidate: Candidate
    schema: Schema
    _helds: tuple[Held, ...] | None = None

    @classmethod
    def open(cls, store: Store, epoch: int, number: int) -> Generation:
        """Open entry `number` of `epoch`; reads its root. Raises `Refused`."""
        found = candidate(store, Position(epoch, number))
        file = root_file(epoch, number)
        return cls(store, found, check_root(found.manifest, file))

    @property
    def root(self) -> Root:
        """What only the root says."""
        assert self.candidate.manifest.root is not None
        return self.candidate.manifest.root

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions, in the order of the schema."""
        return self.schema.regions

    def helds(self) -> tuple[Held, ...]:
        """Return every shard record; reads every manifest once. Raises as `path.open_child`."""
        if self._helds is None:
            manifest, file = self.candidate.manifest, root_file(self.candidate.epoch, self.candidate.number)
            check_whole_root(manifest, file)
            found = [Held(record, 0) for record in manifest.shards]
            for node in walk(self.store, manifest):
                if node.error is not None:
                    raise node.error
                assert node.manifest is not None
                found += [Held(record, node.role) for record in node.manifest.shards]
            self._helds = tuple(found)
        return self._helds

    def array(self, name: str, owner: int | None = None) -> Array:
        """Return a whole region as a new array; raises `KeyError` for a name that is no array.

        Of a per-owner region the array of `owner`, or all of them along a leading owner axis.
        """
        region = self._region(name)
        if region.kind in DOCUMENTS:
            raise KeyError(name)
        if region.kind in PER_OWNER:
            owners = range(self.root.owners) if owner is None else (owner,)
            if not region.size:
                found = [fresh(region.shape, region.format) for _ in owners]
            else:
                found = self._read(
                    [Need(region.ordinal, k, None) for k in owners], [region.shape] * len(owners)
                )
            return np.stack(found) if owner is None else found[0]
        if not region.size:
            return fresh(region.shape, region.format)
        return self.piece(name, Interval(0, region.size)).reshape(region.shape)

    def piece(self, name: str, piece: Piece) -> Array:
        """Return some words of an array region, in the piece's own shape."""
        region = self._region(name)
        found: Array = self._read([Need(region.ordinal, None, piece)], [local_shape(piece)])[0]
        return found

    def document(self, name: str, owner: int | None = None) -> Any:
        """Return a document's value; of a per-owner document that of `owner`, or a list of all."""
        region = self._region(name)
        if region.kind not in DOCUMENTS:
            raise KeyError(name)
        if region.kind == "document":
            return self._read([Need(region.ordinal, None, None)], [()])[0]
        owners = range(self.root.owners) if owner is None else (owner,)
        found = self._read([Need(region.ordinal, k, None) for k in owners], [()] * len(owners))
        return found if owner is None else found[0]

    @property
    def documents(self) -> dict[str, Any]:
        """Every document by name."""
        return {r.name: self.document(r.name) for r in self.regions if r.kind in DOCUMENTS}

    def _region(self, name: str) -> Region:
        region = self.schema.named(name)
        if region is None:
            raise KeyError(name)
        return region

    def _read(self, needs: list[Need], shapes: list[tuple[int, ...]]) -> list[Any]:
        wanted = {need.ordinal for need in needs}
        helds = [held for held in self.helds() if held.record.ordinal in wanted]
        made = plan(needs, helds, self.regions)
        got: dict[int, Any] = {}
        checked = validate(
            made,
            Packs(opener(self.store.data)),
            [Target(None, shape) for shape in shapes],
            Staging(),
            lambda ordinal: False,
        )
        apply(checked, [lambda value, n=n: got.__setitem__(n, value) for n in range(len(needs))])  # type: ignore[misc]
        return [got[n] for n in range(len(needs))]
