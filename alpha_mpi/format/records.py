"""Records against the root: what a manifest alone cannot know (docs/format.md, section 12).

Asked of every manifest of a generation, the root's included, once the root is known.
"""

from __future__ import annotations

import math

from ..model.formats import JSON, by_name
from .manifest import Manifest, Root, ShardRecord, start_in
from .question import LARGEST, Question


def check_records(manifest: Manifest, root: Root, file: str) -> None:
    """Refuse a manifest whose records do not fit the root's schema, owners and hierarchy.

    Raises `Refused` (`corrupt-manifest`, `corrupt-root` for role 0; `format` for a number format
    that this library does not know).
    """
    ask = Question(file, "corrupt-manifest" if manifest.root is None else "corrupt-root")
    _check_children(manifest, root, ask)
    tree = root.hierarchy.get("kind") == "tree"
    for device in manifest.recorded:
        if device.owner >= root.owners or (tree and device.owner != manifest.role):
            expected = f"owner {manifest.role}" if tree else f"owners below {root.owners}"
            ask.refuse("a device of another owner", expected, device.owner)
    extents: dict[int, tuple[int, int]] = {}
    before = (-1, -1, -1)
    for record in manifest.shards:
        if record.ordinal >= len(root.schema):
            ask.refuse("a shard of no region", f"ordinals below {len(root.schema)}", record.ordinal)
        if record.owner >= root.owners or (tree and record.owner != manifest.role):
            expected = f"owner {manifest.role}" if tree else f"owners below {root.owners}"
            ask.refuse(f"{_name(record, root)} is of another owner", expected, record.owner)
        if record.ordinal not in extents:
            extents[record.ordinal] = _extent(record, root, ask)
        start = _check(record, root, *extents[record.ordinal], ask)
        key = (record.ordinal, record.owner, start)
        if key <= before:
            ask.refuse("shard records out of order", f"a key after {before}", key)
        before = key


def _check_children(manifest: Manifest, root: Root, ask: Question) -> None:
    """Refuse children that are not those the fan-out gives: shares, the larger first."""
    if "fan_out" not in root.hierarchy:
        return
    below = manifest.size - 1
    count = min(root.hierarchy["fan_out"], below)
    expected = [below // count + (i < below % count) for i in range(count)]
    found = [child.size for child in manifest.children]
    if found != expected:
        ask.refuse("subtree sizes of the children", str(expected)[:200], str(found)[:200])


def _name(record: ShardRecord, root: Root) -> str:
    return f"the shard of region {root.schema[record.ordinal].name[:200]!r}, owner {record.owner}"


def _extent(record: ShardRecord, root: Root, ask: Question) -> tuple[int, int]:
    """Return (words, bytes of one) of a region; words is 0 for documents of any length."""
    region = root.schema[record.ordinal]
    if region.format == JSON:
        return 0, 1
    itemsize, words = by_name(region.format).itemsize, math.prod(region.shape)
    if words * itemsize > LARGEST:
        ask.refuse(f"bytes of region {region.name[:200]!r}", f"at most {LARGEST}", words * itemsize)
    return words, itemsize


def _check(record: ShardRecord, root: Root, words: int, itemsize: int, ask: Question) -> int:
    region, piece = root.schema[record.ordinal], record.piece
    if (region.kind == "array") == (piece == ()):
        expected = "an Interval or a Box" if region.kind == "array" else "a whole"
        ask.refuse(f"piece of {_name(record, root)}", expected, list(piece)[:9])
    if len(piece) == 2:
        held, start, inside = piece[1] - piece[0], piece[0], piece[1] <= words
    elif piece:
        held, start, inside = _box(piece, region.shape)
    else:
        held, start, inside = words, 0, True
    if not inside:
        ask.refuse(f"piece of {_name(record, root)}", f"inside {list(region.shape)[:9]}", list(piece)[:9])
    if region.format != JSON and record.nbytes != held * itemsize:
        ask.refuse(f"bytes of {_name(record, root)}", f"{held} words of {itemsize}", record.nbytes)
    return start


def _box(piece: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, int, bool]:
    """Return (words, start, whether it lies inside) of a Box."""
    rank = piece[0]
    if rank == 1 == len(shape):
        return piece[2] - piece[1], piece[1], piece[2] <= shape[0]
    starts, stops = piece[1 : rank + 1], piece[rank + 1 :]
    if rank != len(shape) or any(stop > n for stop, n in zip(stops, shape, strict=True)):
        return 0, 0, False
    held = math.prod([stop - start for start, stop in zip(starts, stops, strict=True)])
    return held, start_in(piece, shape), True
