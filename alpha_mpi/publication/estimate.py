"""Estimate: how many bytes a generation will take, before any is written."""

from __future__ import annotations

from ..model.formats import by_name
from ..model.schema import Schema
from .shards import Shards

#: What a file, and a shard beside its words, takes at most on top: rounding, record, table, padding.
_FILE, _SHARD = 8192, 512


def array_nbytes(schema: Schema, owners: int) -> int:
    """Return the bytes of all array regions, those of every owner where they are per owner."""
    nbytes = 0
    for region in schema.regions:
        if not region.is_document:
            times = owners if region.kind == "per-owner" else 1
            nbytes += times * region.size * by_name(region.format).itemsize
    return nbytes


def estimate(arrays: int, owners: int, roles: int, shards: Shards) -> int:
    """Return about how many bytes the next generation takes in the store, rather more than less.

    Called by the root owner; `arrays` is `array_nbytes`, `shards` are its own: other owners are taken
    to hold as many, and documents as long.
    """
    nbytes = arrays
    for i in shards.wants.documents:
        source = shards[i]
        nbytes += source.nbytes * (owners if source.region.kind == "per-owner-document" else 1)
    tables = nbytes >> 15  # at most 32 bytes for each chunk of 1 MiB
    return nbytes + tables + 2 * roles * _FILE + (len(shards) + 1) * owners * _SHARD
