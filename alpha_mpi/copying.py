"""Copying: a generation of one store published in another one, as a generation of its own there.

A *copy* holds the same words on the same placement, at the same update and cursor; attempt, epoch,
entry and store are the destination's. Every byte is checked as it is read, every digest is made
anew, and the order of writing is that of a save: packs, manifests, root.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

from . import digest
from .errors import CheckpointError, Refused
from .format import signature
from .format.manifest import (
    ChildRecord,
    Manifest,
    Place,
    Root,
    ShardRecord,
    cover,
    encode_manifest,
    piece_of,
    start_of,
)
from .format.pack import PackPlan, Slot
from .model.capture import Attempt, Moment, Prefix
from .model.identity import Contract, Learner
from .model.schema import Schema
from .restore import choose
from .restore.generation import root_file, walk
from .restore.packs import PackReader, Packs, opener
from .restore.refuse import schema_of
from .restore.verify import verify
from .store import entries, leftovers, names, space
from .store.durable import Target, commit_bytes
from .store.observe import Candidate, Position
from .store.store import Store

Progress = Callable[[int, int], None]
#: Ordinal, owner and start of a shard.
Key = tuple[int, int, int]


class Copied(NamedTuple):
    """What was published: entry and root digest in the destination, and the bytes of its shards."""

    position: Position
    root: str
    nbytes: int


def check_source(store: Store, chosen: Candidate, progress: Progress | None = None) -> None:
    """Raise what is wrong with a generation, once every byte of it was read."""
    report = verify(store, *chosen.position, progress)
    if report.problems:
        raise report.problems[0]


def check_destination(seen: choose.Survey, store: Store, chosen: Candidate, offline: bool) -> None:
    """Refuse a destination that this generation cannot continue.

    Raises `Refused`: ``same-store``, ``open-epoch`` without `offline` where a job may run,
    ``other-learner``, ``other-contract``, ``schema-differs``, ``stale-update``, ``reset-cursor``.
    """
    mine = chosen.manifest.root
    assert mine is not None
    if store.id == mine.store:
        raise Refused("source and destination are one store", code="same-store", file=store.path)
    if seen.damage is not None:
        raise seen.damage
    if seen.epoch and not offline:
        raise Refused(
            "the destination has been used, and a job that uses it would be superseded; --offline "
            "says that none runs",
            code="open-epoch",
            file=store.path,
        )
    if seen.newest is None:
        return
    theirs = seen.newest.manifest.root
    assert theirs is not None
    file = root_file(*seen.newest.position)
    lines = schema_of(mine).difference(schema_of(theirs))
    codes = [("schema-differs", lines)]
    codes.append(
        ("other-learner", Learner.from_data(mine.learner).difference(Learner.from_data(theirs.learner)))
    )
    codes.append(
        ("other-contract", Contract.from_data(mine.contract).difference(Contract.from_data(theirs.contract)))
    )
    for code, differences in codes:
        if differences:
            raise Refused(
                f"the destination holds another line: {'; '.join(differences)}", code=code, file=file
            )
    old, new = seen.newest.manifest.prefix.moment, chosen.manifest.prefix.moment
    if new.update <= old.update or new.cursor < old.cursor:
        raise Refused(
            "a generation continues the newest one of its store, with a later update",
            code="stale-update" if new.update <= old.update else "reset-cursor",
            file=file,
            expected=f"above update {old.update}, cursor {old.cursor}",
            found=f"update {new.update}, cursor {new.cursor}",
        )


def copy(
    source: Store, chosen: Candidate, destination: Store, offline: bool, progress: Progress | None = None
) -> Copied:
    """Publish a copy of `chosen`, which `check_source` has let pass; durable when it returns.

    Takes the next epoch of `destination`. Raises as `check_destination`; `Refused` for what changed
    since it was checked, `CommitFailed` ``no-space``, `OSError` where the disk says no; then nothing
    is published there.
    """
    seen = choose.survey(destination)
    check_destination(seen, destination, chosen, offline)
    manifests = [chosen.manifest]
    for node in walk(source, chosen.manifest):
        if node.error is not None:
            raise node.error
        assert node.manifest is not None
        manifests.append(node.manifest)
    nbytes = sum(record.nbytes for manifest in manifests for record in manifest.shards)
    space.demand_of(destination, nbytes + (nbytes >> 15) + 16384 * len(manifests))
    root = chosen.manifest.root
    assert root is not None
    facts = choose.Facts(
        owners=root.owners, job=f"copy of {chosen.name} of store {source.id}", host=socket.gethostname()
    )
    taken = choose.continuation(destination, seen, seen.newest, facts)
    if isinstance(taken, choose.Newer):
        raise Refused("a job published there meanwhile", code="open-epoch", file=destination.path)
    attempt = Attempt(taken.epoch, 1)
    made = _Copy(source, destination, manifests, attempt, progress, nbytes)
    try:
        name = made.publish(None if seen.newest is None else seen.newest.root)
    except BaseException:
        if not destination.published.exists(names.entry(taken.epoch, 1)):
            leftovers.remove_attempt(destination, attempt)
        raise
    return Copied(Position(taken.epoch, 1), name, nbytes)


@dataclasses.dataclass
class _Copy:
    """One copy under way. `manifests` are the source's, in preorder, the root's first."""

    source: Store
    destination: Store
    manifests: list[Manifest]
    attempt: Attempt
    progress: Progress | None
    total: int

    def __post_init__(self) -> None:
        self.algorithm = self.destination.algorithm
        root = self.manifests[0].root
        assert root is not None
        self.root = root
        self.schema: Schema = schema_of(root)
        self.done = 0
        self.tables: dict[Key, bytes] = {}
        self.covers = self._covers()

    def _covers(self) -> dict[int, str]:
        covers: dict[int, str] = {}
        for manifest in reversed(self.manifests):
            below = [covers[child.role] for child in manifest.children]
            covers[manifest.role] = cover(manifest.shards, below, self.algorithm)
        return covers

    def publish(self, continues: str | None) -> str:
        """Write everything, the root last; return its digest."""
        listed = dict(self.root.replicas)
        same = all(text.partition(":")[0] == self.algorithm for text in listed.values())
        prefix = self._prefix(tuple(listed.items())) if same else None
        records: dict[int, tuple[ShardRecord, ...]] = {}
        # Packs first where the replicas' digests, which every manifest holds, must be made anew.
        for manifest in reversed(self.manifests):
            records[manifest.role] = self._pack(manifest)
        replicas = tuple(listed.items()) if same else self._replicas()
        prefix = prefix or self._prefix(replicas)
        children: dict[int, ChildRecord] = {}
        for manifest in reversed(self.manifests):
            role = manifest.role
            below = tuple(children[child.role] for child in manifest.children)
            root = None
            if role == 0:
                root = Root(
                    store=self.destination.id,
                    entry=1,
                    continues=continues,
                    schema=self.root.schema,
                    layouts=self.root.layouts,
                    replicas=replicas,
                    owners=self.root.owners,
                    hierarchy=self.root.hierarchy,
                    learner=self.root.learner,
                    contract=self.root.contract,
                    score=self.root.score,
                    signed=self.destination.key is not None,
                )
            new = Manifest(
                "manifest", prefix, role, manifest.size, records[role], below, root, manifest.devices
            )
            data = encode_manifest(new, self.algorithm)
            if root is not None:
                return entries.publish(self.destination, self.attempt.epoch, 1, data)
            with self.destination.files_of(self.attempt, role, create=True) as directory:
                commit_bytes(directory, names.manifest(role), data)
            name = digest.of(data, self.algorithm)
            children[role] = ChildRecord(role, manifest.size, name, self.covers[role])
        raise AssertionError("a generation has a root")

    def _prefix(self, replicas: tuple[tuple[int, str], ...]) -> Prefix:
        old, root = self.manifests[0].prefix, self.root
        combine, algorithm = digest.combine, self.algorithm
        schema = [[r.name, r.kind, r.format, list(r.shape)] for r in root.schema]
        return Prefix(
            version=old.version,
            attempt=self.attempt,
            schema=combine("schema", schema, algorithm=algorithm),
            learner=combine("learner", root.learner, algorithm=algorithm),
            contract=combine("contract", root.contract, algorithm=algorithm),
            layout=combine("layout", [list(root.layouts), root.owners, root.hierarchy], algorithm=algorithm),
            cover=self.covers[0],
            moment=Moment(old.moment.update, old.moment.cursor, self.attempt.epoch),
            replicas=digest.replicas((text for _, text in replicas), algorithm),
        )

    def _replicas(self) -> tuple[tuple[int, str], ...]:
        """Digests of replicated regions by the destination's algorithm, from their chunk tables."""
        found = []
        for ordinal, _ in self.root.replicas:
            region = self.schema.regions[ordinal]
            keys = sorted((k for k in self.tables if k[0] == ordinal), key=lambda k: k[2])
            nbytes = sum(
                r.nbytes for manifest in self.manifests for r in manifest.shards if r.ordinal == ordinal
            )
            table = b"".join(self.tables[k] for k in keys)
            found.append((ordinal, digest.region(region.format, nbytes, table, self.algorithm)))
        return tuple(found)

    def _pack(self, manifest: Manifest) -> tuple[ShardRecord, ...]:
        """Write the pack of one role; return its records."""
        if not manifest.shards:
            return ()
        role = manifest.role
        keys = [self._key(record) for record in manifest.shards]
        slots = [Slot(*key, r.nbytes) for key, r in zip(keys, manifest.shards, strict=True)]
        plan = PackPlan.of(slots, self.algorithm)
        records = dict(zip(keys, manifest.shards, strict=True))
        made: dict[Key, ShardRecord] = {}
        place = (Place(self.attempt.epoch, self.attempt.save, role),)
        with (
            self.destination.files_of(self.attempt, role, create=True) as directory,
            Target(directory, names.pack(role), plan.size) as target,
            Packs(opener(self.source.data)) as packs,
        ):
            target.write(plan.header)
            tables = []
            for slot, offset, _ in plan.entries:
                key = slot[:3]
                record = records[key]
                target.write(bytes(offset - target.written))
                table = self._shard(packs, record, key[2], target)
                tables.append(table)
                region = self.schema.regions[record.ordinal]
                name = digest.shard(region.format, record.nbytes, table, self.algorithm)
                made[key] = ShardRecord(
                    record.ordinal, record.owner, record.piece, record.nbytes, name, place
                )
                if region.kind == "document" or record.ordinal in dict(self.root.replicas):
                    self.tables[key] = table
            target.write(bytes(plan.tables_offset - target.written))
            target.write(tables)
            target.write(bytes(plan.directory_offset - target.written))
            target.write(plan.directory)
            target.commit()
        return tuple(made[key] for key in keys)

    def _key(self, record: ShardRecord) -> Key:
        region = self.schema.regions[record.ordinal]
        return record.ordinal, record.owner, start_of(piece_of(record.piece), region.shape)

    def _shard(self, packs: Packs, record: ShardRecord, start: int, target: Target) -> bytes:
        """Copy the words of one shard, each chunk checked; return its chunk table."""
        region = self.schema.regions[record.ordinal]
        pack, at, old = self._find(packs, record, start, region.format)
        width, ring = digest.SIZES[pack.algorithm], bytearray(digest.CHUNK)
        table = []
        for chunk in range(digest.chunk_count(record.nbytes)):
            begin = chunk * digest.CHUNK
            view = memoryview(ring)[: min(digest.CHUNK, record.nbytes - begin)]
            pack.read_into(view, pack.offsets[at] + begin)
            expected = old[chunk * width : (chunk + 1) * width]
            found = digest.raw(view, pack.algorithm)
            if found != expected:
                raise pack.corrupt(record, at, chunk, expected, found)
            table.append(found if pack.algorithm == self.algorithm else digest.raw(view, self.algorithm))
            target.write(view)
            self.done += len(view)
            if self.progress is not None:
                self.progress(self.done, self.total)
        return b"".join(table)

    def _find(
        self, packs: Packs, record: ShardRecord, start: int, format: str
    ) -> tuple[PackReader, int, bytes]:
        """Return the first place that holds a shard: its pack, index and checked chunk table."""
        failed: CheckpointError | None = None
        for place in record.places:
            try:
                pack = packs.open(place)
                [at] = pack.locate([record], [start])
                [table] = pack.chunk_tables([at])
                pack.check_table(record, format, table)
                return pack, at, table
            except CheckpointError as error:
                failed = failed or error
        assert failed is not None
        raise failed


def open_destination(path: str | os.PathLike[str], algorithm: str, key: signature.Key | None = None) -> Store:
    """Open the store to copy into; a new one gets the source's digest algorithm.

    With a `key` the copy is signed; a new store then gets an algorithm that a signature may stand on.
    """
    exists = os.path.lexists(os.path.join(path, names.STORE_FILE))
    weak = key is not None and algorithm not in signature.ALGORITHMS
    return Store.create_or_open(path, None if exists or weak else algorithm, key=key)
