"""Resume: every owner reads and checks its part of a generation; all agree; all write.

`read` is called by every owner and ends the same way on all of them. Between it and `apply` the
caller takes the epoch; until `apply` no destination has changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..errors import Cause, CheckpointError, Refused, cause_of, error_of
from ..format.body import encode_body
from ..format.envelope import MANIFEST_LIMIT, seal
from ..format.manifest import Manifest, piece_of, start_of
from ..model.capture import Moment
from ..model.identity import Contract, Learner
from ..mpi.agreement import agree, bcast
from ..mpi.families import Families
from ..mpi.windows import read_path
from ..protocol import hierarchy as tree
from ..store import names
from ..store.store import Store, await_name
from .generation import root_file
from .part import Declared, Part
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
from .refuse import compare
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
    """
    world = families.world
    path = _read_path(store, chosen, declared, families, deadline, learner, contract, visibility)
    ceiling = int(bcast(world, str(staging).encode() if world.rank == 0 else None, 0, deadline))
    file = root_file(chosen.epoch, chosen.number)
    part = Part(store, file, path, declared, families, deadline, ceiling)
    try:
        everybody(world, part.prepare, deadline)
        long_work(world, part.validate, lambda: part.packs.done, deadline)
        _raise(part.receive())
        everybody(world, part.check, deadline)
    except BaseException:
        part.close()
        raise
    shards = {
        (r.ordinal, r.owner, start_of(piece_of(r.piece), path.schema.regions[r.ordinal].shape)): r.digest
        for r in path.own.shards
        if world.rank == 0 or r.owner == world.rank
    }
    return Checked(path.root.prefix.moment, shards, part)


def _raise(cause: Cause | None) -> None:
    if cause is not None:
        raise error_of(cause)


def _read_path(
    store: Store,
    chosen: Chosen,
    declared: Declared,
    families: Families,
    deadline: float,
    learner: Learner,
    contract: Contract,
    visibility: float,
) -> Path:
    """Read the manifests along this owner's path, each opened from the store by its role alone."""
    world, file = families.world, root_file(chosen.epoch, chosen.number)
    roles = (0,) if families.star else tree.path(families.hierarchy, world.size, families.role)

    opened: Path | None = None
    not_ours: Refused | None = None

    def read_root() -> bytes:
        nonlocal opened, not_ours
        if chosen.manifest is not None:
            root = chosen.manifest
            # Decoded and found valid already; sealed again, it is the same file.
            data = seal(encode_body(root), chosen.root.partition(":")[0])
            schema = check_whole_root(root, file, declared.schema)
        else:
            name = names.entry(chosen.epoch, chosen.number)
            try:
                data = await_name(lambda: store.published.read(name, MANIFEST_LIMIT), visibility)
            except FileNotFoundError as error:
                raise Refused(
                    "the root of this generation is missing", code="missing-root", role=0, file=file
                ) from error
            root, schema = open_root(data, chosen.root, file, declared.schema)
        mine = declared.schema, learner, contract, declared.rules, world.size, families.hierarchy
        try:
            # Whatever is not this job's is refused before anybody reads further.
            compare(root, *mine, file)
        except Refused as error:
            not_ours = error
            raise
        opened = Path(schema, (root,))
        return data

    def read_own(parents: tuple[bytes, ...]) -> bytes:
        nonlocal opened
        if not parents:
            return read_root()
        above = believe_path(parents, roles[:-1], chosen.root, file)
        attempt, role = above[0].prefix.attempt, roles[-1]
        name = manifest_file(attempt, role)
        record = record_of(above[-1], role, name)
        data = read_manifest(store, attempt, role, visibility)
        own = open_child(data, record, above[0], name)
        opened = Path(declared.schema, (*above, own))
        return data

    files, cause = read_path(families, read_own, deadline)
    if not_ours is not None:
        cause = not_ours.cause()  # no role is at fault
    elif files is not None and opened is None:
        try:
            # On a star: what owner 0 has read, and compared with what all declare.
            opened = Path(declared.schema, tuple(believe_path(files, roles, chosen.root, file)))
        except CheckpointError as error:
            cause = cause_of(error, world.rank)
    _raise(agree(world, cause, deadline))
    assert opened is not None
    return opened


class Checked:
    """A generation that every owner found whole, and not yet written anywhere.

    Attributes
    ----------
    moment : Moment
        Of the generation.
    shards : mapping of (ordinal, owner, start) to digest
        Shards of this owner's role (on a star owner 0 has all), for comparison with the next save.
    """

    def __init__(self, moment: Moment, shards: Mapping[tuple[int, int, int], str], part: Part) -> None:
        self.moment = moment
        self.shards = shards
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
