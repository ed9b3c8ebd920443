"""Validity of a manifest by itself (docs/format.md, section 7): asked on encoding and decoding.

A fault is reported with the file, what was expected and what was found; the first one ends it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from .. import digest
from ..canonical import canonical
from ..model.capture import FORMAT_VERSION, Prefix
from . import columns
from .body import DEPTH, encode_body, is_deeper
from .columns import RANK, starts
from .envelope import are_digests, is_digest
from .question import LARGEST, LARGEST_U4, Question

if TYPE_CHECKING:
    from .manifest import ChildRecord, DeviceRecord, Manifest, Place, Root, ShardRecord

#: Longest name of a region, in characters.
NAME = 1024
#: Most places of one shard.
PLACES = 64
#: Kinds of regions; a retired one keeps its line.
REGION_KINDS = ("array", "per-owner", "document", "per-owner-document")
DOCUMENT_KINDS = ("document", "per-owner-document")

#: Longest name of a device product, in characters.
PRODUCT = 256

is_uuid = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII).fullmatch
is_format = re.compile(r"[a-z][0-9a-z_]{0,31}", re.ASCII).fullmatch


def is_score(text: str) -> bool:
    """Return whether `text` is the one hexadecimal form of a finite number."""
    try:
        value = float.fromhex(text)
    except (ValueError, OverflowError):
        return False
    return math.isfinite(value) and value.hex() == text


def piece_fault(piece: Sequence[int]) -> str | None:
    """Return what is wrong with a record's piece by itself, or None."""
    if not piece:
        return None
    if len(piece) == 2:
        starts, stops = piece[:1], piece[1:]
    else:
        rank = piece[0]
        if not 1 <= rank <= RANK or len(piece) != 2 * rank + 1:
            return "not [], [start, stop] or [rank, *starts, *stops]"
        starts, stops = piece[1 : rank + 1], piece[rank + 1 :]
    for start, stop in zip(starts, stops, strict=True):
        if not 0 <= start < stop <= LARGEST:
            return "it holds no word, or lies outside every region"
    return None


def check_manifest(manifest: Manifest, *, file: str, code: str) -> None:
    """Refuse a manifest that is not valid by itself."""
    ask = Question(file, code)
    if manifest.kind != "manifest":
        ask.refuse("kind", "manifest", manifest.kind)
    check_prefix(manifest.prefix, ask)
    ask.number("role", manifest.role, 0, LARGEST_U4)
    ask.number("subtree size", manifest.size, 1, LARGEST_U4)
    _check_children(manifest, manifest.children, ask)
    _check_shards(manifest.shards, ask)
    check_devices(manifest.devices, ask)
    if (manifest.role == 0) != (manifest.root is not None):
        ask.refuse("role 0, and no other, is the root", "role 0", f"role {manifest.role}")
    if manifest.root is not None:
        _check_root(manifest, manifest.root, ask)


def check_prefix(prefix: Prefix, ask: Question) -> None:
    """Refuse a capture prefix that is not valid by itself."""
    ask.number("format version", prefix.version, FORMAT_VERSION, FORMAT_VERSION)
    ask.number("epoch of the attempt", prefix.attempt.epoch, 1)
    ask.number("save number", prefix.attempt.save, 1)
    for name in ("schema", "learner", "contract", "layout", "cover", "replicas"):
        ask.digest(f"{name} digest of the prefix", getattr(prefix, name))
    ask.number("update", prefix.moment.update)
    ask.number("cursor", prefix.moment.cursor)
    ask.number("epoch of the moment", prefix.moment.epoch, 1)


def check_child(child: ChildRecord, ask: Question) -> None:
    """Refuse a child record that is not valid by itself."""
    ask.number("role of a child", child.role, 1, LARGEST_U4)
    ask.number(f"subtree size of child {child.role}", child.size, 1, LARGEST_U4)
    ask.digest(f"manifest digest of child {child.role}", child.manifest)
    ask.digest(f"cover digest of child {child.role}", child.cover)


def _check_children(manifest: Manifest, children: Sequence[ChildRecord], ask: Question) -> None:
    at = manifest.role + 1
    for child in children:
        if child.role != at:
            ask.refuse("a child is out of preorder", f"role {at}", f"role {child.role}")
        check_child(child, ask)
        at += child.size
    if at != manifest.role + manifest.size:
        ask.refuse("the subtree's size", f"{at - manifest.role} by its children", manifest.size)


def _are_sound(shards: Sequence[ShardRecord]) -> bool:
    """Whether all shard records are surely valid: of one digest algorithm, in one place, and sound in
    columns. False says only that they are to be judged one by one."""
    first = shards[0]
    if len(first.places) != 1 or [record.places for record in shards].count(first.places) != len(shards):
        return False
    pieces = columns.Pieces(
        [record.ordinal for record in shards],
        [record.owner for record in shards],
        [record.piece for record in shards],
    )
    nbytes, digests = [record.nbytes for record in shards], [record.digest for record in shards]
    return columns.are_sound(pieces, nbytes, digests)


def _check_shards(shards: Sequence[ShardRecord], ask: Question) -> None:
    if len(shards) > 1 and _are_sound(shards):
        _check_places(shards[0], ask)
        return
    before: tuple[int, int] = (-1, -1)
    last: tuple[int, ...] = ()
    sound: set[tuple[Place, ...]] = set()
    for record in shards:
        at, piece = (record.ordinal, record.owner), record.piece
        if not 0 <= at[0] <= LARGEST_U4 or not 0 <= at[1] <= LARGEST_U4:
            ask.refuse("ordinal and owner of a shard", f"0 to {LARGEST_U4}", f"{at[0]}, {at[1]}")
        if len(piece) != 2 or not 0 <= piece[0] < piece[1] <= LARGEST:
            fault = piece_fault(piece)
            if fault:
                ask.refuse(f"piece of {_name(record)}: {fault}", found=list(piece)[:9])
        # Starts in one shape compare as their flattened indices do; an Interval beside a Box is
        # compared where the shape is known (`records.check_records`).
        same = at == before and len(piece) == len(last)
        if at < before or (same and starts(piece) <= starts(last)):
            ask.refuse("shard records out of order", f"after {_spell(before, last)}", _spell(at, piece))
        before, last = at, piece
        if not 1 <= record.nbytes <= LARGEST:
            ask.refuse(f"byte count of {_name(record)}", f"1 to {LARGEST}", str(record.nbytes)[:40])
        if is_digest(record.digest) is None:
            ask.digest(f"shard digest of {_name(record)}", record.digest)
        if record.places not in sound:
            _check_places(record, ask)
            sound.add(record.places)


def _spell(at: tuple[int, int], piece: Sequence[int]) -> str:
    return f"ordinal {at[0]}, owner {at[1]}, piece {list(piece)[:9]}"


def _name(record: ShardRecord) -> str:
    return f"the shard of ordinal {record.ordinal}, owner {record.owner}"


def _check_places(record: ShardRecord, ask: Question) -> None:
    if not 1 <= len(record.places) <= PLACES or len(set(record.places)) != len(record.places):
        ask.refuse(f"places of {_name(record)}", f"1 to {PLACES} different ones", len(record.places))
    for place in record.places:
        ask.number(f"epoch of a place of {_name(record)}", place.epoch, 1)
        ask.number(f"save number of a place of {_name(record)}", place.save, 1)
        ask.number(f"role of a place of {_name(record)}", place.role, 0, LARGEST_U4)


def check_devices(devices: Sequence[DeviceRecord] | msgspec.UnsetType, ask: Question) -> None:
    """Refuse device records that are not valid by themselves; an empty list is left out."""
    if devices is msgspec.UNSET:
        return
    if not devices:
        ask.refuse("devices", "at least one, or no such field")
    before = (-1, "")
    for device in devices:
        ask.number("owner of a device", device.owner, 0, LARGEST_U4)
        ask.text("product of a device", device.product, PRODUCT, 1)
        ask.text("MIG profile of a device", device.mig, PRODUCT)
        if is_uuid(device.uuid) is None or device.uuid.startswith("MIG") != bool(device.mig):
            ask.refuse("UUID of a device", "GPU-... of a card, MIG-... of a slice", device.uuid[:100])
        if (device.owner, device.uuid) <= before:
            ask.refuse("devices out of order", f"one after {before}", f"{(device.owner, device.uuid)}"[:100])
        before = device.owner, device.uuid


def _check_root(manifest: Manifest, root: Root, ask: Question) -> None:
    ask.identifier("store id", root.store)
    ask.number("entry", root.entry, 1)
    if root.continues is not None:
        ask.digest("root digest of the generation continued", root.continues)
    ask.number("owners", root.owners, 1, LARGEST_U4)
    _check_hierarchy(manifest, root, ask)
    schema, layouts = _judged("schema", root.schema), _judged("layout", root.layouts)
    if not schema.sound:
        _check_schema(root, ask)
    if len(root.layouts) != len(root.schema):
        ask.refuse("layout rules", f"{len(root.schema)}, one per region", len(root.layouts))
    data = [[] if layouts.sound else list(root.layouts), root.learner, root.contract]
    try:
        if is_deeper(encode_body(data), DEPTH - 2):
            ask.refuse("layouts, learner or contract nest too deep", f"at most {DEPTH - 2} levels")
        canonical(data)
    except (ValueError, TypeError, RecursionError) as error:
        ask.refuse(f"layouts, learner or contract: {error}", "canonical JSON data")
    if root.score is not None and not is_score(root.score):
        ask.refuse("score", "a finite number in the hexadecimal form of section 8", root.score[:100])
    _check_replicas(root, ask)
    _check_digests(manifest.prefix, root, schema, layouts, ask)


def _check_replicas(root: Root, ask: Question) -> None:
    ordinals, regions = [ordinal for ordinal, _ in root.replicas], [region for _, region in root.replicas]
    for last, ordinal in zip([-1, *ordinals], ordinals, strict=False):
        if not last < ordinal < len(root.schema):
            ask.refuse("replicated regions", f"ordinals in order below {len(root.schema)}", ordinal)
    if regions and not are_digests(regions):
        for ordinal, region in root.replicas:
            ask.digest(f"digest of replicated region {ordinal}", region)


def _check_digests(prefix: Prefix, root: Root, schema: _Judged, layouts: _Judged, ask: Question) -> None:
    """Refuse a root whose prefix does not name what the root says (docs/format.md, section 3)."""
    fields_of: dict[str, Callable[[], object]] = {
        "schema": lambda: [[r.name, r.kind, r.format, r.shape] for r in root.schema],
        "learner": lambda: root.learner,
        "contract": lambda: root.contract,
        "layout": lambda: [root.layouts, root.owners, root.hierarchy],
        "replicas": lambda: [region for _, region in root.replicas],
    }
    whole = {"schema": schema, "layout": layouts}
    for purpose, fields in fields_of.items():
        said, judged = getattr(prefix, purpose), whole.get(purpose)
        facts = said, root.owners, root.hierarchy
        if judged is not None and judged.named == facts:
            continue
        # What `digest.combine` gives, of fields that have a canonical form: `encode_body` is that form.
        hasher = digest.hasher(said.partition(":")[0])
        hasher.update(encode_body([purpose, fields()]) + b"\n")
        found = digest.text(hasher.digest(), said.partition(":")[0])
        if found != said:
            ask.refuse(f"{purpose} digest of the prefix", f"{found} of what the root says", said)
        if judged is not None:
            named = said, root.owners, dict(root.hierarchy)
            _keep(purpose, _Judged(judged.value, judged.body, True, named))


class _Judged(NamedTuple):
    """A part of a root: its value, that value's canonical bytes, whether the same was found sound,
    and the digest that it was named by then, with owners and hierarchy."""

    value: tuple[Any, ...]
    body: bytes
    sound: bool = False
    named: tuple[str, int, dict[str, Any]] | None = None


#: Of the last sound roots, by purpose. A job writes root after root with the same two parts, and a
#: resume reads them: to look at them once is enough.
_JUDGED: dict[str, list[_Judged]] = {}
#: How many are kept: those of a few stores that are written to, or read, by turns.
_KEPT = 4


def _keep(purpose: str, judged: _Judged) -> None:
    others = [one for one in _JUDGED.get(purpose, ()) if one.body != judged.body]
    _JUDGED[purpose] = [judged, *others[: _KEPT - 1]]


def _judged(purpose: str, value: tuple[Any, ...]) -> _Judged:
    """Return what is known of a part of a root. Bytes are compared: what is equal in Python (1, True,
    1.0) need not be the same value, and a layout's data are dicts, which may hold others by now."""
    known = _JUDGED.get(purpose, ())
    if purpose == "schema":
        for one in known:
            if one.value is value:
                return one
    try:
        body = encode_body(value)
    except (ValueError, TypeError, RecursionError):
        return _Judged(value, b"")  # judged by those who say what is wrong
    for one in known:
        if one.body == body:
            again = one._replace(value=value)
            _keep(purpose, again)  # so that the very value is known next time
            return again
    return _Judged(value, body)


def schema_body(root: Root) -> bytes:
    """Return the schema of a root that has been checked as canonical JSON: nearly always made already."""
    return _judged("schema", root.schema).body


def _check_hierarchy(manifest: Manifest, root: Root, ask: Question) -> None:
    said = dict(root.hierarchy)
    kind, size = said.pop("kind", None), root.owners
    if kind == "star" and not said:
        size = 1
    elif kind == "tree" and list(said) == ["fan_out"] and type(said["fan_out"]) is int:
        ask.number("fan-out", said["fan_out"], 1)
        most = min(said["fan_out"], size - 1)
        if len(manifest.children) != most:
            ask.refuse("children of the root", most, len(manifest.children))
    elif kind != "tree" or said.get("other") is not True or len(said) != 1:
        ask.refuse("hierarchy", "star, tree with a fan-out, or tree, other", str(root.hierarchy)[:200])
    if manifest.size != size:
        ask.refuse("roles in the tree", f"{size} for {root.owners} owners", manifest.size)


def _check_schema(root: Root, ask: Question) -> None:
    names = set()
    for region in root.schema:
        ask.text("name of a region", region.name, NAME, 1)
        if region.name in names:
            ask.refuse("two regions of one name", "different names", region.name[:200])
        names.add(region.name)
        if region.kind not in REGION_KINDS:
            ask.refuse("kind of a region", " or ".join(REGION_KINDS), region.kind[:100])
        if is_format(region.format) is None:
            ask.refuse("format of a region", "1 to 32 of [0-9a-z_]", region.format[:100])
        document = region.kind in DOCUMENT_KINDS
        if document != (region.format == "json") or (document and region.shape):
            ask.refuse(
                f"region {region.name[:200]!r}",
                "format json and shape [] for documents and for nothing else",
                f"{region.kind} of {region.format} {list(region.shape)[:9]}",
            )
        if len(region.shape) > RANK:
            ask.refuse("axes of a region", f"at most {RANK}", len(region.shape))
        for extent in region.shape:
            ask.number(f"extent of region {region.name[:200]!r}", extent)
        ask.number(f"words of region {region.name[:200]!r}", math.prod(region.shape))
