"""Refusals of a generation as a whole: it is not this job's, whatever its bytes.

They come before any shard is read, and before any manifest below the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import TEXT_LIMIT, Refused, bounded
from ..format.claim import TEXT as SUBJECT
from ..format.manifest import Manifest, Root
from ..model.accept import Accept, Accepted
from ..model.identity import Contract, Learner, formats_of
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
    moment = manifest.prefix.moment
    if moment.update > 0 and moment.cursor == 0 and root.learner.get("inputs") is not None:
        raise Refused(
            "the cursor was set back: this learner has an input, and has used none of it",
            code="reset-cursor",
            file=file,
            expected=f"a cursor above 0 at update {moment.update}",
            found="0",
        )
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


class Match(NamedTuple):
    """How a generation is this job's. `placed`: it was saved on this very placement and under this
    schema. `schema` is the generation's own. `accepted`: the differences it has all the same."""

    placed: bool
    schema: Schema
    accepted: Accepted


def compare(
    manifest: Manifest,
    schema: Schema,
    learner: Learner,
    contract: Contract,
    rules: Sequence[Rule | None],
    owners: int,
    hierarchy: Hierarchy,
    file: str,
    repartition: frozenset[int] = frozenset(),
    accept: Accept | None = None,
) -> Match:
    """Refuse a generation that is not one of this job's: what the job declares comes first.

    `repartition` are the per-owner regions that have a rule for another number of owners. Called
    on owner 0, since all owners declare the same. Raises `Refused`: ``schema-differs`` (all
    differences in one message), ``other-learner``, ``placement-bound``, ``other-contract``,
    ``wrong-device``, ``per-owner-state``; but for ``per-owner-state`` the message says which `accept`
    would allow it.
    """
    root = manifest.root
    assert root is not None
    accept = accept or Accept()
    saved = schema_of(root, schema)
    accepted: list[tuple[str, str, str]] = []
    if saved is not schema:
        accepted += _compare_schemas(schema, saved, accept, file)
    lines = learner.difference(Learner.from_data(root.learner))
    if lines:
        if accept.learner is None:
            raise Refused(
                _message("the generation is of another learner", lines, 'learner="why"'),
                code="other-learner",
                file=file,
            )
        accepted.append(("learner", _subject(lines), accept.learner))
    accepted += _compare_contracts(root, schema, saved, contract, owners, accept, file)
    if root.owners != owners:
        _check_own_state(root, schema, saved, owners, file, repartition)
    placed = saved is schema and root.owners == owners and _same_placement(root, rules, hierarchy)
    return Match(placed, saved, tuple(sorted(accepted)))


def _message(what: str, lines: Sequence[str], how: str) -> str:
    """A message that says what differs and how to accept it; long lists are cut, the end never is."""
    told = bounded("; ".join(lines), TEXT_LIMIT // 2)
    return f"{what}: {told} (resume(accept=am.Accept({how})) goes on in spite of it)"


def _subject(lines: Sequence[str]) -> str:
    return bounded("; ".join(lines), SUBJECT)


def _compare_schemas(schema: Schema, saved: Schema, accept: Accept, file: str) -> list[tuple[str, str, str]]:
    """Return the regions that are accepted as missing or extra; refuse whatever else differs."""
    missing = [r.name for r in schema.regions if saved.named(r.name) is None]
    extra = [r.name for r in saved.regions if schema.named(r.name) is None]
    refused = [n for n in missing if n not in accept.missing] + [n for n in extra if n not in accept.extra]
    changed = schema.changes(saved)
    if not refused and not changed and (missing or extra):
        return [("missing", n, accept.missing[n]) for n in missing] + [
            ("extra", n, accept.extra[n]) for n in extra
        ]
    what = "the generation holds another state than is declared"
    lines = schema.difference(saved)
    if changed or not (missing or extra):
        message = f"{what}: {'; '.join(lines)}"
    else:
        given = (("missing", missing), ("extra", extra))
        how = ", ".join(f"{word}={_list(names)}" for word, names in given if names)
        message = _message(what, lines, f'{how}, why="why"')
    region = refused[0] if refused and not changed else _first(schema, saved)
    raise Refused(message, code="schema-differs", region=region, file=file)


def _list(names: Sequence[str]) -> str:
    told = repr(list(names))
    return told if len(told) <= 160 else "[...]"


def _compare_contracts(
    root: Root,
    schema: Schema,
    saved: Schema,
    contract: Contract,
    owners: int,
    accept: Accept,
    file: str,
) -> list[tuple[str, str, str]]:
    """Return what is accepted of another contract, and of another device; refuse the rest."""
    theirs = Contract.from_data(root.contract)
    lines = contract.difference(theirs)
    if contract.formats == formats_of(schema) and theirs.formats == formats_of(saved):
        # Not given by anybody: they follow from the schema, which has been compared.
        lines = [line for line in lines if not line.startswith("formats: ")]
    moved = root.owners != owners
    device = [line for line in lines if line.startswith(("product: ", "device: "))]
    lines = [line for line in lines if line not in device]
    if theirs.device == "none":
        device = []  # its bits do not depend on it, whatever this job binds
    elif moved and theirs.device == "uuid":
        device.append(f"uuid: bound to the cards of {root.owners} owners, resumed on {owners}")
    bound = (
        [f"placement: bound to {root.owners} owners, resumed on {owners}"] if theirs.bound and moved else []
    )
    if bound and accept.contract is None:
        raise Refused(
            f"the generation is bound to the {root.owners} owners that saved it "
            '(resume(accept=am.Accept(contract="why")) goes on in spite of it)',
            code="placement-bound",
            file=file,
            expected=f"{root.owners} owners",
            found=f"{owners} owners",
        )
    if lines and accept.contract is None:
        what = "the generation was made under another numerical contract"
        if len(lines) == 1 and lines[0].startswith("combine: "):
            what = "the generation was made under another combine order"
            if moved:
                count = f"{owners} instead of {root.owners}"
                what = f"resuming on another owner count ({count}) changes the combine order"
        raise Refused(_message(what, lines, 'contract="why"'), code="other-contract", file=file)
    if device and accept.device is None:
        raise Refused(
            _message("the generation is bound to another device", device, 'device="why"'),
            code="wrong-device",
            file=file,
            expected=theirs.product or "no GPU",
            found=contract.product or "no GPU",
        )
    found = []
    if (bound or lines) and accept.contract is not None:
        found.append(("contract", _subject(bound + lines), accept.contract))
    if device and accept.device is not None:
        found.append(("device", _subject(device), accept.device))
    return found


def _first(mine: Schema, theirs: Schema) -> str | None:
    """The first region in which two schemas differ."""
    for a, b in zip(mine.regions, theirs.regions, strict=False):
        if a != b:
            return a.name
    longer = max(mine.regions, theirs.regions, key=len)
    shorter = min(len(mine.regions), len(theirs.regions))
    return longer[shorter].name if len(longer) > shorter else None


def _check_own_state(
    root: Root, schema: Schema, saved: Schema, owners: int, file: str, rules: frozenset[int]
) -> None:
    own = [
        r.name
        for r in schema.regions
        if r.kind in PER_OWNER and r.ordinal not in rules and saved.named(r.name) is not None
    ]
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


def _same_placement(root: Root, rules: Sequence[Rule | None], hierarchy: Hierarchy) -> bool:
    mine: dict[str, object] = {"kind": "star"}
    if not isinstance(hierarchy, Star):
        if hierarchy.nodes:
            return False  # the root does not say of which nodes: its records alone hold the shape
        mine = {"fan_out": hierarchy.fan_out, "kind": "tree"}
    if dict(root.hierarchy) != mine:
        return False
    both = zip(rules, root.layouts, strict=True)
    return all(rule is not None and rule.as_data() == data for rule, data in both)
