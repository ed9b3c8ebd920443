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
    repartition: frozenset[int] = frozenset(),
) -> bool:
    """Refuse a generation that is not one of this job's: what the job declares comes first.

    Returns whether it was saved on this very placement: owner count, hierarchy and layout rules.
    `repartition` are the per-owner regions that have a rule for another number of owners. Called
    on owner 0, since all owners declare the same. Raises `Refused`: ``schema-differs`` (all
    differences in one message), ``other-learner``, ``placement-bound``, ``other-contract``,
    ``per-owner-state``.
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
    theirs = Contract.from_data(root.contract)
    if theirs.bound and root.owners != owners:
        raise Refused(
            f"the generation is bound to the {root.owners} owners that saved it",
            code="placement-bound",
            file=file,
            expected=f"{root.owners} owners",
            found=f"{owners} owners",
        )
    lines = contract.difference(theirs)
    if lines:
        raise Refused(
            f"the generation was made under another numerical contract: {'; '.join(lines)}",
            code="other-contract",
            file=file,
        )
    if root.owners != owners:
        _check_own_state(root, schema, owners, file, repartition)
    return root.owners == owners and _same_placement(root, rules, hierarchy)


def _first(mine: Schema, theirs: Schema) -> str | None:
    """The first region in which two schemas differ."""
    for a, b in zip(mine.regions, theirs.regions, strict=False):
        if a != b:
            return a.name
    longer = max(mine.regions, theirs.regions, key=len)
    shorter = min(len(mine.regions), len(theirs.regions))
    return longer[shorter].name if len(longer) > shorter else None


def _check_own_state(root: Root, schema: Schema, owners: int, file: str, rules: frozenset[int]) -> None:
    own = [r.name for r in schema.regions if r.kind in PER_OWNER and r.ordinal not in rules]
    if own:
        raise Refused(
            f"what each owner has of its own fits no other number of owners: {', '.join(own)} "
            "(per_owner(..., repartition=) gives a rule)",
            code="per-owner-state",
            region=own[0],
            file=file,
            expected=f"{root.owners} owners",
            found=f"{owners} owners",
        )


def _same_placement(root: Root, rules: Sequence[Rule], hierarchy: Hierarchy) -> bool:
    mine: dict[str, object] = {"kind": "star"}
    if not isinstance(hierarchy, Star):
        mine = {"fan_out": hierarchy.fan_out, "kind": "tree"}
    if dict(root.hierarchy) != mine:
        return False
    return all(rule.as_data() == data for rule, data in zip(rules, root.layouts, strict=True))
