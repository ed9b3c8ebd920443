"""Copies: pieces that a group of owners holds, of which the lowest owner's shard stands in the store.

On a tree the lowest owner of the group reads it and passes it on, so that no role reads a manifest
or a pack beside its own path. On a star every owner finds the shard in the one manifest it has. A
generation that was saved on another placement is read by the lowest owner on both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from .. import digest
from ..canonical import canonical
from ..errors import Cause
from ..model.layout import Rule
from ..model.schema import Schema
from ..mpi.agreement import bcast
from ..mpi.world import World
from .replicas import Incoming, Share, Spreading, Stored, bundles

_HEAD = msgspec.msgpack.Decoder(tuple[int, list[str]])


def has_groups(rule: Rule) -> bool:
    """Return whether owners may hold the same piece by this rule, and not all of them."""
    data = rule.as_data()
    if data["rule"] == "on":
        return data["of"]["rule"] in ("mesh", "replicated")
    return bool(data["rule"] == "mesh")


def alike(schema: Schema, rules: Sequence[Rule | None]) -> list[list[int]]:
    """Return the regions whose owners fall into the same groups: the same lists on every owner."""
    found: dict[tuple[bytes, tuple[int, ...]], list[int]] = {}
    for region, rule in zip(schema.regions, rules, strict=True):
        if rule is not None and region.kind == "array" and region.size and has_groups(rule):
            found.setdefault((canonical(rule.as_data()), region.shape), []).append(region.ordinal)
    return list(found.values())


def receive(
    comm: World,
    group: Sequence[int],
    nbytes: Mapping[int, int],
    budget: int,
    held: Mapping[int, tuple[str, Stored]],
    incoming: Mapping[int, Incoming],
    deadline: float,
) -> tuple[Spreading, Cause | None]:
    """Pass pieces from the lowest owner of a group to the others; each checks what it receives.

    Called by every member of `comm`, whose rank i is owner ``group[i]``. `nbytes` says how long the
    piece of each region is. `held` has, on the lowest owner, the shard digest its manifest names and
    the bytes of each; the others have `incoming`. At most `budget` bytes (the lowest
    owner's counts) are kept. Returns the transfer, and the cause of a failure on any member.
    """
    writer = comm.rank == 0
    head = msgspec.msgpack.encode((budget, [held[o][0] for o in nbytes])) if writer else None
    limit, named = _HEAD.decode(bcast(comm, head, 0, deadline))
    shares = [Share(ordinal, 0, 0, length) for ordinal, length in nbytes.items()]
    sources = {share: held[share.ordinal][1] for share in shares} if writer else {}
    wanted = {} if writer else {ordinal: incoming[ordinal] for ordinal in nbytes}
    spreading = Spreading(comm, group, bundles(shares, limit, frozenset()), sources, wanted, deadline)
    cause = spreading.receive()
    if cause is None:
        for ordinal, expected in zip(nbytes, named, strict=True):
            if ordinal in wanted:
                wanted[ordinal].check(expected, digest.shard)
    return spreading, cause
