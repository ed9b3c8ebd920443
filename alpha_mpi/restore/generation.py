"""Generation: one published generation, read by one process without MPI.

For commands, tests and tools on a login node. Everything read is checked as a restore checks it.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Iterator, MutableMapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import CheckpointError, Refused
from ..format.manifest import ChildRecord, Manifest, Root
from ..model.pieces import Interval, Piece, local_shape
from ..model.schema import Region, Schema
from ..store import names
from ..store.observe import Candidate, Position, candidate, is_removed
from ..store.store import Store
from .apply import apply
from .packs import Packs, opener
from .path import check_whole_root, manifest_file, open_child, read_manifest
from .plan import DOCUMENTS, PER_OWNER, Held, Need, Plan, plan
from .refuse import check_root
from .slices import Lattice, plan_slice, writers
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


def walk(
    store: Store,
    root: Manifest,
    known: MutableMapping[int, Manifest] | None = None,
    roles: Collection[int] | None = None,
) -> Iterator[Node]:
    """Yield every manifest below a root in preorder, each checked against the record above it.

    A manifest that fails comes with its error, and without what lies below it: nothing names that.
    Manifests in `known` are not read again, and those read are added to it. With `roles`, subtrees
    without one of them are left out.
    """
    stack = list(reversed(root.children))
    wanted = None if roles is None else sorted(roles)
    while stack:
        record = stack.pop()
        if wanted is not None:
            at = bisect.bisect_left(wanted, record.role)
            if at == len(wanted) or wanted[at] >= record.role + record.size:
                continue
        file = manifest_file(root.prefix.attempt, record.role)
        manifest = None if known is None else known.get(record.role)
        if manifest is None:
            try:
                data = read_manifest(store, root.prefix.attempt, record.role)
                manifest = open_child(data, record, root, file)
            except (CheckpointError, OSError) as error:
                yield Node(file, record.role, record, None, error)
                continue
            if known is not None:
                known[record.role] = manifest
        yield Node(file, record.role, record, manifest, None)
        stack.extend(reversed(manifest.children))


@dataclasses.dataclass
class Generation:
    """A generation opened for reading: its root, and on demand its manifests, each read once.

    A generation that retention removes meanwhile gives exact words or `Refused`
    ``removed-generation``.
    """

    store: Store
    candidate: Candidate
    schema: Schema
    _helds: tuple[Held, ...] | None = None
    _known: dict[int, Manifest] = dataclasses.field(default_factory=dict)
    _checked: bool = False

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
            self._helds = tuple(self._walk(None))
        return self._helds

    def _walk(self, roles: Collection[int] | None) -> list[Held]:
        """Return the shards that the root and these roles (None: all) name, and some of others."""
        manifest = self.candidate.manifest
        if not self._checked:
            check_whole_root(manifest, root_file(self.candidate.epoch, self.candidate.number))
            self._checked = True
        found = [Held(record, 0) for record in manifest.shards]
        with self.present():
            for node in walk(self.store, manifest, self._known, roles):
                if node.error is not None:
                    raise node.error
                assert node.manifest is not None
                found += [Held(record, node.role) for record in node.manifest.shards]
        return found

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """Tell a failure of what is done inside as ``removed-generation`` where that is why."""
        try:
            yield
        except (CheckpointError, OSError) as error:
            epoch, number = self.candidate.position
            gone = is_removed(self.store, self.candidate.position)
            if gone or not self.store.published.exists(names.entry(epoch, number)):
                raise Refused(
                    "the generation was removed while it was read",
                    code="removed-generation",
                    file=root_file(epoch, number),
                ) from error
            raise

    def words(self, name: str, lattice: Lattice) -> Array:
        """Return the words of a lattice of an array region (`slices.shape_of`), in its shape.

        Reads and checks only the chunks behind them, and only manifests whose subtrees may name
        them. Needs memory for the answer and little else.
        """
        region = self._region(name)
        if region.kind in DOCUMENTS:
            raise KeyError(name)
        near = writers(region, self.root.layouts[region.ordinal], lattice.hull, self.root.owners)

        def make(helds: list[Held]) -> Plan:
            return plan_slice(region, self.regions, lattice, helds, self.root.owners)

        made = self._planned(near, {region.ordinal}, make)
        array: Array = self._do(made, [lattice.counts])[0]
        return array

    def _planned(
        self, near: Collection[int] | None, wanted: Collection[int], make: Callable[[list[Held]], Plan]
    ) -> Plan:
        """Make a plan from the shards of the regions `wanted`: of the owners `near` first, where the
        manifests of the others need not be read, then of all."""
        if near is not None and self._helds is None and self.root.hierarchy.get("kind") == "tree":
            try:
                return make([held for held in self._walk(near) if held.record.ordinal in wanted])
            except Refused as error:
                # A rule only explains: what is not found there may stand elsewhere.
                if error.code != "incomplete-cover":
                    raise
        return make([held for held in self.helds() if held.record.ordinal in wanted])

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
        near: set[int] | None = set()
        for need in needs:
            region = self.regions[need.ordinal]
            likely: Collection[int] | None = (need.owner or 0,)  # of a document owner 0 is the writer
            if need.piece is not None:
                likely = writers(region, self.root.layouts[need.ordinal], need.piece, self.root.owners)
            near = None if near is None or likely is None else near.union(likely)
        made = self._planned(near, wanted, lambda helds: plan(needs, helds, self.regions))
        return self._do(made, shapes)

    def _do(self, made: Plan, shapes: list[tuple[int, ...]]) -> list[Any]:
        """Read and check what a plan says; return the new array or document of each need."""
        got: dict[int, Any] = {}
        with self.present():
            checked = validate(
                made,
                Packs(opener(self.store.data)),
                [Target(None, shape) for shape in shapes],
                Staging(),
                lambda ordinal: False,
            )
            give = [functools.partial(got.__setitem__, n) for n in range(len(shapes))]
            apply(checked, give)
        return [got[n] for n in range(len(shapes))]
