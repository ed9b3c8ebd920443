"""Refusals of a generation as a whole: it is not this job's, whatever its bytes.

They come before any shard is read, and before any manifest below the root.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Refused
from ..format.manifest import Manifest, Root
from ..model.identity import Contract, Learner
from ..model.layout import Rule, from_data
from ..model.schema import Schema
from ..protocol.hierarchy import Hierarchy, Star
from .plan import PER_OWNER


def schema_of(root: Root, known: Schema | None = None) -> Schema:
    """Return the schema that a root explains: `known`, if it is that one.

    Raises `Refused` for one this library cannot mean.
    """
    if known is not None and len(root.schema) == len(known.regions):
        both = zip(root.schema, known.regions, strict=True)
        if all((a.name, a.kind, a.format, a.shape) == (b.name, b.kind, b.format, b.shape) for a, b in both):
            return known
    return Schema.of((r.name, r.kind, r.format, r.shape) for r in root.schema)


def check_root(manifest: Manifest, file: str, known: Schema | None = None) -> Schema:
    """Refuse a root whose schema or layout rules this library cannot mean; return its schema.

    Called by whoever reads a root. Its decoder has compared what it explains with the digests of
    its prefix.
    """
    root = manifest.root
    if root is None:
        raise Refused("this manifest is not a root", code="corrupt-root", file=file)
    try:
        last: object = None
        for data in root.layouts:
            if data != last:
                from_data(data)
            last = data
        return schema_of(root, known)
    except Refused as error:
        error.file = error.file or file
        raise


def compare(
    manifest: Manifest,
    schema: Schema,
    learner: Learner,
    contract: Contract,
    rules: Sequence[Rule],
    owners: int,
    hierarchy: Hierarchy,
    file: str,
) -> None:
    """Refuse a generation that is not one of this job's: what the job declares comes first.

    Called on owner 0, since all owners declare the same. Raises `Refused`: ``schema-differs`` (all
    differences in one message), ``other-learner``, ``other-contract``, ``per-owner-state``,
    ``other-placement``.
    """
    root = manifest.root
    assert root is not None
    saved = schema_of(root, schema)
    if saved is not schema:
        raise Refused(
            f"the generation holds another state than is declared: {'; '.join(schema.difference(saved))}",
            code="schema-differs",
            region=_first(schema, saved),
            file=file,
        )
    lines = learner.difference(Learner.from_data(root.learner))
    if lines:
        raise Refused(
            f"the generation is of another learner: {'; '.join(lines)}", code="other-learner", file=file
        )
    lines = contract.difference(Contract.from_data(root.contract))
    if lines:
        raise Refused(
            f"the generation was made under another numerical contract: {'; '.join(lines)}",
            code="other-contract",
            file=file,
        )
    _compare_placement(root, schema, rules, owners, hierarchy, file)


def _first(mine: Schema, theirs: Schema) -> str | None:
    """The first region in which two schemas differ."""
    for a, b in zip(mine.regions, theirs.regions, strict=False):
        if a != b:
            return a.name
    longer = max(mine.regions, theirs.regions, key=len)
    shorter = min(len(mine.regions), len(theirs.regions))
    return longer[shorter].name if len(longer) > shorter else None


def _compare_placement(
    root: Root, schema: Schema, rules: Sequence[Rule], owners: int, hierarchy: Hierarchy, file: str
) -> None:
    if root.owners != owners:
        own = [r.name for r in schema.regions if r.kind in PER_OWNER]
        if own:
            raise Refused(
                f"what each owner has of its own fits no other number of owners: {', '.join(own)}",
                code="per-owner-state",
                region=own[0],
                file=file,
                expected=f"{root.owners} owners",
                found=f"{owners} owners",
            )
        raise _placed("number of owners", root.owners, owners, file)
    mine: dict[str, object] = {"kind": "star"}
    if not isinstance(hierarchy, Star):
        mine = {"fan_out": hierarchy.fan_out, "kind": "tree"}
    if dict(root.hierarchy) != mine:
        raise _placed("hierarchy", _spell(root.hierarchy), _spell(mine), file)
    for region, rule, data in zip(schema.regions, rules, root.layouts, strict=True):
        if rule.as_data() != data:
            error = _placed("layout", data, rule.as_data(), file)
            error.region = region.name
            raise error


def _spell(hierarchy: dict[str, object]) -> str:
    fan_out = hierarchy.get("fan_out")
    return str(hierarchy.get("kind")) + (f" of fan-out {fan_out}" if fan_out is not None else "")


def _placed(what: str, expected: object, found: object, file: str) -> Refused:
    return Refused(
        f"the generation was saved on another {what}, and can be resumed on that one only",
        code="other-placement",
        file=file,
        expected=expected,
        found=found,
    )
