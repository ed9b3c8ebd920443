"""Publish: the work of one role in one attempt, as the protocol asks for it.

Everything that touches the store runs on one worker thread, so that the role goes on speaking to
its neighbours meanwhile. Order, and no step before the last is durable: pack, group manifest, (by
the protocol: commitments), root.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from .. import digest
from ..errors import InDoubt, Refused, cause_of
from ..format.columns import Pieces
from ..format.inventory import Inventory, Key, decode_inventory, encode_inventory
from ..format.manifest import (
    ChildRecord,
    Manifest,
    Place,
    Root,
    Table,
    cover,
    encode_manifest,
)
from ..format.pack import Slot
from ..model.capture import Attempt, Prefix
from ..protocol.events import (
    Event,
    Failed,
    ManifestDurable,
    NextEntry,
    RootDurable,
    RootInDoubt,
    ShardsDurable,
    WriterStopped,
)
from ..store import entries, names
from ..store.durable import Directory, commit_bytes
from ..store.retention import Named
from ..store.store import Store
from .capture import Capture
from .merged import Merged, merged
from .reception import Incoming, Outgoing
from .writer import Direct, PackWriter, Stopped

Report = Callable[[Event], None]


@dataclasses.dataclass(frozen=True)
class Known:
    """Digests of the shards of the lineage's newest generation that this role holds.

    `documents` are the ordinals of documents; whether a state has changed is decided on the other
    regions, unless the moment is the same (`same_moment`): then every word counts.
    """

    shards: Mapping[Key, str]
    documents: frozenset[int]
    same_moment: bool

    def changed(self, shards: Mapping[Key, str]) -> bool:
        """Return whether any word that counts differs."""
        if self.same_moment or not self.documents:
            return shards != self.shards
        counted = [
            {key: name for key, name in one.items() if key[0] not in self.documents}
            for one in (shards, self.shards)
        ]
        return counted[0] != counted[1]


class Work:
    """One role's work in one attempt. Implements what the MPI driver asks for (`mpi.driver`).

    `cover` is the cover digest the layout check found for this role, `root` what only the root's
    manifest says (None on the other roles), `grouped` the regions of which the protocol compares the
    digests in replica groups, `direct` what writes from devices to the store, if any. On a star
    `size` > 1 makes owner 0 gather.
    """

    def __init__(
        self,
        store: Store,
        pool: concurrent.futures.ThreadPoolExecutor,
        capture: Capture,
        prefix: Prefix,
        role: int,
        size: int,
        cover: str,
        root: Root | None,
        known: Known | None,
        region_names: Mapping[int, str],
        grouped: Collection[int] = (),
        direct: Direct | None = None,
    ) -> None:
        self._store = store
        self._pool = pool
        self._capture = capture
        self._prefix = prefix
        self._role = role
        self._size = size
        self._cover = cover
        self._root = root
        self._known = known
        self._names = region_names
        self._grouped = grouped
        self._direct = direct
        self._stop = threading.Event()
        self._directory: Directory | None = None
        self._writer: PackWriter | None = None
        self._running: list[concurrent.futures.Future[None]] = []
        self._inventories: dict[int, Inventory] = {}
        self._incoming: dict[int, Incoming] = {}
        self._table = Table(Pieces((), (), ()), (), (), ())
        self.shards: dict[Key, str] = {}  # their digests
        self.named: Named | None = None  # what was published, on the root

    # ------------------------------------------------ asked for by the driver

    def write_shards(self, report: Report) -> None:
        """Make the own shards durable (on a star, with those received); then `ShardsDurable`."""
        self._run(self._write_shards, report)

    def write_manifest(self, children: tuple[ChildRecord, ...], report: Report) -> None:
        """Make the own group manifest durable; then `ManifestDurable`."""
        self._run(functools.partial(self._write_manifest, children), report)

    def publish_root(self, children: tuple[ChildRecord, ...], entry: int, report: Report) -> None:
        """Take the entry with the root; then `RootDurable`, `RootInDoubt` or `Failed`."""
        self._run(functools.partial(self._publish_root, children, entry), report)

    def look_at_next_entry(self, entry: int, report: Report) -> None:
        """Look at the entry this attempt was to take; then `NextEntry`."""
        self._run(functools.partial(self._look, entry), report)

    def stop_writing(self, report: Report) -> None:
        """Stop soon; `WriterStopped` once no thread touches the store or the user's arrays."""
        self._stop.set()
        waiting = list(self._running)

        def stopped() -> None:
            concurrent.futures.wait(waiting)
            self._abandon()
            report(WriterStopped())

        threading.Thread(target=stopped, name="alpha_mpi-stop", daemon=True).start()

    def written(self) -> int:
        """Return the bytes the kernel took so far."""
        writer = self._writer
        return 0 if writer is None else writer.written

    def close(self) -> None:
        """Give up what is open. Called when the attempt has ended on this role."""
        self._stop.set()
        concurrent.futures.wait(self._running)
        self._abandon()

    # ------------------------------------------------ star: what is gathered

    @functools.cached_property
    def _inventory(self) -> bytes:
        capture, shards = self._capture, self._capture.shards
        wants = shards.wants
        inventory = Inventory(
            list(wants.pieces.ordinals),
            [start for _, _, start in wants.keys],
            list(wants.pieces.ints),
            list(shards.nbytes),
            wants.formats,
            shards.tables(self._store.algorithm),
            capture.copies,
            capture.devices,
        )
        return encode_inventory(inventory)

    def inventory(self) -> bytes:
        """Star, owner > 0: what this owner contributes, without the bytes.

        Raises `Refused` (``non-finite``). Called before the prefix is sent.
        """
        return self._inventory

    @functools.cached_property
    def _outgoing(self) -> Outgoing:
        return Outgoing(self._capture.shards)

    @property
    def payload_nbytes(self) -> int:
        """Star, owner > 0: bytes of the own stream."""
        return self._outgoing.nbytes

    def payload(self, offset: int, nbytes: int) -> memoryview:
        """Star, owner > 0: bytes of the own stream, asked for in order."""
        return self._outgoing.read(offset, nbytes)

    def receive_inventory(self, owner: int, data: bytes) -> None:
        """Star, owner 0: take what another owner will contribute."""
        self._inventories[owner] = decode_inventory(data, owner, self._store.algorithm)

    def receive_payload(self, owner: int, offset: int, view: memoryview) -> None:
        """Star, owner 0: take the next bytes of an owner's stream, check and write them."""
        writer = self._open()
        self._incoming[owner].take(view, writer)

    # ------------------------------------------------ on the worker thread

    def _run(self, work: Callable[[], Event], report: Report) -> None:
        def run() -> None:
            try:
                event = work()
            except Stopped:
                return
            except BaseException as error:
                self._abandon()
                event = Failed(cause_of(error, self._role))
            report(event)

        self._running.append(self._pool.submit(run))

    @functools.cached_property
    def _merged(self) -> Merged:
        """Star, owner 0: what all owners write, once all inventories have come."""
        return merged(self._capture.shards.wants, self._inventories)

    def _open(self) -> PackWriter:
        if self._writer is None:
            slots = self._capture.shards.slots
            foreign = self._merged.keys_of if self._inventories else {}
            for owner, keys in foreign.items():
                nbytes = self._inventories[owner].nbytes
                slots += tuple([Slot(*key, n) for key, n in zip(keys, nbytes, strict=True)])
            self._directory = self._store.files_of(self._prefix.attempt, self._role, create=True)
            self._writer = PackWriter(
                *(self._directory, names.pack(self._role), slots, self._store.algorithm, self._stop),
                direct=self._direct,
            )
            for owner, keys in foreign.items():
                theirs = self._inventories[owner]
                self._writer.add_foreign(keys, theirs.chunks)
                self._incoming[owner] = Incoming(owner, keys, theirs, self._names, self._store.algorithm)
        return self._writer

    def _write_shards(self) -> Event:
        if not self._capture.shards and not any(i.ordinals for i in self._inventories.values()):
            tables: list[bytes] = []  # a role that holds no words has no pack
        else:
            writer = self._open()
            tables = writer.add_all(self._capture.shards)
            for incoming in self._incoming.values():
                if incoming.received != incoming.nbytes:
                    raise Refused(
                        "an owner sent fewer bytes than it announced",
                        code="bad-message",
                        role=incoming.owner,
                        expected=incoming.nbytes,
                        found=incoming.received,
                    )
            # The root's manifest lies in another directory, so the pack's name is synced here;
            # elsewhere the sync after the manifest covers both.
            writer.commit(sync_directory=self._role == 0)
        self._record(tables)
        self._compare_copies()
        changed = self._known is None or self._known.changed(self.shards)
        return ShardsDurable(changed=changed, copies=self._grouped_copies())

    def _grouped_copies(self) -> tuple[tuple[int, str], ...]:
        """Return the digests of all pieces held here that are compared in replica groups."""
        if not self._grouped:
            return self._capture.copies
        mine = {
            ordinal: name
            for (ordinal, owner, _), name in self.shards.items()
            if owner == self._role and ordinal in self._grouped
        }
        return tuple(sorted({**mine, **dict(self._capture.copies)}.items()))

    def _record(self, tables: Sequence[bytes]) -> None:
        """Make the shard records, in the order of their keys: the own ones from their chunk tables,
        those of others from their inventories."""
        attempt, algorithm = self._prefix.attempt, self._store.algorithm
        shards = self._capture.shards
        keys, pieces, nbytes = shards.wants.keys, shards.wants.pieces, shards.nbytes
        names = shards.names(tables, algorithm)
        if self._inventories:
            keys, pieces = self._merged.keys, self._merged.pieces
            sizes = list(nbytes)
            for _, theirs in sorted(self._inventories.items()):
                sizes += theirs.nbytes
                names += digest.shards(theirs.formats, theirs.nbytes, theirs.chunks, algorithm)
            nbytes, names = self._merged.ordered(sizes), self._merged.ordered(names)
        places = (Place(attempt.epoch, attempt.save, self._role),)
        self._table = Table(pieces, nbytes, names, places)
        self.shards = dict(zip(keys, names, strict=True))

    def _compare_copies(self) -> None:
        """Star, owner 0: compare every copy of a piece with what its writer sent."""
        if not self._inventories:  # on a tree the owners compare among themselves
            return
        copies = {0: self._capture.copies, **{k: i.copies for k, i in self._inventories.items()}}
        if not any(copies.values()):
            return
        written = set(zip(self._table.pieces.ordinals, self._table.digests, strict=True))
        for owner, theirs in sorted(copies.items()):
            for ordinal, found in theirs:
                if (ordinal, found) not in written:
                    raise Refused(
                        "its copy of a piece differs from that of the group's lowest owner",
                        code="diverged-replica",
                        retryable=True,
                        role=owner,
                        region=self._names[ordinal],
                        found=found,
                    )

    def _manifest(self, children: tuple[ChildRecord, ...], root: Root | None) -> Manifest:
        """Return the own manifest, but for its shard records."""
        found = cover(self._table, (c.cover for c in children), self._store.algorithm)
        if found != self._cover:
            raise Refused(
                "the pieces written are not those of the layout",
                code="cover-differs",
                role=self._role,
                expected=self._cover,
                found=found,
            )
        devices = list(self._capture.devices)
        for owner in sorted(self._inventories):
            devices += self._inventories[owner].devices
        return Manifest(
            "manifest",
            self._prefix,
            self._role,
            self._size,
            (),
            children,
            root,
            tuple(devices) or msgspec.UNSET,
        )

    def _write_manifest(self, children: tuple[ChildRecord, ...]) -> Event:
        data = encode_manifest(self._manifest(children, None), self._store.algorithm, self._table)
        directory = self._directory
        if directory is None:
            directory = self._directory = self._store.files_of(self._prefix.attempt, self._role, create=True)
        commit_bytes(directory, names.manifest(self._role), data)
        name = digest.of(data, self._store.algorithm)
        return ManifestDurable(ChildRecord(self._role, self._size, name, self._cover))

    def _publish_root(self, children: tuple[ChildRecord, ...], entry: int) -> Event:
        assert self._root is not None
        epoch = self._prefix.attempt.epoch
        manifest = self._manifest(children, msgspec.structs.replace(self._root, entry=entry))
        data = encode_manifest(manifest, self._store.algorithm, self._table)
        try:
            root = entries.publish(self._store, epoch, entry, data)
            refers = {Attempt(place.epoch, place.save) for place in self._table.places}
            self.named = Named.of(root, manifest, refers)
            return RootDurable(root)
        except InDoubt as error:
            return RootInDoubt(cause_of(error, self._role))

    def _look(self, entry: int) -> Event:
        epoch = self._prefix.attempt.epoch
        try:
            found = entries.look(self._store, epoch, entry)
        except OSError:
            return NextEntry(None, None)
        if found is None:
            return NextEntry(None, False)
        if found.claim is not None:
            return NextEntry(entries.superseded_by(self._store, found).cause(), False)
        ours = found.manifest is not None and found.manifest.prefix == self._prefix
        return NextEntry(None, ours)

    def _abandon(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
        directory, self._directory = self._directory, None
        if directory is not None:
            directory.close()
