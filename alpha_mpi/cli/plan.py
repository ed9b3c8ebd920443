"""`alpha-mpi plan STORE [GENERATION] --owners N`: what a resume on N owners would read."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from typing import Any

import click

from ..errors import Refused, bounded
from ..format.manifest import Place, piece_of
from ..model.layout import Irregular, from_data
from ..model.pieces import Interval
from ..model.schema import Region
from ..restore import choose
from ..restore.generation import Generation
from ..restore.packs import file_of
from ..restore.plan import DOCUMENTS, PER_OWNER, Held, Need, Plan, is_replicated, plan
from . import text
from .generation import find, open_to_read
from .group import DAMAGED, FINE, GENERATION, STORE, Answer, alpha_mpi, answering

#: Most owners a plan is made for.
MOST = 1 << 20


@alpha_mpi.command("plan")
@STORE
@GENERATION
@click.option("--owners", type=click.IntRange(1), metavar="N", help="Owners of the job; as saved by default.")
@answering
def plan_(store: str, generation: str, owners: int | None) -> Answer:
    """Say what resuming a GENERATION of STORE on N owners would read: files and bytes per owner.

    Under the layout rules it was saved with. Replicated words are read once, and sent to the other
    owners. Reads manifests, and no shard. Exit codes: 0 fine, 1 damaged or it fits no N owners, 2
    wrong usage.
    """
    with open_to_read(store) as opened:
        found = find(opened, choose.survey(opened), generation)
        held = Generation.open(opened, *found.position)
        count = owners or held.root.owners
        if count > MOST:  # whatever a root says
            raise Refused(
                "that many owners are not looked at one by one: say --owners",
                code="argument",
                expected=f"at most {MOST}",
                found=count,
            )
        data = _data(held, count)
    return (DAMAGED if data["refused"] else FINE), _lines(data), data


def _data(generation: Generation, owners: int) -> dict[str, Any]:
    refused: dict[str, str] = {}
    per_owner: list[dict[str, Any]] = []
    packs: set[Place] = set()
    helds = generation.helds()
    roles = len({held.role for held in helds})
    by_region: dict[int, list[Held]] = collections.defaultdict(list)
    for held in helds:
        by_region[held.record.ordinal].append(held)
    rows = [collections.Counter[str]() for _ in range(owners)]
    files: list[set[Place]] = [set() for _ in range(owners)]
    for region in generation.regions:
        try:
            needs = list(_needs(generation, region, owners))
            if needs:
                made = plan([need for _, need in needs], by_region[region.ordinal], generation.regions)
                _count(made, [owner for owner, _ in needs], region, rows, files)
        except Refused as error:
            error.region = region.name
            refused[region.name] = str(error)
    for owner in range(owners):
        packs |= files[owner]
        names = sorted(file_of(place) for place in files[owner])
        row = {"owner": owner, "files": names, "bytes": rows[owner]["bytes"], "shards": rows[owner]["shards"]}
        per_owner.append(row)
    return {
        "name": generation.candidate.name,
        "owners": owners,
        "saved_owners": generation.root.owners,
        "manifests": roles,
        "packs": len(packs),
        "bytes": sum(row["bytes"] for row in per_owner),
        "per_owner": per_owner,
        "refused": refused,
    }


def _needs(generation: Generation, region: Region, owners: int) -> Iterator[tuple[int, Need]]:
    """Yield (owner who reads, need). Raises `Refused` where the region's rule fits no such number."""
    root, ordinal = generation.root, region.ordinal
    data = root.layouts[ordinal]
    if region.kind in PER_OWNER:
        if owners != root.owners:
            raise Refused(
                "what each owner has of its own fits no other number of owners",
                code="per-owner-state",
                region=region.name,
                expected=f"{root.owners} owners",
                found=f"{owners} owners",
            )
        if region.size or region.kind in DOCUMENTS:
            yield from ((k, Need(ordinal, k, None)) for k in range(owners))
        return
    if region.kind in DOCUMENTS:
        yield 0, Need(ordinal, None, None)
        return
    if not region.size:
        return
    if is_replicated(region, data):
        # The shards as they were dealt, each read by one owner.
        for held in generation.helds():
            if held.record.ordinal == ordinal:
                start, stop = held.record.piece
                yield held.record.owner % owners, Need(ordinal, None, Interval(start, stop))
        return
    rule = from_data(data)
    if isinstance(rule, Irregular):
        if owners != root.owners:
            raise Refused(
                "an irregular layout: which pieces other owners need is known to the job alone",
                code="layout",
                expected=f"{root.owners} owners",
                found=f"{owners} owners",
            )
        for held in generation.helds():
            if held.record.ordinal == ordinal:
                yield held.record.owner, Need(ordinal, None, piece_of(held.record.piece))
        return
    rule.check(region.shape, owners)
    for k in range(owners):
        group = rule.group(region.shape, owners, k)
        if group and group[0] == k:
            for piece in rule.pieces(region.shape, owners, k):
                if piece is not None:
                    yield k, Need(ordinal, None, piece)


def _count(
    made: Plan,
    readers: list[int],
    region: Region,
    rows: list[collections.Counter[str]],
    files: list[set[Place]],
) -> None:
    for read in made.reads:
        whole = read.record.nbytes
        words = region.size if not read.record.piece else _words(read.record.piece)
        for copy in read.copies:
            owner = readers[copy.need]
            files[owner].add(read.record.places[0])
            rows[owner]["shards"] += 1
            if copy.blocks is None or not words:
                rows[owner]["bytes"] += whole
            else:
                taken = sum(math.prod(block.shape) for block in copy.blocks)
                rows[owner]["bytes"] += whole * taken // words


def _words(piece: tuple[int, ...]) -> int:
    if len(piece) == 2:
        return piece[1] - piece[0]
    rank = piece[0]
    return math.prod(b - a for a, b in zip(piece[1 : rank + 1], piece[rank + 1 :], strict=True))


def _lines(data: dict[str, Any]) -> list[str]:
    packs, manifests = text.count(data["packs"], "pack"), text.count(data["manifests"], "manifest")
    lines = [
        f"{data['name']}, saved by {data['saved_owners']}, on {text.count(data['owners'], 'owner')}: "
        f"{text.size(data['bytes'])} of {packs}, {manifests}"
    ]
    table: list[tuple[object, ...]] = [("owner", "packs", "shards", "size")]
    for row in data["per_owner"][:64]:
        table.append((row["owner"], len(row["files"]), row["shards"], text.size(row["bytes"])))
    lines += text.columns(table, right=(0, 1, 2, 3))
    if len(data["per_owner"]) > 64:
        lines.append(f"and {len(data['per_owner']) - 64} more (--json lists all)")
    return lines + [f"refused: {bounded(why)}" for why in data["refused"].values()]
