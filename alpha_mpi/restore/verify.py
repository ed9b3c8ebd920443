"""Verification: judge a whole generation, every byte of every file, without training and without MPI.

Damage is never raised: it is what the report is for.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .. import digest
from ..errors import CheckpointError, Refused, cause_of, error_of
from ..format import pack as layout
from ..format.documents import decode_document
from ..format.manifest import Manifest, Place, Root, ShardRecord, piece_of, start_of
from ..model import formats
from ..model.cover import check_cover
from ..model.pieces import Interval, Piece
from ..model.schema import Region, Schema
from ..store import names
from ..store.observe import Position, candidate, is_removed
from ..store.store import Store
from .generation import root_file, walk
from .packs import PackReader, Packs, opener
from .path import check_whole_root
from .plan import DOCUMENTS, PER_OWNER, Held, is_replicated
from .refuse import schema_of
from .validate import position


@dataclasses.dataclass
class Report:
    """What a verification found.

    Attributes
    ----------
    name : str
        The root's name below the store.
    problems : list of CheckpointError
        Everything wrong, each with file, role and region where it has one; empty: the generation is
        whole.
    non_finite : list of (str, tuple of int)
        Regions with words that are infinite or not a number, and where the first one is: no damage,
        as a state may allow them.
    root : Manifest or None
        The root, where it can be read.
    roles, files, shards, nbytes : int
        How much was read: manifests, files, shards, and bytes of shards.
    """

    name: str
    problems: list[CheckpointError] = dataclasses.field(default_factory=list)
    non_finite: list[tuple[str, tuple[int, ...]]] = dataclasses.field(default_factory=list)
    root: Manifest | None = None
    roles: int = 0
    files: int = 0
    shards: int = 0
    nbytes: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def add(self, error: BaseException, role: int | None = None, file: str | None = None) -> None:
        """Take down one problem."""
        found = error if isinstance(error, CheckpointError) else error_of(cause_of(error, role))
        if found.role is None:
            found.role = role
        if found.file is None:
            found.file = file
        self.problems.append(found)


def verify(
    store: Store, epoch: int, number: int, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Read every byte of the generation at entry `number` of `epoch`, and judge it.

    Checks: the root and every manifest against the record above it, every pack wholly (header,
    padding, tables, directory, payload), every digest, that each word of each region is held exactly
    once, and the digests of replicated regions. `progress` is told (bytes read, bytes in all).
    Raises only for faults of the program.
    """
    report, judge = begin(store, epoch, number)
    if judge is not None:
        judge.read(judge.places(), progress)
        judge.conclude()
    return report


def begin(store: Store, epoch: int, number: int) -> tuple[Report, Judge | None]:
    """Read the root and every manifest of a generation; None where there is no root to go on with."""
    file = root_file(epoch, number)
    report = Report(file)
    try:
        found = candidate(store, Position(epoch, number))
        root = found.manifest
        check_whole_root(root, file)
    except (CheckpointError, OSError) as error:
        report.add(error, 0, file)
        return report, None
    report.root, report.roles, report.files = root, 1, 1
    helds = [Held(record, 0) for record in root.shards]
    complete = True
    for node in walk(store, root):
        if node.error is not None:
            report.add(node.error, node.role, node.file)
            complete = False
            continue
        assert node.manifest is not None
        report.roles += 1
        report.files += 1
        helds += [Held(record, node.role) for record in node.manifest.shards]
    return report, Judge(store, Position(epoch, number), root, helds, report, complete)


class Judge:
    """A verification in steps: packs may be read in any order and by several processes.

    `tables` holds the chunk tables that were found right, by index of the shard in `helds`;
    `complete` says that no manifest is missing.
    """

    def __init__(
        self,
        store: Store,
        at: Position,
        root: Manifest,
        helds: Sequence[Held],
        report: Report,
        complete: bool = True,
    ) -> None:
        self.store, self.at, self.root, self.helds = store, at, root, helds
        self.report, self.complete = report, complete
        self.schema = schema_of(_root(root))
        self.tables: dict[int, bytes] = {}
        self._shards: dict[Place, list[int]] = {}
        for i, (record, _) in enumerate(helds):
            for place in record.places:
                self._shards.setdefault(place, []).append(i)

    def places(self) -> list[Place]:
        """Return where packs lie, by role."""
        return sorted(self._shards, key=lambda place: (place.role, place.epoch, place.save))

    def read(self, places: Sequence[Place], progress: Callable[[int, int], None] | None = None) -> None:
        """Read these packs wholly; what is wrong with them is in the report."""
        total = sum(self.helds[i].record.nbytes for place in places for i in self._shards[place])
        attempt, report = self.root.prefix.attempt, self.report

        def tell() -> None:
            if progress is not None:
                progress(report.nbytes, total)

        for place in places:
            own = (place.epoch, place.save) == (attempt.epoch, attempt.save)
            with Packs(opener(self.store.data)) as packs:
                try:
                    pack = packs.open(place)
                    report.files += 1
                except (CheckpointError, OSError) as error:
                    report.add(error, place.role)
                    continue
                shards = [(i, self.helds[i].record) for i in self._shards[place]]
                try:
                    _Pack(pack, self.schema, report, self.tables, tell).read(shards, own)
                except (CheckpointError, OSError) as error:
                    report.add(error, place.role, pack.path)

    def conclude(self) -> None:
        """Judge what only the whole shows, once all packs were read."""
        report = self.report
        if self.complete:
            _covers(self.schema, self.root, self.helds, report)
        _replicas(self.schema, self.root, self.helds, self.tables, self.complete, report)
        gone = not self.store.published.exists(names.entry(*self.at)) or is_removed(self.store, self.at)
        if report.problems and gone:
            report.problems[:] = [
                Refused(
                    "the generation was removed while it was read",
                    code="removed-generation",
                    file=report.name,
                )
            ]


def _root(manifest: Manifest) -> Root:
    assert manifest.root is not None
    return manifest.root


class _Pack:
    """One pack, read wholly; every shard is judged by itself."""

    def __init__(
        self,
        pack: PackReader,
        schema: Schema,
        report: Report,
        tables: dict[int, bytes],
        tell: Callable[[], None],
    ) -> None:
        self.pack, self.schema, self.report, self.tables, self.tell = pack, schema, report, tables, tell
        self.ring = np.empty(digest.CHUNK, dtype=np.uint8).data

    def read(self, shards: Sequence[tuple[int, ShardRecord]], own: bool) -> None:
        pack = self.pack
        named: set[int] = set()
        for i, record in shards:
            region = self.schema.regions[record.ordinal]
            try:
                start = start_of(piece_of(record.piece), region.shape)
                [at] = pack.locate([record], [start])
                named.add(at)
                [table] = pack.chunk_tables([at])
                pack.check_table(record, region.format, table)
                self._shard(record, region, at, table)
                self.tables[i] = table
                self.report.shards += 1
            except Refused as error:
                error.region = error.region or region.name
                self.report.add(error, record.owner, pack.path)
        for begin, end in layout.padding(pack.header, pack.directory):
            pack.check_padding(begin, end)
        # In a pack of this very attempt a shard that nobody names has bytes no digest covers.
        if own and len(named) != len(pack.directory):
            at = next(k for k in range(len(pack.directory)) if k not in named)
            key = tuple(int(pack.directory[at][field]) for field in ("ordinal", "owner", "start"))
            raise Refused("the pack holds a shard that no manifest names", code="unnamed-shard", found=key)

    def _shard(self, record: ShardRecord, region: Region, at: int, table: bytes) -> None:
        pack, size = self.pack, digest.SIZES[self.pack.algorithm]
        format = None if region.kind in DOCUMENTS else formats.by_name(region.format)
        whole: list[bytes] = []
        odd = False
        for chunk in range(digest.chunk_count(record.nbytes)):
            start = chunk * digest.CHUNK
            view = self.ring[: min(digest.CHUNK, record.nbytes - start)]
            pack.read_into(view, pack.offsets[at] + start)
            expected = table[chunk * size : (chunk + 1) * size]
            self.report.nbytes += len(view)
            self.tell()
            found = digest.raw(view, pack.algorithm)
            if found != expected:
                raise pack.corrupt(record, at, chunk, expected, found)
            if format is None:
                whole.append(bytes(view))
            elif not odd:
                word = formats.first_non_finite(formats.words_of(view, format))
                if word is not None:
                    odd = True
                    index = position(record.piece, region.shape, start // format.itemsize + word)
                    self.report.non_finite.append((region.name, index))
        if format is None:
            decode_document(b"".join(whole), pack.path)


def _covers(schema: Schema, root: Manifest, helds: Iterable[Held], report: Report) -> None:
    """Every word held exactly once: decided on the pieces, region by region."""
    assert root.root is not None
    owners = root.root.owners
    pieces: dict[int, list[Piece]] = {}
    holders: dict[int, list[int]] = {}
    for record, _ in helds:
        piece = piece_of(record.piece)
        holders.setdefault(record.ordinal, []).append(record.owner)
        if piece is not None:
            pieces.setdefault(record.ordinal, []).append(piece)
    for region in schema.regions:
        held = holders.get(region.ordinal, [])
        try:
            if region.kind in PER_OWNER:
                expected = range(owners) if region.size else range(0)
                _exactly(sorted(held), expected, region)
            elif region.kind in DOCUMENTS:
                _exactly([0] * len(held), range(1), region)
            else:
                check_cover(pieces.get(region.ordinal, []), region.shape, held, region.name)
        except Refused as error:
            report.add(error, file=report.name)


def _exactly(found: list[int], expected: range, region: Region) -> None:
    held = set(found)
    # A root may say any number of owners: no more of them are looked at than hold something.
    missing = next((owner for owner in expected if owner not in held), None)
    if missing is not None:
        raise Refused(
            f"nobody holds the state of owner {missing}",
            code="incomplete-cover",
            role=missing,
            region=region.name,
        )
    if len(found) != len(expected):
        count = collections.Counter(found)
        twice = next((k for k in found if count[k] > 1), found[-1])
        raise Refused("more than one shard holds it", code="overlap", role=twice, region=region.name)


def _replicas(
    schema: Schema,
    root: Manifest,
    helds: Sequence[Held],
    tables: dict[int, bytes],
    complete: bool,
    report: Report,
) -> None:
    """Digests of replicated regions: from the joined chunk tables of their shards."""
    assert root.root is not None
    listed = dict(root.root.replicas)
    shards: dict[int, list[int]] = {}
    for i, (record, _) in enumerate(helds):
        shards.setdefault(record.ordinal, []).append(i)
    for region in schema.regions:
        if not is_replicated(region, root.root.layouts[region.ordinal]):
            if region.ordinal in listed:
                report.add(_replica("listed as replicated, and is not", region), 0, report.name)
            continue
        held = sorted(shards.get(region.ordinal, []), key=lambda i: _first(helds[i].record))
        if not complete or any(i not in tables for i in held):
            continue  # reported already
        if region.ordinal not in listed:
            if held:
                report.add(_replica("replicated, and not listed as that", region), 0, report.name)
            continue
        algorithm = listed[region.ordinal].partition(":")[0]
        nbytes = sum(helds[i].record.nbytes for i in held)
        found = digest.region(region.format, nbytes, b"".join(tables[i] for i in held), algorithm)
        if found != listed[region.ordinal]:
            error = _replica("the replicated words are not those all owners had", region)
            error.expected, error.found = listed[region.ordinal], found
            report.add(error, 0, report.name)


def _replica(message: str, region: Region) -> Refused:
    return Refused(message, code="corrupt-replica", region=region.name)


def _first(record: ShardRecord) -> int:
    piece = piece_of(record.piece)
    return piece.start if isinstance(piece, Interval) else 0
