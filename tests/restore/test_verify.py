"""Verification judges every byte; the offline reader gives back what was written."""

import shutil

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from restore.build_store import build, take, values_of

from alpha_mpi import digest
from alpha_mpi.errors import Refused
from alpha_mpi.format import encode_manifest
from alpha_mpi.model.layout import grid, irregular, mesh, on, per_owner, replicated, rows, shares
from alpha_mpi.model.pieces import Box, Interval
from alpha_mpi.protocol.hierarchy import Star, Tree
from alpha_mpi.restore.generation import Generation
from alpha_mpi.restore.verify import verify
from alpha_mpi.store.store import Store

REGIONS = [
    ("w", "array", "float32", (60, 100)),
    ("big", "array", "float64", (300, 1000)),
    ("m", "array", "int16", (30, 30, 7)),
    ("copies", "array", "float32", (8, 50)),
    ("some", "array", "float32", (50,)),
    ("odd", "array", "uint8", (10, 10)),
    ("b1", "array", "float64", ()),
    ("none", "array", "float64", (0, 3)),
    ("rng", "per-owner", "uint64", (5,)),
    ("d", "document", "json", ()),
    ("own", "per-owner-document", "json", ()),
]
RULES = [
    rows(),
    shares(),
    grid((2, 2)),
    mesh({"data": 2, "model": 2}, ("model",)),
    on([1, 3], shares()),
    irregular([]),
    replicated(),
    replicated(),
    per_owner(),
    replicated(),
    per_owner(),
]
ODD = {5: [[Box((0, 0), (10, 3))], [Box((0, 3), (4, 10)), Box((4, 5), (10, 10))], [], [Box((4, 3), (10, 5))]]}


def make(path, **options):
    values = values_of(REGIONS, 4)
    return build(path, REGIONS, RULES, values, irregular=ODD, **options), values


def judge(built):
    with Store.open(built.path) as store:
        return verify(store, built.epoch, built.entry)


@pytest.mark.parametrize("hierarchy", [Star(), Tree(1), Tree(2), Tree(16)])
@pytest.mark.parametrize("algorithm", ["xxh3-128", "sha256"])
def test_a_whole_generation_verifies_and_reads_back(tmp_path, hierarchy, algorithm):
    built, values = make(tmp_path, hierarchy=hierarchy, algorithm=algorithm)
    report = judge(built)
    assert report.whole, [str(p) for p in report.problems]
    assert report.roles == (1 if isinstance(hierarchy, Star) else 4)
    assert report.files == len(built.files())
    with Store.open(tmp_path) as store:
        g = Generation.open(store, 1, 1)
        for (name, kind, format, _shape), value in zip(REGIONS, values, strict=True):
            if format == "json":
                assert g.document(name) == value
                continue
            got = g.array(name)
            want = np.stack(value) if kind == "per-owner" else value
            assert got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()
        assert (g.array("rng", 2) == values[8][2]).all()
        assert g.document("own", 3) == values[10][3]
        assert g.documents == {"d": values[9], "own": values[10]}
        assert (g.piece("big", Interval(7, 200_000)) == values[1].reshape(-1)[7:200_000]).all()
        piece = Box((3, 4), (7, 99))
        assert (g.piece("w", piece) == take(values[0], piece).reshape(4, 95)).all()
        for call in (lambda: g.array("d"), lambda: g.document("w"), lambda: g.array("other")):
            with pytest.raises(KeyError):
                call()


def test_large_replicated_regions_are_dealt(tmp_path):
    built, values = make(tmp_path, dealt=1 << 20)
    regions = [("r", "array", "float64", (700_000,))]
    values = values_of(regions, 4)
    built = build(tmp_path / "dealt", regions, [replicated()], values, dealt=1 << 20)
    assert [len(built.manifests[role].shards) for role in range(4)] == [1, 1, 0, 1]
    assert judge(built).whole
    with Store.open(built.path) as store:
        assert (Generation.open(store, 1, 1).array("r") == values[0]).all()


def named(report, built, path):
    """Whether some problem names this file."""
    return any(p.file == str(path.relative_to(built.path)) for p in report.problems)


def test_every_flipped_byte_of_every_file_is_reported(tmp_path):
    built, _ = make(tmp_path)
    rng = np.random.default_rng(0)
    for path in built.files():
        good = path.read_bytes()
        positions = {
            0,
            1,
            len(good) - 1,
            len(good) - 2,
            len(good) // 2,
            127,
            128,
            *rng.integers(0, len(good), 10),
        }
        for at in positions:
            data = bytearray(good)
            data[at] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(data)
            report = judge(built)
            assert named(report, built, path), (path, at, [str(p) for p in report.problems])
        path.write_bytes(good)
    assert judge(built).whole


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damage_raises_and_all_is_reported(tmp_path_factory, data):
    if not hasattr(test_no_damage_raises_and_all_is_reported, "built"):
        test_no_damage_raises_and_all_is_reported.built = make(tmp_path_factory.mktemp("s"))[0]
    built = test_no_damage_raises_and_all_is_reported.built
    path = data.draw(st.sampled_from(built.files()))
    good = path.read_bytes()
    cut = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(
        st.sampled_from(["truncate", "extend", "delete", "garbage", "zero", "directory", "link"])
    )
    try:
        if kind == "truncate":
            path.write_bytes(good[:cut])
        elif kind == "extend":
            path.write_bytes(good + data.draw(st.binary(min_size=1, max_size=100)))
        elif kind == "garbage":
            junk = data.draw(st.binary(min_size=1, max_size=300))
            path.write_bytes(good[:cut] + junk + good[cut + len(junk) :])
            if path.read_bytes() == good:
                return
        elif kind == "zero":
            path.write_bytes(bytes(len(good)))
        else:
            path.unlink()
            if kind == "directory":
                path.mkdir()
            elif kind == "link":
                path.symlink_to("/dev/zero")
        assert named(judge(built), built, path)
    finally:
        if kind == "directory":
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(good)
    assert judge(built).whole


@pytest.mark.parametrize("kind", ["pack", "manifest"])
def test_swapped_files_are_reported(tmp_path, kind):
    built, _ = make(tmp_path)
    one, two = built.data_file(1, kind), built.data_file(3, kind)
    shutil.move(one, tmp_path / "x")
    shutil.move(two, one)
    shutil.move(tmp_path / "x", two)
    report = judge(built)
    assert {p.role for p in report.problems} >= {1}
    assert named(report, built, one)
    assert named(report, built, two)


def test_a_missing_subtree_is_named_and_the_rest_still_judged(tmp_path):
    built, _ = make(tmp_path)
    built.data_file(1, "manifest").unlink()
    data = bytearray(built.data_file(3, "pack").read_bytes())
    data[200] ^= 1
    built.data_file(3, "pack").write_bytes(data)
    found = {(p.code, p.role) for p in judge(built).problems}
    assert ("missing-manifest", 1) in found
    assert any(role == 3 for _, role in found)


replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("code", "role", "change"),
    [
        ("mixed-moments", 2, lambda m: replace(m, prefix=later(m.prefix))),
        ("cover-differs", 1, lambda m: replace(m, shards=m.shards[:-1])),
        ("cover-differs", 3, lambda m: replace(m, shards=(*m.shards[:1], *m.shards[2:]))),
    ],
)
def test_a_manifest_that_its_parent_should_not_have_accepted(tmp_path, code, role, change):
    built, _ = make(tmp_path, change=lambda r, m: change(m) if r == role else None)
    [problem] = [p for p in judge(built).problems if p.code == code]
    assert problem.role == role
    assert problem.file == str(built.data_file(role, "manifest").relative_to(tmp_path))


def later(prefix):
    import dataclasses

    return dataclasses.replace(prefix, moment=dataclasses.replace(prefix.moment, update=11))


def test_a_child_record_that_names_another_roles_manifest(tmp_path):
    def change(role, manifest):
        if role != 0:
            return None
        one, two = manifest.children
        return replace(manifest, children=(replace(one, manifest=two.manifest), two))

    built, _ = make(tmp_path, change=change)
    shutil.copy(
        built.data_file(built.manifests[0].children[1].role, "manifest"), built.data_file(1, "manifest")
    )
    assert [(p.code, p.role) for p in judge(built).problems] == [("wrong-child", 1)]


def test_replicated_words_that_are_not_those_of_the_root_are_named(tmp_path):
    def change(role, manifest):
        if role != 0:
            return None
        other = [(o, d if o != 6 else "xxh3-128:" + 32 * "1") for o, d in manifest.root.replicas]
        prefix = __import__("dataclasses").replace(
            manifest.prefix, replicas=digest.replicas(d for _, d in other)
        )
        return replace(manifest, prefix=prefix, root=replace(manifest.root, replicas=tuple(other)))

    built, _ = make(tmp_path, hierarchy=Star(), change=change)
    assert [(p.code, p.region) for p in judge(built).problems] == [("corrupt-replica", "b1")]


def test_a_gap_and_an_overlap_are_decided_on_pieces(tmp_path):
    gap = {5: [[Box((0, 0), (10, 3))], [Box((0, 3), (4, 10))], [], [Box((4, 3), (10, 9))]]}
    twice = {
        5: [
            [Box((0, 0), (10, 3))],
            [Box((0, 3), (4, 10))],
            [],
            [Box((4, 3), (10, 10)), Box((9, 9), (10, 10))],
        ]
    }
    # As many words as the region has, one of them twice and one never.
    both = {
        5: [[Box((0, 0), (10, 3))], [Box((0, 3), (4, 10))], [], [Box((4, 3), (10, 9)), Box((3, 9), (9, 10))]]
    }
    for n, (pieces, codes) in enumerate(
        [(gap, {"incomplete-cover"}), (twice, {"overlap"}), (both, {"overlap", "incomplete-cover"})]
    ):
        values = values_of(REGIONS, 4)
        built = build(tmp_path / str(n), REGIONS, RULES, values, irregular=pieces)
        [problem] = judge(built).problems
        assert problem.code in codes and problem.region == "odd"


def test_a_shard_that_nobody_names_is_reported(tmp_path):
    _built, _ = make(tmp_path)
    with_more = tmp_path / "more"
    regions, rules = REGIONS[:2], RULES[:2]
    values = values_of(regions, 2)
    full = build(with_more, regions, rules, values, owners=2, hierarchy=Star())
    manifest = full.manifests[0]
    kept = tuple(s for s in manifest.shards if s.owner == 0)
    from alpha_mpi.format import cover

    less = replace(manifest, shards=kept)
    prefix = __import__("dataclasses").replace(manifest.prefix, cover=cover(kept))
    full.root_file.write_bytes(encode_manifest(replace(less, prefix=prefix)))
    assert {p.code for p in judge(full).problems} >= {"unnamed-shard", "incomplete-cover"}


def test_words_that_are_not_finite_are_noted_not_damage(tmp_path):
    values = values_of(REGIONS, 4)
    values[0][59, 99] = np.nan
    built = build(tmp_path, REGIONS, RULES, values, irregular=ODD)
    report = judge(built)
    assert report.whole and report.non_finite == [("w", (59, 99))]


def test_what_is_no_generation_is_a_problem_too(tmp_path):
    _built, _ = make(tmp_path)
    with Store.open(tmp_path) as store:
        [problem] = verify(store, 1, 2).problems
        assert problem.code == "missing-root"
        with pytest.raises(Refused):
            Generation.open(store, 7, 1)
