"""Values of the format room for tests: valid ones, and strategies that draw them."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from alpha_mpi import digest
from alpha_mpi.errors import Cause
from alpha_mpi.format.claim import Claim, Mark, StoreFile
from alpha_mpi.format.manifest import (
    ChildRecord,
    Manifest,
    Place,
    RegionDecl,
    Root,
    ShardRecord,
    cover,
)
from alpha_mpi.model.capture import Attempt, Moment, Prefix

STORE = "0123456789abcdef0123456789abcdef"
D = digest.of(b"any")

#: Every property test of this room: the same examples on every machine, no clock.
bounded = settings(
    max_examples=80,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

number = st.integers(0, 2**53 - 1) | st.integers(0, 3)
positive = st.integers(1, 2**53 - 1) | st.integers(1, 3)
small = st.integers(0, 2**32 - 1) | st.integers(0, 3)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
digests = st.builds(digest.of, st.binary(max_size=8), st.sampled_from(("xxh3-128", "sha256")))
identifiers = st.text("0123456789abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=64)
intervals = st.tuples(st.integers(0, 99), st.integers(1, 99)).map(lambda t: (t[0], t[0] + t[1]))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[int, ...]:
    pairs = draw(st.lists(intervals, min_size=1, max_size=4))
    return (len(pairs), *(a for a, _ in pairs), *(b for _, b in pairs))


places = st.lists(st.builds(Place, positive, positive, small), min_size=1, max_size=3, unique=True).map(tuple)
records = st.builds(ShardRecord, small, small, st.just(()) | intervals | boxes(), positive, digests, places)


def in_order(drawn: list[ShardRecord]) -> tuple[ShardRecord, ...]:
    """Return the records in order of their keys, one of each (ordinal, owner, kind of piece)."""
    by_key: dict[Any, ShardRecord] = {}
    for record in drawn:
        starts = record.piece[:1] if len(record.piece) == 2 else record.piece[1 : len(record.piece) // 2 + 1]
        by_key[record.ordinal, record.owner, len(record.piece), starts] = record
    return tuple(by_key[k] for k in sorted(by_key))


prefixes = st.builds(
    Prefix,
    st.just(1),
    st.builds(Attempt, positive, positive),
    *[digests] * 5,
    st.builds(Moment, number, number, positive),
    digests,
)


@st.composite
def group_manifests(draw: st.DrawFn) -> Manifest:
    """Draw a valid group manifest that is not a root."""
    role = draw(st.integers(1, 10**6))
    children, at = [], role + 1
    for size in draw(st.lists(st.integers(1, 10**6), max_size=4)):
        children.append(ChildRecord(at, size, draw(digests), draw(digests)))
        at += size
    shards = in_order(draw(st.lists(records, max_size=6)))
    return Manifest("manifest", draw(prefixes), role, at - role, shards, tuple(children), None)


labels = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def regions(draw: st.DrawFn, name: str) -> RegionDecl:
    kind = draw(st.sampled_from(("array", "per-owner", "document", "per-owner-document")))
    if "document" in kind:
        return RegionDecl(name, kind, "json", ())
    shape = draw(st.lists(st.integers(0, 50), max_size=4))
    return RegionDecl(name, kind, draw(st.sampled_from(("float32", "bfloat16", "bool"))), tuple(shape))


@st.composite
def root_manifests(draw: st.DrawFn) -> Manifest:
    """Draw a valid root: of a star, of a flat tree, or of another tree."""
    names = draw(st.lists(texts.filter(bool), max_size=4, unique=True))
    schema = tuple(draw(regions(name)) for name in names)
    owners = draw(st.integers(1, 5))
    fan_out = draw(st.integers(owners, 9))
    hierarchy = draw(
        st.sampled_from(
            ({"kind": "star"}, {"fan_out": fan_out, "kind": "tree"}, {"kind": "tree", "other": True})
        )
    )
    size = 1 if hierarchy["kind"] == "star" else owners
    children = tuple(ChildRecord(k, 1, draw(digests), draw(digests)) for k in range(1, size))
    chosen = draw(st.sets(st.integers(0, len(schema) - 1))) if schema else set()
    root = Root(
        store=draw(identifiers),
        entry=draw(positive),
        continues=draw(st.none() | digests),
        schema=schema,
        layouts=tuple(draw(labels) for _ in schema),
        replicas=tuple((i, draw(digests)) for i in sorted(chosen)),
        owners=owners,
        hierarchy=hierarchy,
        learner=draw(st.dictionaries(texts, labels, max_size=3)),
        contract=draw(st.dictionaries(texts, labels, max_size=3)),
        score=draw(st.none() | st.floats(allow_nan=False, allow_infinity=False).map(float.hex)),
    )
    shards = in_order(draw(st.lists(records, max_size=4)))
    return named(Manifest("manifest", draw(prefixes), 0, size, shards, children, root))


def named(manifest: Manifest) -> Manifest:
    """Return the root with the digests in its prefix that its root part has."""
    root = manifest.root
    assert root is not None
    schema = [[r.name, r.kind, r.format, list(r.shape)] for r in root.schema]
    prefix = dataclasses.replace(
        manifest.prefix,
        schema=digest.combine("schema", schema),
        learner=digest.combine("learner", root.learner),
        contract=digest.combine("contract", root.contract),
        layout=digest.combine("layout", [list(root.layouts), root.owners, root.hierarchy]),
        replicas=digest.replicas(text for _, text in root.replicas),
        cover=cover(manifest.shards, [c.cover for c in manifest.children]),
    )
    return Manifest(
        manifest.kind, prefix, manifest.role, manifest.size, manifest.shards, manifest.children, root
    )


def some_prefix() -> Prefix:
    return Prefix(1, Attempt(3, 7), D, D, D, D, D, Moment(10, 160, 3), digest.replicas([]))


def some_group(shards: int = 2) -> Manifest:
    """Return a small valid group manifest: role 4 of a tree, with two children."""
    own = tuple(ShardRecord(i, 4, (i, i + 8), 32, D, (Place(3, 7, 4),)) for i in range(shards))
    children = (ChildRecord(5, 2, D, D), ChildRecord(7, 1, D, D))
    return Manifest("manifest", some_prefix(), 4, 4, own, children, None)


def some_root() -> Manifest:
    """Return a small valid root of a star with two owners."""
    schema = (
        RegionDecl("w", "array", "float32", (4, 5)),
        RegionDecl("b", "array", "float64", (3,)),
        RegionDecl("rng", "per-owner", "uint64", (2,)),
        RegionDecl("doc", "document", "json", ()),
    )
    here = (Place(3, 7, 0),)
    own = (
        ShardRecord(0, 0, (2, 0, 0, 2, 5), 40, D, here),
        ShardRecord(0, 1, (2, 2, 0, 4, 5), 40, D, here),
        ShardRecord(1, 0, (0, 3), 24, D, here),
        ShardRecord(2, 0, (), 16, D, here),
        ShardRecord(2, 1, (), 16, D, here),
        ShardRecord(3, 0, (), 5, D, here),
    )
    layouts = (
        {"axis": 0, "rule": "rows"},
        {"rule": "replicated"},
        {"rule": "per-owner"},
        {"rule": "replicated"},
    )
    root = Root(STORE, 4, D, schema, layouts, ((1, D), (3, D)), 2, {"kind": "star"}, {"label": "x"}, {})
    return named(Manifest("manifest", some_prefix(), 0, 1, own, (), root))


def some_claim() -> Claim:
    return Claim(
        store=STORE, epoch=4, continues=D, base=(3, 4), nonce="ab" * 16, owners=2, job="12", host="n1"
    )


reasons = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
accepted = st.dictionaries(
    st.tuples(st.sampled_from(("extra", "missing")), reasons) | st.just(("learner", "rate: 1, 2")),
    reasons,
    max_size=4,
).map(lambda found: tuple((*key, found[key]) for key in sorted(found)))

claims = st.builds(
    lambda base, accepted, **k: Claim(
        base=base,
        continues=D if base else None,
        accepted=accepted if base else (),
        epoch=2**40,
        **k,
    ),
    base=st.none() | st.tuples(st.integers(1, 2**40 - 1), positive),
    store=identifiers,
    nonce=identifiers,
    owners=st.integers(1, 2**32 - 1),
    job=texts,
    restart=number,
    host=texts,
    skipped=st.lists(st.just(("e000001-000002", "corrupt-shard")), max_size=2).map(tuple),
    fork=st.none() | st.tuples(digests, texts),
    accepted=accepted,
)
marks = st.builds(
    Mark,
    kind=st.sampled_from(("removed", "pinned")),
    store=identifiers,
    entry=st.tuples(positive, positive),
    root=digests,
)
store_files = st.builds(StoreFile, id=identifiers, digest=st.sampled_from(("xxh3-128", "sha256")))

causes = st.builds(
    Cause,
    kind=st.sampled_from(("error", "refused", "peer-failed", "in-doubt")),
    code=st.just("some-code"),
    message=texts,
    retryable=st.booleans(),
    role=st.none() | small,
    region=st.none() | texts,
    file=st.none() | texts,
    expected=st.none() | texts,
    found=st.none() | texts,
    stage=st.none() | texts,
    errno=st.none() | st.integers(0, 200),
    visible=st.none() | st.booleans(),
)
