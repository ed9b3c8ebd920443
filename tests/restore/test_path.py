"""Manifests against the record above them: every disagreement has its own word."""

import dataclasses

import msgspec
import pytest
from restore.build_store import build, values_of

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format import ChildRecord, encode_manifest
from alpha_mpi.model import Contract, Learner, Schema
from alpha_mpi.model.layout import per_owner, rows, shares
from alpha_mpi.protocol.hierarchy import Star, Tree
from alpha_mpi.restore.path import believe_path, open_child, open_root, record_of
from alpha_mpi.restore.refuse import compare

REGIONS = [("w", "array", "float32", (70, 10)), ("rng", "per-owner", "uint64", (3,))]
RULES = [rows(), per_owner()]
FILE = "data/e000001-000001/000/000001.manifest.json"

replace = msgspec.structs.replace


@pytest.fixture
def built(tmp_path):
    return build(tmp_path, REGIONS, RULES, values_of(REGIONS, 7), owners=7)


def refused(built, manifest, **record):
    """How role 1's manifest is refused once it says something else, by a record that names it."""
    data = encode_manifest(manifest)
    above = record_of(built.manifests[0], 1, FILE)
    named = replace(above, manifest=digest.of(data), **record)
    with pytest.raises(Refused) as caught:
        open_child(data, named, built.manifests[0], FILE)
    assert caught.value.file == FILE
    return caught.value.code, caught.value.role


def test_what_a_parent_names_opens(built):
    root = built.manifests[0]
    for role in (1, 4):
        data = built.data_file(role, "manifest").read_bytes()
        assert open_child(data, record_of(root, role, FILE), root, FILE) == built.manifests[role]
    files = [built.root_file.read_bytes(), *(built.data_file(r, "manifest").read_bytes() for r in (1, 2))]
    assert believe_path(files, (0, 1, 2), built.root, "root") == [built.manifests[r] for r in (0, 1, 2)]
    assert open_root(files[0], built.root, "root") == (root, built.schema)
    assert open_root(files[0], built.root, "root", built.schema)[1] is built.schema
    for wrong, roles, code, role in (
        ([files[0], files[2]], (0, 2), "missing-subtree", 2),
        ([files[0], files[2]], (0, 1), "corrupt-manifest", 1),
        ([files[1], files[2]], (0, 1), "corrupt-root", None),
        ([files[0][:-40], files[2]], (0, 1), "truncated", None),
    ):
        with pytest.raises(Refused) as caught:
            believe_path(wrong, roles, built.root, "root")
        assert (caught.value.code, caught.value.role) == (code, role)
    with pytest.raises(Refused) as caught:
        open_root(files[0], "xxh3-128:" + 32 * "0", "root")
    assert caught.value.code == "corrupt-root"


def test_every_disagreement_is_named(built):
    one = built.manifests[1]
    prefix = one.prefix
    for field, value in (
        ("moment", dataclasses.replace(prefix.moment, update=11)),
        ("attempt", dataclasses.replace(prefix.attempt, save=2)),
        ("schema", digest.of(b"")),
        ("replicas", digest.of(b"")),
    ):
        other = replace(one, prefix=dataclasses.replace(prefix, **{field: value}))
        assert refused(built, other) == ("mixed-moments", 1)
    assert refused(built, built.manifests[4]) == ("wrong-child", 1)
    assert refused(built, one, size=2) == ("wrong-subtree-size", 1)
    assert refused(built, replace(one, shards=one.shards[1:])) == ("cover-differs", 1)
    assert refused(built, one, cover=digest.of(b"")) == ("cover-differs", 1)
    wider = replace(one, children=(replace(one.children[0], size=2),))
    assert refused(built, wider) == ("missing-subtree", 3)
    more = (*one.children[:1], ChildRecord(3, 1, digest.of(b""), digest.of(b"")), one.children[1])
    four = replace(one, size=4, children=(*more[:2], replace(more[2], role=4)))
    assert refused(built, four, size=4) == ("wrong-child", 4)
    foreign = replace(one, shards=(replace(one.shards[0], owner=2), *one.shards[1:]))
    assert refused(built, foreign)[0] == "corrupt-manifest"


def test_a_manifest_of_another_digest_is_refused_first(built):
    data = built.data_file(1, "manifest").read_bytes()
    above = record_of(built.manifests[0], 1, FILE)
    for broken in (
        data[:-1],
        data + b"x",
        data.replace(b'"role":1', b'"role":3', 1),
        b"",
        encode_manifest(built.manifests[4]),
    ):
        with pytest.raises(Refused) as caught:
            open_child(broken, above, built.manifests[0], FILE)
        assert caught.value.code in ("corrupt-manifest", "truncated")
        assert caught.value.role == 1


def comparison(built, **changes):
    facts = {
        "schema": built.schema,
        "learner": Learner("test"),
        "contract": Contract().resolved(built.schema),
        "rules": RULES,
        "owners": 7,
        "hierarchy": Tree(2),
        **changes,
    }
    return compare(built.manifests[0], file="root", **facts)


def compared(built, **changes):
    with pytest.raises(Refused) as caught:
        comparison(built, **changes)
    assert caught.value.file == "root"
    return caught.value


def test_what_is_not_this_jobs_is_refused_with_all_differences(built):
    regions = [("w", "array", "float64", (70, 11)), ("new", "array", "int8", (3,))]
    error = compared(built, schema=Schema.of(regions))
    assert (error.code, error.region) == ("schema-differs", "w")
    for word in ("float64", "(70, 11)", "'new'", "'rng'"):
        assert word in error.message
    assert compared(built, learner=Learner("test", rate=0.5)).code == "other-learner"
    assert (
        compared(built, contract=Contract(combine="by rank").resolved(built.schema)).code == "other-contract"
    )
    error = compared(built, owners=8)
    assert (error.code, error.region) == ("per-owner-state", "rng")


def test_whether_a_generation_was_saved_on_this_very_placement(built):
    assert comparison(built).placed
    assert not comparison(built, hierarchy=Star()).placed
    assert not comparison(built, hierarchy=Tree(3)).placed
    assert not comparison(built, rules=[shares(), per_owner()]).placed
    assert not comparison(built, owners=8, repartition=frozenset([1])).placed


def test_another_number_of_owners_without_state_of_their_own(tmp_path):
    regions, rules = REGIONS[:1], RULES[:1]
    built = build(tmp_path, regions, rules, values_of(regions, 7), owners=7)
    assert not comparison(built, rules=rules, owners=6).placed
