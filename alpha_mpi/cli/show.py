"""`alpha-mpi show STORE [GENERATION]`: what one generation says of itself."""

from __future__ import annotations

import math
from typing import Any

from ..model import formats
from ..restore import choose
from ..store import names
from ..store.observe import Candidate
from ..store.store import Store
from . import text
from .generation import find, state_of, weight
from .group import FINE, GENERATION, STORE, Answer, alpha_mpi, answering


@alpha_mpi.command()
@STORE
@GENERATION
@answering
def show(store: str, generation: str) -> Answer:
    """Show what a generation of STORE holds: moment, learner, contract, owners, regions.

    Reads its root alone. Exit codes: 0 fine, 1 damaged or refused, 2 wrong usage.
    """
    with Store.open(store) as opened:
        seen = choose.survey(opened)
        found = find(opened, seen, generation)
        files, nbytes = weight(opened, found.attempt)
        data = {**_data(found), "state": state_of(seen, found.position), "files": files, "bytes": nbytes}
    return FINE, _lines(data), data


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
    how = "a star" if shape.get("kind") == "star" else f"a tree of fan-out {shape.get('fan_out', '?')}"
    pairs = [
        ("generation", f"{data['name']} ({data['state']})"),
        ("moment", f"update {data['update']}, cursor {data['cursor']}, epoch {data['epoch']}"),
        ("owners", f"{data['owners']} on {how}"),
        ("learner", text.labels(data["learner"])),
        ("contract", text.labels(data["contract"])),
        ("files", f"{data['files']} in data/{data['attempt']}, {text.size(data['bytes'])}, and the root"),
        ("root", data["root"]),
        ("continues", data["continues"] or "nothing: the first of its lineage"),
    ]
    table: list[tuple[object, ...]] = [("region", "format", "shape", "size", "layout")]
    for region in data["regions"]:
        amount = "" if region["bytes"] is None else text.size(region["bytes"])
        extents = "x".join(map(str, region["shape"])) if region["bytes"] is not None else ""
        kind = "document" if region["format"] == "json" else region["format"]
        table.append((region["name"], kind, extents, amount, text.layout(region["layout"])))
    return [*text.columns(pairs), "", *text.columns(table, right=(3,))]
