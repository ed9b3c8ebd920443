"""`alpha-mpi show STORE [GENERATION]`: what one generation says of itself."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from ..errors import CheckpointError, Refused, bounded
from ..format.manifest import Manifest, piece_of
from ..model import formats
from ..model.pieces import size
from ..restore import choose
from ..restore.generation import Generation, walk
from ..restore.plan import DOCUMENTS, PER_OWNER
from ..store import names
from ..store.observe import Candidate
from ..store.store import Store
from . import picture, text
from .generation import check_there, find, open_to_read, signature, state_of, weight
from .group import DAMAGED, FINE, GENERATION, STORE, Answer, alpha_mpi, answering


@alpha_mpi.command()
@STORE
@GENERATION
@click.option("--tree", is_flag=True, help="Draw the tree of manifests; reads all of them.")
@click.option("--map", "region", metavar="REGION", help="Draw who holds which words of REGION.")
@answering
def show(store: str, generation: str, tree: bool, region: str | None) -> Answer:
    """Show what a generation of STORE holds: moment, learner, contract, regions, documents.

    Reads its root, and what its documents need. Exit codes: 0 fine, 1 damaged or refused, 2 wrong
    usage.
    """
    with open_to_read(store) as opened:
        seen = choose.survey(opened)
        found = find(opened, seen, generation)
        files, nbytes = weight(opened, found.attempt)
        if region is not None:
            data = _map(Generation.open(opened, *found.position), region)
            return FINE, [*data.pop("drawing"), "", *picture.holders(data["shards"])], data
        if tree:
            return _tree(opened, found)
        data = {**_data(found), "state": state_of(seen, found.position), "files": files, "bytes": nbytes}
        root = found.manifest.root
        data["signature"] = signature(opened, root is not None and root.signed)
        claim = seen.claims.get(found.epoch)
        data["accepted"] = [] if claim is None else [list(one) for one in claim.accepted]
        data["documents"], failed = _documents(Generation.open(opened, *found.position))
        if failed is not None:
            data["damaged"] = failed
    return (FINE if failed is None else DAMAGED), _lines(data), data


def _documents(generation: Generation) -> tuple[dict[str, Any], str | None]:
    """Return what the documents hold; with the reason why, where they cannot be read."""
    found: dict[str, Any] = {}
    failed = None
    for region in generation.regions:
        if region.kind in DOCUMENTS:
            try:
                found[region.name] = generation.document(region.name)
            except (CheckpointError, OSError) as error:
                failed = failed or str(error)
    return found, failed


def _tree(store: Store, found: Candidate) -> Answer:
    root = found.manifest
    depths = {0: 0}
    rows: list[dict[str, Any]] = [{"role": 0, "depth": 0, "subtree": root.size, "shards": len(root.shards)}]
    rows[0] |= {"bytes": sum(shard.nbytes for shard in root.shards), "devices": _devices(root)}
    depths.update((child.role, 1) for child in root.children)
    damaged = []
    for node in walk(store, root):
        assert node.record is not None
        row: dict[str, Any] = {"role": node.role, "depth": depths[node.role], "subtree": node.record.size}
        if node.manifest is None:
            row["damaged"] = str(node.error)
            damaged.append(node.role)
        else:
            row |= {"shards": len(node.manifest.shards), "bytes": sum(s.nbytes for s in node.manifest.shards)}
            row["devices"] = _devices(node.manifest)
            depths.update((child.role, depths[node.role] + 1) for child in node.manifest.children)
        rows.append(row)
    lines = picture.tree([(row["depth"], _node(row)) for row in rows])
    if damaged:
        check_there(store, found.position)
    return (DAMAGED if damaged else FINE), lines, {"name": found.name, "manifests": rows, "damaged": damaged}


def _node(row: dict[str, Any]) -> str:
    below = f", {text.count(row['subtree'] - 1, 'role')} below" if row["subtree"] > 1 else ""
    if "damaged" in row:
        return f"role {row['role']}{below}: damaged: {bounded(row['damaged'])}"
    cards = "; ".join(f"{device['product']} ({device['uuid']})" for device in row["devices"])
    on = f", on {bounded(cards, 400)}" if cards else ""
    return f"role {row['role']}{below}: {text.count(row['shards'], 'shard')}, {text.size(row['bytes'])}{on}"


def _devices(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the devices that a manifest records, each with its owner."""
    found = manifest.recorded
    return [{"owner": d.owner, "product": d.product, "uuid": d.uuid, "mig": d.mig} for d in found]


def _map(generation: Generation, name: str) -> dict[str, Any]:
    region = generation.schema.named(name)
    if region is None:
        raise Refused(
            "the generation has no such region",
            code="no-region",
            region=name,
            expected=", ".join(r.name for r in generation.regions[:20]),
        )
    shards = []
    pieces = []
    for held in generation.helds():
        record = held.record
        if record.ordinal != region.ordinal:
            continue
        piece = piece_of(record.piece)
        words = region.size if piece is None else size(piece)
        row = {"owner": record.owner, "role": held.role, "piece": picture.spell(piece), "words": words}
        shards.append({**row, "bytes": record.nbytes})
        if piece is not None:
            pieces.append((record.owner, piece))
    drawing = [] if region.kind in (*DOCUMENTS, *PER_OWNER) else picture.region_map(region.shape, pieces)
    layout = text.layout(generation.root.layouts[region.ordinal])
    extents = "x".join(map(str, region.shape))
    what = f"{region.kind} of {region.format} {extents}".strip()
    head = f"{bounded(region.name, 200)}: {what}, {layout}"
    data = {"region": region.name, "shape": list(region.shape), "layout": layout, "shards": shards}
    return {**data, "drawing": [head, *drawing]}


def _data(found: Candidate) -> dict[str, Any]:
    manifest = found.manifest
    root, prefix = manifest.root, manifest.prefix
    assert root is not None
    regions = []
    for region, rule in zip(root.schema, root.layouts, strict=True):
        told = {
            "name": region.name,
            "kind": region.kind,
            "format": region.format,
            "shape": list(region.shape),
        }
        regions.append(
            {**told, "layout": rule, "bytes": _bytes(region.kind, region.format, region.shape, root.owners)}
        )
    return {
        "name": found.name,
        "root": found.root,
        "continues": root.continues,
        "attempt": names.attempt(found.attempt),
        "update": prefix.moment.update,
        "cursor": prefix.moment.cursor,
        "epoch": prefix.moment.epoch,
        "owners": root.owners,
        "hierarchy": root.hierarchy,
        "learner": root.learner,
        "contract": root.contract,
        "score": None if root.score is None else float.fromhex(root.score),
        "digests": {"schema": prefix.schema, "layout": prefix.layout, "cover": prefix.cover},
        "regions": regions,
    }


def _bytes(kind: str, format: str, shape: tuple[int, ...], owners: int) -> int | None:
    """Return the bytes of a region over all owners; None for a document, whose length stands elsewhere."""
    if format == "json":
        return None
    return math.prod(shape) * formats.by_name(format).itemsize * (owners if kind == "per-owner" else 1)


def _lines(data: dict[str, Any]) -> list[str]:
    shape = data["hierarchy"]
    how = f"a tree of fan-out {shape['fan_out']}" if "fan_out" in shape else "a tree by nodes"
    how = "a star" if shape.get("kind") == "star" else how
    pairs: list[tuple[str, object]] = [
        ("generation", f"{data['name']} ({data['state']})"),
        ("moment", f"update {data['update']}, cursor {data['cursor']}, epoch {data['epoch']}"),
        ("owners", f"{data['owners']} on {how}"),
        ("learner", text.labels(data["learner"])),
        ("contract", text.labels(data["contract"])),
        ("files", f"{data['files']} in data/{data['attempt']}, {text.size(data['bytes'])}, and the root"),
        ("root", data["root"]),
        ("signature", data["signature"]),
        ("continues", data["continues"] or "nothing: the first of its lineage"),
    ]
    if data["score"] is not None:
        pairs.insert(2, ("score", data["score"]))
    lines = [*text.columns(pairs, limit=2000), *(f"  {line}" for line in text.accepted(data["accepted"]))]
    table: list[tuple[object, ...]] = [("region", "format", "shape", "size", "layout")]
    for region in data["regions"]:
        amount = "" if region["bytes"] is None else text.size(region["bytes"])
        extents = "x".join(map(str, region["shape"])) if region["bytes"] is not None else ""
        kind = "document" if region["format"] == "json" else region["format"]
        table.append((region["name"], kind, extents, amount, text.layout(region["layout"])))
    lines += ["", *text.columns(table, right=(3,))]
    if data["documents"]:
        lines.append("")
    lines += [
        bounded(f"{name}: {json.dumps(value, ensure_ascii=False)}", 400)
        for name, value in data["documents"].items()
    ]
    return [*lines, *(f"damaged: {why}" for why in [data.get("damaged")] if why)]
