"""Own state: what each old owner had of its own, made known to every owner of another count.

Only for regions whose user gave a rule that makes the new owners' values out of the old ones'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ..format.documents import decode_document, encode_document
from ..model import formats
from ..model.schema import Region, Schema
from ..mpi.agreement import bcast
from ..mpi.world import World
from .plan import PER_OWNER
from .staging import Sink, fresh

_VALUES = msgspec.msgpack.Decoder(list[tuple[int, int, bytes]])


def gather(
    world: World, mine: Mapping[tuple[int, int], Any], schema: Schema, old_count: int, deadline: float
) -> dict[int, list[Any]]:
    """Return the values of all old owners, by ordinal and old owner.

    Called by every owner; `mine` are those it has read, by (ordinal, old owner): old owner k is
    read by owner k mod N. Every owner gets objects of its own.
    """
    regions = {r.ordinal: r for r in schema.regions if r.kind in PER_OWNER}
    values: dict[int, list[Any]] = {
        o: [None if r.is_document else fresh(r.shape, r.format) for _ in range(old_count)]
        for o, r in regions.items()
    }
    told = [(ordinal, old, _bytes(value, regions[ordinal])) for (ordinal, old), value in mine.items()]
    data = msgspec.msgpack.encode(told)
    for reader in range(min(world.size, old_count)):
        got = bcast(world, data if world.rank == reader else None, reader, deadline)
        for ordinal, old, words in _VALUES.decode(got):
            region = regions[ordinal]
            if region.is_document:
                values[ordinal][old] = decode_document(words)
            else:
                Sink(values[ordinal][old]).put(memoryview(words), 0, formats.by_name(region.format))
    return values


def _bytes(value: Any, region: Region) -> bytes:
    if region.is_document:
        return encode_document(value)
    return bytes(formats.payload(np.asarray(value), formats.by_name(region.format)))
