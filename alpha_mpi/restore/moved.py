"""Moved: the manifests a job needs of a generation that was saved on another placement.

Level by level from the root: who needs a role's manifest knows the record above it, and asks the
owner that opens it (saved role k: owner k mod N) with that record. The opener reads and checks the
file, once, whoever asks; the others get its bytes by one-sided reads and compare their digest.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Mapping

import msgspec

from ..errors import Cause
from ..format.manifest import ChildRecord, Manifest
from ..mpi.agreement import agree
from ..mpi.lending import Lending
from ..mpi.world import World
from ..store.store import Store
from .path import believe_child, manifest_file, open_child, read_manifest
from .plan import Held
from .together import everybody, long_work

_RECORD = msgspec.msgpack.Decoder(ChildRecord)


def opener(role: int, owners: int) -> int:
    """Return the owner that opens a saved role's manifest, and reads what is its alone to read."""
    return role % owners


def read_manifests(
    store: Store,
    root: Manifest,
    wanted: Collection[int] | None,
    world: World,
    deadline: float,
    visibility: float,
    known: Mapping[int, bytes] | None = None,
    seen: Callable[[Manifest], None] = lambda manifest: None,
) -> list[Held]:
    """Return the shards that the root and the roles in `wanted` (None: all) name, and some of others.

    Called by every owner, each with what it wants itself. Only the paths to roles that somebody
    wants are opened, each file once in total; `known` are files this owner has opened already.
    `seen` is called with each manifest this owner gets.
    Raises the same error on every owner.
    """
    helds = [Held(record, 0) for record in root.shards]
    roles = None if wanted is None else sorted(wanted)
    level = [root]
    while True:
        below = {c.role: c for above in level for c in above.children if _leads(c, roles)}
        note = Cause(kind="error", code="asks", message="") if below else None
        if agree(world, note, deadline) is None:
            return helds
        level = _level(store, root, below, world, deadline, visibility, known or {})
        for manifest in level:
            seen(manifest)
            helds += [Held(record, manifest.role) for record in manifest.shards]


def _leads(child: ChildRecord, roles: list[int] | None) -> bool:
    """Whether some wanted role is in a child's subtree."""
    if roles is None:
        return True
    at = bisect.bisect_left(roles, child.role)
    return at < len(roles) and roles[at] < child.role + child.size


def _level(
    store: Store,
    root: Manifest,
    below: Mapping[int, ChildRecord],
    world: World,
    deadline: float,
    visibility: float,
    known: Mapping[int, bytes],
) -> list[Manifest]:
    """Return the manifests of some roles of one level; every owner asks for its own."""
    attempt = root.prefix.attempt
    encode = msgspec.msgpack.encode
    lending = Lending(world, deadline)
    asked = lending.ask({k: (opener(k, world.size), encode(record)) for k, record in below.items()})
    files: dict[int, bytes] = {}
    opened: dict[int, Manifest] = {}

    def open_all() -> None:
        for role, record in sorted(asked.items()):
            data = known[role] if role in known else read_manifest(store, attempt, role, visibility)
            opened[role] = open_child(data, _RECORD.decode(record), root, manifest_file(attempt, role))
            files[role] = data

    long_work(world, open_all, lambda: len(files), deadline)
    got = lending.serve(files)

    def believe() -> list[Manifest]:
        return [
            opened[role] if role in opened else believe_child(got[role], record, attempt)
            for role, record in below.items()
        ]

    return everybody(world, believe, deadline)
