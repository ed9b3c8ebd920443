"""Resume: every owner reads and checks its part of a generation; all agree; all write.

`read` is called by every owner and ends the same way on all of them. Between it and `apply` the
caller takes the epoch; until `apply` no destination has changed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import msgspec

from ..errors import Cause, CheckpointError, Refused, cause_of, error_of
from ..format.body import encode_body
from ..format.envelope import MANIFEST_LIMIT, seal
from ..format.manifest import DeviceRecord, Manifest, Root, start_in
from ..model.accept import Accept, Accepted
from ..model.capture import Moment
from ..model.identity import Contract, Learner
from ..model.layout import Irregular
from ..mpi.agreement import agree, bcast
from ..mpi.families import Families
from ..mpi.windows import read_path
from ..protocol import hierarchy as tree
from ..store import names
from ..store.signing import Place, unsigned
from ..store.store import Store, await_name
from .cards import agree_on_devices, compared_by
from .generation import root_file
from .moved import read_manifests
from .needs import Declared
from .part import Part
from .path import (
    Path,
    believe_path,
    check_whole_root,
    manifest_file,
    open_child,
    open_root,
    read_manifest,
    record_of,
)
from .plan import Held
from .refuse import compare, schema_of
from .renumber import Renumbered
from .staging import CEILING
from .together import everybody, long_work


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The generation to restore: its entry and root digest, known to every owner.

    `manifest` is its root where the caller has read it already (owner 0): it is not opened again.
    """

    epoch: int
    number: int
    root: str
    manifest: Manifest | None = None


def read(
    store: Store,
    chosen: Chosen,
    declared: Declared,
    families: Families,
    deadline: float,
    staging: int = CEILING,
    *,
    learner: Learner,
    contract: Contract,
    visibility: float = 0.0,
    accept: Accept | None = None,
    devices: Sequence[DeviceRecord] = (),
    by: str | None = None,
) -> Checked:
    """Read and check everything this job needs of a generation. Called by every owner.

    Nothing of the caller's is changed. Returns once every owner has validated its part; otherwise
    raises the same `CheckpointError` on every owner: `Refused` for damage and for a generation that
    is not this job's, `CommitFailed` for what the disk says, `PeerFailed` for a silent owner or for
    a failure in the caller's own code.

    Parameters
    ----------
    deadline : float
        Longest wait for another owner in one step, in seconds.
    staging : int
        Bytes of validated words that each owner keeps in memory; what is beyond is read twice.
        Owner 0's counts where owners must do the same.
    visibility : float
        How long a missing name is not believed, in seconds.
    accept : Accept, optional
        Differences that are no reason to refuse it: the same on every owner.
    devices : sequence of DeviceRecord
        On which this owner's regions lie.
    by : str, optional
        What of them is bound, ``"product"`` or ``"uuid"``: the same on every owner.
    """
    world, file = families.world, root_file(chosen.epoch, chosen.number)
    data, root, moved, accepted = _agree_on_root(
        store, chosen, declared, families, deadline, learner, contract, visibility, accept
    )
    if any(what in ("missing", "extra") for what, _, _ in accepted):
        assert root is not None and root.root is not None
        declared = Renumbered(declared, schema_of(root.root))
    ceiling = int(bcast(world, str(staging).encode() if world.rank == 0 else None, 0, deadline))
    known: dict[int, bytes] = {}
    part: Part | None = None
    shards = None
    try:
        if not moved:
            files, path = _read_path(store, chosen, declared, families, deadline, visibility, data, root)
            part = Part(store, file, path.root, path.schema, declared, families, deadline, ceiling)
            moved = _plan_own(part, path, declared, families, deadline)
            if moved:
                part.close()
                root, known = path.root, {families.role: files[-1]}
            else:
                shards = _digests(path, world.rank)
                bound = compared_by(_root(path.root), by)
                if bound is not None:
                    saved = path.own.devices_of(world.rank)
                    accepted = agree_on_devices(
                        world, saved, devices, bound, file, accept, accepted, deadline
                    )
        if moved:
            assert root is not None
            part = Part(store, file, root, declared.schema, declared, families, deadline, ceiling, moved=True)
            everybody(world, part.prepare, deadline)
            roles = everybody(world, part.roles, deadline)
            bound = compared_by(_root(root), by) if _root(root).owners == world.size else None
            found = list(root.devices_of(world.rank))
            if bound is not None and roles is not None and not _on_star(root):
                roles |= {world.rank}  # its manifest records this owner's devices
            helds = read_manifests(
                store,
                root,
                roles,
                world,
                deadline,
                visibility,
                known,
                lambda manifest: found.extend(manifest.devices_of(world.rank)),
            )
            if bound is not None:
                accepted = agree_on_devices(world, found, devices, bound, file, accept, accepted, deadline)
            everybody(world, functools.partial(part.plan, helds), deadline)
        assert part is not None
        long_work(world, part.validate, lambda: part.packs.done, deadline)
        _raise(part.receive())
        everybody(world, part.check, deadline)
    except BaseException:
        if part is not None:
            part.close()
        raise
    return Checked((root or path.root).prefix.moment, shards, part, accepted)


def _root(manifest: Manifest) -> Root:
    assert manifest.root is not None
    return manifest.root


def _on_star(manifest: Manifest) -> bool:
    return bool(_root(manifest).hierarchy.get("kind") == "star")


def _digests(path: Path, owner: int) -> dict[tuple[int, int, int], str]:
    regions = path.schema.regions
    return {
        (r.ordinal, r.owner, start_in(r.piece, regions[r.ordinal].shape)): r.digest
        for r in path.own.shards
        if owner == 0 or r.owner == owner
    }


def _plan_own(part: Part, path: Path, declared: Declared, families: Families, deadline: float) -> bool:
    """Plan out of this role's own manifest, as on the placement that was saved.

    Returns True, on every owner, where some owner holds irregular pieces now whose words stand in
    other manifests.
    """
    world = families.world
    irregular = any(isinstance(rule, Irregular) for rule in declared.rules)
    elsewhere = False

    def prepare() -> None:
        nonlocal elsewhere
        part.prepare()
        try:
            part.plan([Held(record, path.own.role) for record in path.own.shards])
        except Refused as error:
            elsewhere = irregular and not families.star and error.code == "incomplete-cover"
            if not elsewhere:
                raise

    everybody(world, prepare, deadline)
    if not irregular:
        return False
    note = Cause(kind="error", code="elsewhere", message="") if elsewhere else None
    return agree(world, note, deadline) is not None


def _raise(cause: Cause | None) -> None:
    if cause is not None:
        raise error_of(cause)


def _agree_on_root(
    store: Store,
    chosen: Chosen,
    declared: Declared,
    families: Families,
    deadline: float,
    learner: Learner,
    contract: Contract,
    visibility: float,
    accept: Accept | None,
) -> tuple[bytes, Manifest | None, bool, Accepted]:
    """Let owner 0 read the root and compare it with what all declare.

    Returns the root's file (on owner 0), the root, whether it was saved on another placement or
    under another schema (everybody gets the root then), and what was accepted. Whatever is not
    this job's is refused before anybody reads further; no role is at fault for that.
    """
    world, file = families.world, root_file(chosen.epoch, chosen.number)
    data, root, cause, moved = b"", None, None, False
    accepted: Accepted = ()
    if world.rank == 0:
        try:
            data, root = _read_root(store, chosen, declared, file, visibility)
        except BaseException as error:
            cause = cause_of(error, world.rank)
        else:
            mine = declared.schema, learner, contract, declared.rules, world.size, families.hierarchy
            try:
                rules = frozenset(declared.repartition)
                match = compare(root, *mine, file, repartition=rules, accept=accept)
                moved, accepted = not match.placed, match.accepted
            except Refused as error:
                cause = error.cause()
            except BaseException as error:
                cause = cause_of(error, world.rank)
    _raise(agree(world, cause, deadline))
    if accept is not None:
        found = msgspec.msgpack.encode(accepted) if world.rank == 0 else None
        accepted = msgspec.msgpack.decode(bcast(world, found, 0, deadline), type=Accepted)
    told = bcast(world, data if moved else b"", 0, deadline)
    moved = bool(told)
    if not moved:
        return data, root, moved, accepted

    def believe() -> Manifest:
        return root or believe_path((told,), (0,), chosen.root, file)[0]

    return data, everybody(world, believe, deadline), moved, accepted


def _read_root(
    store: Store, chosen: Chosen, declared: Declared, file: str, visibility: float
) -> tuple[bytes, Manifest]:
    if chosen.manifest is not None:
        check_whole_root(chosen.manifest, file, declared.schema)
        # Decoded and found valid already; sealed again, it is the same file (but for a signature).
        return seal(encode_body(chosen.manifest), chosen.root.partition(":")[0]), chosen.manifest
    name = names.entry(chosen.epoch, chosen.number)
    try:
        data = await_name(lambda: store.published.read(name, MANIFEST_LIMIT), visibility)
    except FileNotFoundError as error:
        raise Refused(
            "the root of this generation is missing", code="missing-root", role=0, file=file
        ) from error
    places = [Place("root", store.id, chosen.epoch, chosen.number)]
    data, _ = unsigned(store, data, places, file=file, code="corrupt-root")
    return data, open_root(data, chosen.root, file, declared.schema)[0]


def _read_path(
    store: Store,
    chosen: Chosen,
    declared: Declared,
    families: Families,
    deadline: float,
    visibility: float,
    data: bytes,
    root: Manifest | None,
) -> tuple[tuple[bytes, ...], Path]:
    """Read the manifests along this owner's path, each opened from the store by its role alone.

    Returns the files and what they hold. `data` and `root` are the root, on owner 0.
    """
    world, file = families.world, root_file(chosen.epoch, chosen.number)
    roles = (0,) if families.star else tree.path(families.hierarchy, world.size, families.role)
    opened: Path | None = None if root is None else Path(declared.schema, (root,))

    def read_own(parents: tuple[bytes, ...]) -> bytes:
        nonlocal opened
        if not parents:
            return data
        above = believe_path(parents, roles[:-1], chosen.root, file)
        attempt, role = above[0].prefix.attempt, roles[-1]
        name = manifest_file(attempt, role)
        record = record_of(above[-1], role, name)
        found = read_manifest(store, attempt, role, visibility)
        own = open_child(found, record, above[0], name)
        opened = Path(declared.schema, (*above, own))
        return found

    files, cause = read_path(families, read_own, deadline)
    if files is not None and opened is None:
        try:
            # On a star: what owner 0 has read, and compared with what all declare.
            opened = Path(declared.schema, tuple(believe_path(files, roles, chosen.root, file)))
        except CheckpointError as error:
            cause = cause_of(error, world.rank)
    _raise(agree(world, cause, deadline))
    assert opened is not None and files is not None
    return files, opened


class Checked:
    """A generation that every owner found whole, and not yet written anywhere.

    Attributes
    ----------
    moment : Moment
        Of the generation.
    shards : mapping of (ordinal, owner, start) to digest, or None
        Shards of this owner's role (on a star owner 0 has all), for comparison with the next save;
        None where the generation was saved on another placement, whose shards are others.
    accepted : tuple of (what, subject, reason)
        How it differs from what this job declares: what `accept` was needed for.
    """

    def __init__(
        self,
        moment: Moment,
        shards: Mapping[tuple[int, int, int], str] | None,
        part: Part,
        accepted: Accepted = (),
    ) -> None:
        self.moment = moment
        self.shards = shards
        self.accepted = accepted
        self._part = part

    def apply(self) -> None:
        """Write everything to its destinations. Called by every owner, once.

        Returns once every owner has written. What did not fit the staging is read and checked once
        more; raises the same error on every owner if that fails (``changed-while-reading``), or if
        the caller's own code does: the state is then neither the old one nor the new one.
        """
        try:
            self._part.apply()
        finally:
            self._part.close()

    def close(self) -> None:
        """Give up what is held. Called by every owner; does nothing after `apply`."""
        self._part.close()
