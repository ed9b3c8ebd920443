"""Group manifests and roots: what is decoded is valid, whatever is not is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from format.format_values import (
    D,
    bounded,
    group_manifests,
    named,
    root_manifests,
    some_group,
    some_prefix,
    some_root,
)
from growth import growth
from hypothesis import given

from alpha_mpi import digest
from alpha_mpi.canonical import canonical
from alpha_mpi.errors import Refused
from alpha_mpi.format import valid
from alpha_mpi.format.claim import decode_entry, root_digest
from alpha_mpi.format.envelope import seal
from alpha_mpi.format.manifest import (
    Manifest,
    Place,
    RegionDecl,
    ShardRecord,
    cover,
    decode_manifest,
    encode_manifest,
    piece_ints,
    piece_of,
    start_in,
    start_of,
)
from alpha_mpi.format.records import check_records
from alpha_mpi.model.pieces import Box, Interval

FILE = "data/e000003-000007/000/000004.manifest.json"


def code_of(data: bytes, **options: Any) -> str:
    with pytest.raises(Refused) as caught:
        decode_manifest(data, FILE, **options)
    assert caught.value.file == FILE
    return caught.value.code


@bounded
@given(group_manifests())
def test_group_manifests_come_back(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    again, found = decode_manifest(data, FILE)
    assert again == manifest
    body = data.split(b"\n")[0]
    assert found == digest.of(body)
    assert body == canonical(msgspec.to_builtins(manifest))
    assert encode_manifest(again) == data


@bounded
@given(root_manifests())
def test_roots_come_back(manifest: Manifest) -> None:
    data = encode_manifest(manifest, "sha256")
    assert decode_entry(data, "published/e000003-000004.json") == manifest
    assert root_digest(data, "f") == digest.of(data.split(b"\n")[0], "sha256")
    assert decode_manifest(data, FILE)[0] == manifest


@pytest.mark.parametrize("manifest", [some_group(), some_root()], ids=["group", "root"])
def test_every_flipped_bit_is_refused(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        assert code_of(bytes(flipped)) in ("corrupt-manifest", "truncated")


@pytest.mark.parametrize("manifest", [some_group(), some_root()], ids=["group", "root"])
def test_every_flip_with_the_digest_repaired_is_refused_or_is_another_valid_value(manifest: Manifest) -> None:
    body = encode_manifest(manifest).split(b"\n")[0]
    survived = 0
    for i in range(len(body) * 8):
        flipped = bytearray(body)
        flipped[i // 8] ^= 1 << i % 8
        if b"\n" in flipped:
            continue
        data = seal(bytes(flipped))
        try:
            other, _ = decode_manifest(data, FILE)
        except Refused as error:
            assert error.code in ("corrupt-manifest", "format-version", "missing-package")
        else:
            survived += 1
            assert other != manifest and encode_manifest(other) == data
    # Digits of digests and numbers: nothing in the format knows better; the chain of digests does.
    assert 0 < survived < len(body) * 3


def edited(manifest: Manifest, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """Return the file of a manifest after an edit that repaired the digest."""
    value = json.loads(encode_manifest(manifest).split(b"\n")[0])
    value = change(value) or value
    return seal(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Return the edit that sets the last of `path` where the others lead."""
    *way, key, new = path

    def change(value: Any) -> None:
        for step in way:
            value = value[step]
        value[key] = new

    return change


def swap(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(value: Any) -> None:
        for step in path:
            value = value[step]
        value[0], value[1] = value[1], value[0]

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    *way, key = path

    def change(value: Any) -> None:
        for step in way:
            value = value[step]
        del value[key]

    return change


GROUP_EDITS = {
    "role negative": put("role", -4),
    "role huge": put("role", 2**32),
    "role 0 without a root": put("role", 0),
    "size zero": put("size", 0),
    "size too small": put("size", 3),
    "size too large": put("size", 5),
    "size fractional": put("size", 4.0),
    "size text": put("size", "4"),
    "size true": put("size", True),
    "kind": put("kind", "mark"),
    "unknown field": put("more", 1),
    "missing field": drop("children"),
    "child out of preorder": swap("children"),
    "child of size 0": put("children", 0, 1, 0),
    "child role": put("children", 0, 0, 6),
    "child digest": put("children", 0, 2, "xxh3-128:" + "g" * 32),
    "child cover": put("children", 0, 3, "sha256:" + "0" * 63),
    "child of 5 fields": put("children", 0, [5, 2, D, D, D]),
    "records out of order": swap("shards"),
    "record twice": lambda v: v["shards"].insert(0, v["shards"][0]),
    "ordinal negative": put("shards", 0, 0, -1),
    "ordinal huge": put("shards", 1, 0, 2**32),
    "owner negative": put("shards", 0, 1, -1),
    "empty piece": put("shards", 0, 2, [3, 3]),
    "piece backwards": put("shards", 0, 2, [8, 0]),
    "piece negative": put("shards", 0, 2, [-1, 8]),
    "piece huge": put("shards", 0, 2, [0, 2**53]),
    "piece of one number": put("shards", 0, 2, [1]),
    "box of rank 0": put("shards", 0, 2, [0]),
    "box of a wrong length": put("shards", 0, 2, [1, 0, 1, 2]),
    "box of a huge rank": put("shards", 0, 2, [2**40, 0, 1]),
    "box empty": put("shards", 0, 2, [1, 2, 2]),
    "nbytes zero": put("shards", 0, 3, 0),
    "nbytes negative": put("shards", 0, 3, -1),
    "nbytes beyond 64 bits": put("shards", 0, 3, 2**70),
    "nbytes above 2**53": put("shards", 0, 3, 2**53),
    "shard digest": put("shards", 0, 4, "md5:00"),
    "shard digest with a space": put("shards", 0, 4, "xxh3-128:" + " " * 32),
    "no place": put("shards", 0, 5, []),
    "place twice": put("shards", 0, 5, [[3, 7, 4]] * 2),
    "too many places": put("shards", 0, 5, [[3, 7, i] for i in range(65)]),
    "place of epoch 0": put("shards", 0, 5, [[0, 7, 4]]),
    "place of save 0": put("shards", 0, 5, [[3, 0, 4]]),
    "place of a negative role": put("shards", 0, 5, [[3, 7, -1]]),
    "attempt of epoch 0": put("prefix", "attempt", "epoch", 0),
    "attempt with more": put("prefix", "attempt", "more", 0),
    "update negative": put("prefix", "moment", "update", -1),
    "cursor huge": put("prefix", "moment", "cursor", 2**53),
    "prefix digest": put("prefix", "cover", "x"),
    "prefix field unknown": put("prefix", "more", 1),
    "prefix missing": drop("prefix"),
    "prefix field missing": drop("prefix", "layout"),
    "a root in role 4": put("root", json.loads(encode_manifest(some_root()).split(b"\n")[0])["root"]),
}


@pytest.mark.parametrize("edit", GROUP_EDITS.values(), ids=GROUP_EDITS)
def test_a_wrong_group_manifest_is_refused(edit: Callable[[Any], Any]) -> None:
    expected = "format-version" if edit is GROUP_EDITS["prefix missing"] else "corrupt-manifest"
    assert code_of(edited(some_group(), edit)) == expected


ROOT_EDITS = {
    "no root": put("root", None),
    "store id": put("root", "store", "../x"),
    "entry 0": put("root", "entry", 0),
    "continues": put("root", "continues", ""),
    "owners 0": put("root", "owners", 0),
    "other owners": put("root", "owners", 3),
    "hierarchy unknown": put("root", "hierarchy", {"kind": "ring"}),
    "hierarchy with more": put("root", "hierarchy", {"kind": "star", "more": 1}),
    "tree of another size": put("root", "hierarchy", {"fan_out": 2, "kind": "tree"}),
    "fan-out 0": put("root", "hierarchy", {"fan_out": 0, "kind": "tree"}),
    "fan-out true": put("root", "hierarchy", {"fan_out": True, "kind": "tree"}),
    "other false": put("root", "hierarchy", {"kind": "tree", "other": False}),
    "a name twice": put("root", "schema", 1, "name", "w"),
    "an empty name": put("root", "schema", 1, "name", ""),
    "a name too long": put("root", "schema", 1, "name", "x" * 1025),
    "region kind": put("root", "schema", 1, "kind", "replica"),
    "region format": put("root", "schema", 1, "format", "FLOAT 32"),
    "a document with a shape": put("root", "schema", 3, "shape", [1]),
    "a document of float32": put("root", "schema", 3, "format", "float32"),
    "an array of json": put("root", "schema", 1, "format", "json"),
    "extent negative": put("root", "schema", 0, "shape", [-4, 5]),
    "too many words": put("root", "schema", 0, "shape", [2**30, 2**30]),
    "too many axes": put("root", "schema", 0, "shape", [1] * 33),
    "another shape": put("root", "schema", 0, "shape", [5, 4]),
    "a layout less": drop("root", "layouts", 0),
    "another layout": put("root", "layouts", 0, {"axis": 1, "rule": "rows"}),
    "layout with a float": put("root", "layouts", 0, {"axis": 0.5}),
    "learner with a float": put("root", "learner", {"rate": 0.5}),
    "learner with a huge integer": put("root", "learner", {"rate": 2**60}),
    "another learner": put("root", "learner", {"label": "y"}),
    "another contract": put("root", "contract", {"label": "y"}),
    "a score that is no number": put("root", "score", "high"),
    "a score that is infinite": put("root", "score", "inf"),
    "a score in another spelling": put("root", "score", "0x1p+0"),
    "no score": drop("root", "score"),
    "replicas out of order": swap("root", "replicas"),
    "replica of no region": put("root", "replicas", 1, 0, 4),
    "replica negative": put("root", "replicas", 0, 0, -1),
    "replica missing": drop("root", "replicas", 0),
    "replica digest": put("root", "replicas", 0, 1, digest.of(b"another")),
    "schema digest": put("prefix", "schema", D),
    "a child on a star": put("children", [[1, 1, D, D]]),
}


@pytest.mark.parametrize("edit", ROOT_EDITS.values(), ids=ROOT_EDITS)
def test_a_wrong_root_is_refused(edit: Callable[[Any], Any]) -> None:
    data = edited(some_root(), edit)
    with pytest.raises(Refused) as caught:
        decode_entry(data, "published/e000003-000004.json")
    assert caught.value.code == "corrupt-root"


def test_deep_labels_are_refused_not_recursed() -> None:
    label: Any = 1
    for _ in range(100):
        label = [label]
    root = some_root()
    assert root.root is not None
    deep = msgspec.structs.replace(root, root=msgspec.structs.replace(root.root, learner={"deep": label}))
    with pytest.raises(Refused, match="too deep"):
        encode_manifest(named(deep))
    assert code_of(edited(some_root(), put("root", "learner", {"deep": label}))) == "corrupt-manifest"
    body = encode_manifest(root).split(b"\n")[0]
    bomb = body.replace(b'"learner":{"label":"x"}', b'"learner":' + b"[" * 10**6 + b"]" * 10**6)
    assert len(bomb) > 2 * 10**6
    assert code_of(seal(bomb)) == "corrupt-manifest"


@pytest.mark.parametrize(
    "spelled",
    [
        b'"role": 4',
        b'"role":4.0',
        b'"role":04',
        b'"role":4e0',
        b'"role":4,"role":4',
        b'"role":-0',
        b'"\\u0072ole":4',
    ],
)
def test_another_spelling_of_the_same_value_is_refused(spelled: bytes) -> None:
    body = encode_manifest(some_group()).split(b"\n")[0]
    assert code_of(seal(body.replace(b'"role":4', spelled))) == "corrupt-manifest"
    assert code_of(seal(b" " + body)) == "corrupt-manifest"
    assert code_of(seal(body + b" ")) == "corrupt-manifest"


def test_another_version_is_refused_as_such() -> None:
    assert code_of(edited(some_group(), put("prefix", "version", 2))) == "format-version"
    assert code_of(edited(some_group(), put("prefix", "version", 0))) == "format-version"

    def later(value: dict[str, Any]) -> None:
        value["prefix"] = {"version": 9}
        value["new"] = {}

    assert code_of(edited(some_group(), later)) == "format-version"


def test_limits_and_kinds_of_entries() -> None:
    data = encode_manifest(some_group())
    assert code_of(data, limit=100) == "too-large"
    with pytest.raises(Refused, match="role 4") as caught:
        decode_entry(data, "published/e000003-000004.json")
    assert caught.value.code == "corrupt-root"


def test_what_would_be_refused_is_not_written() -> None:
    group = some_group()
    for wrong in (
        msgspec.structs.replace(group, size=3),
        msgspec.structs.replace(group, shards=group.shards[::-1]),
        msgspec.structs.replace(group, prefix=dataclasses.replace(group.prefix, schema="")),
        msgspec.structs.replace(group, kind="claim"),
    ):
        with pytest.raises(Refused):
            encode_manifest(wrong)


def test_names_in_any_script_survive() -> None:
    names = (
        "n" * 400,
        "\u6f22" * 300,
        "a/../../b",
        "..",
        "a;b c\nd\te\0",
        "\U0001f600",
        "\u200f\u05d0\u200e",
        '"\\',
        "e\u0301",
        "\u00e9",
        "\u2028",
    )
    root = some_root()
    assert root.root is not None
    part = msgspec.structs.replace(
        root.root,
        schema=tuple(RegionDecl(n, "array", "float32", (0,)) for n in names),
        layouts=({"rule": "shares"},) * len(names),
        replicas=(),
    )
    data = encode_manifest(named(msgspec.structs.replace(root, root=part, shards=())))
    back, _ = decode_manifest(data, FILE)
    assert back.root is not None
    assert tuple(r.name for r in back.root.schema) == names
    with pytest.raises(Refused, match=r"w\\nw"):
        wrong = msgspec.structs.replace(part, schema=(RegionDecl("w\n" * 9, "array", "json", (1,)),) * 1)
        encode_manifest(
            named(msgspec.structs.replace(root, root=msgspec.structs.replace(wrong, layouts=(1,))))
        )


def test_pieces_and_starts() -> None:
    for piece in (None, Interval(3, 9), Box((1, 0, 2), (2, 5, 4))):
        assert piece_of(piece_ints(piece)) == piece
    assert piece_ints(Box((1,), (2,))) == (1, 1, 2)
    for wrong in (
        (1,),
        (3, 3),
        (0,),
        (2, 0, 1, 2),
        (1, 2, 2),
        (33, *[0] * 33, *[1] * 33),
        (-1, 5),
        (0, 2**53),
    ):
        with pytest.raises(ValueError, match=r"\["):
            piece_of(wrong)
    assert start_of(Box((1, 2, 3), (2, 3, 4)), (5, 6, 7)) == 1 * 42 + 2 * 7 + 3
    assert start_of(Interval(5, 6), ()) == 5
    assert start_of(None, (9,)) == 0


def test_cover_is_the_combination_the_page_defines() -> None:
    own = some_root().shards
    listed = [[r.ordinal, r.owner, list(r.piece)] for r in own]
    assert cover(own, [D]) == digest.combine("cover", [listed, [D]])
    triples = [(r.ordinal, r.owner, piece_of(r.piece)) for r in own]
    assert cover(triples, [D], "sha256") == digest.combine("cover", [listed, [D]], algorithm="sha256")
    assert cover([]) == digest.combine("cover", [[], []])


def changed(at: int, **fields: Any) -> Manifest:
    root = some_root()
    shards = list(root.shards)
    shards[at] = msgspec.structs.replace(shards[at], **fields)
    return msgspec.structs.replace(root, shards=tuple(shards))


@pytest.mark.parametrize(
    "manifest",
    [
        changed(5, ordinal=4),
        changed(5, owner=2),
        changed(0, piece=()),
        changed(3, piece=(0, 2)),
        changed(5, piece=(0, 5)),
        changed(0, piece=(0, 10), nbytes=44),
        changed(0, piece=(11, 21)),
        changed(0, piece=(2, 0, 0, 2, 6), nbytes=48),
        changed(0, piece=(1, 0, 2)),
        changed(1, nbytes=36),
        changed(2, nbytes=12),
        changed(3, nbytes=17),
    ],
)
def test_records_that_do_not_fit_the_schema_are_refused(manifest: Manifest) -> None:
    root = some_root().root
    assert root is not None
    check_records(some_root(), root, FILE)
    with pytest.raises(Refused) as caught:
        check_records(manifest, root, FILE)
    assert caught.value.code == "corrupt-root"
    assert caught.value.file == FILE


def test_records_against_the_role_and_mixed_pieces() -> None:
    root = some_root().root
    assert root is not None
    tree = msgspec.structs.replace(root, hierarchy={"kind": "tree", "other": True})
    with pytest.raises(Refused, match="another owner") as caught:
        check_records(some_root(), tree, FILE)
    assert caught.value.expected == "owner 0"
    mixed = (
        ShardRecord(0, 0, (2, 1, 0, 2, 5), 20, D, (Place(3, 7, 0),)),
        ShardRecord(0, 0, (4, 5), 4, D, (Place(3, 7, 0),)),
    )
    check_records(msgspec.structs.replace(some_root(), shards=mixed[1:] + mixed[:1]), root, FILE)
    with pytest.raises(Refused, match="out of order"):
        check_records(msgspec.structs.replace(some_root(), shards=mixed), root, FILE)
    unknown = msgspec.structs.replace(root, schema=(RegionDecl("w", "array", "float7", (4, 5)),))
    with pytest.raises(Refused) as caught:
        check_records(some_root(), unknown, FILE)
    assert caught.value.code == "format"


def test_children_are_those_the_fan_out_gives() -> None:
    root = some_root().root
    assert root is not None
    parts = {"owners": 20, "schema": (), "layouts": (), "replicas": ()}
    for fan_out, fits in ((1, False), (2, True), (3, False)):
        tree = msgspec.structs.replace(root, hierarchy={"fan_out": fan_out, "kind": "tree"}, **parts)
        group = msgspec.structs.replace(some_group(), shards=())
        if fits:
            check_records(group, tree, FILE)
            continue
        with pytest.raises(Refused, match="subtree sizes"):
            check_records(group, tree, FILE)


def test_100_000_shards_in_one_role() -> None:
    # benchmarks/shards.py measures the seconds.
    place = (Place(3, 7, 4),)
    region = RegionDecl("w", "array", "float32", (800_000,))
    root = some_root().root
    assert root is not None

    def through(n: int) -> Callable[[], object]:
        own = tuple(
            ShardRecord(i, 4, (8 * i, 8 * i + 8), 32, digest.of(str(i).encode()), place) for i in range(n)
        )
        group = Manifest("manifest", some_prefix(), 4, 1, own, (), None)
        declared = msgspec.structs.replace(root, owners=5, schema=(region,) * n)

        def call() -> None:
            back, _ = decode_manifest(encode_manifest(group), FILE)
            cover(back.shards)
            check_records(back, declared, FILE)
            assert back == group

        return call

    assert growth(through, 10_000, 10) < 3


def _outcome(manifest: Manifest) -> tuple[str, str] | None:
    try:
        valid.check_manifest(manifest, file=FILE, code="corrupt-manifest")
    except Refused as error:
        return str(error.message), str(error.found)
    return None


HERE = (Place(3, 7, 4),)
#: Shard records that are valid together, all of one kind or mixed.
SOUND = {
    "intervals": [ShardRecord(i, 4, (i, i + 5), 20, D, HERE) for i in range(5)],
    "boxes": [ShardRecord(i, 4, (2, i, 0, i + 2, 5), 40, D, HERE) for i in range(5)],
    "one axis": [ShardRecord(i, 4, (1, 0, 7), 28, D, HERE) for i in range(5)],
    "wholes": [ShardRecord(i, 4, (), 28, D, HERE) for i in range(5)],
    "mixed": [ShardRecord(i, 4, p, 8, D, HERE) for i, p in enumerate([(), (0, 2), (1, 0, 2), (), (0, 2)])],
    "pieces of one region": [ShardRecord(1, 4, (i, i + 1), 4, D, HERE) for i in range(5)],
    "boxes of one region": [ShardRecord(1, 4, (2, i // 2, i % 2, 9, 9), 4, D, HERE) for i in range(5)],
    "owners": [ShardRecord(1, i, (), 4, D, HERE) for i in range(5)],
}
#: What may be wrong with one of them.
WRONG: dict[str, dict[str, Any]] = {
    "ordinal below": {"ordinal": -1},
    "ordinal above": {"ordinal": 1 << 32},
    "ordinal far above": {"ordinal": 1 << 70},
    "ordinal of another": {"ordinal": 3},
    "owner below": {"owner": -1},
    "owner above": {"owner": 1 << 32},
    "no word": {"piece": (5, 5)},
    "backwards": {"piece": (6, 5)},
    "before the start": {"piece": (-1, 5)},
    "too far": {"piece": (0, 1 << 53)},
    "much too far": {"piece": (0, 1 << 70)},
    "one integer": {"piece": (1,)},
    "an even number of integers": {"piece": (1, 0, 2, 3)},
    "another rank": {"piece": (3, 0, 0, 2, 5)},
    "rank 0": {"piece": (0, 0, 2)},
    "an empty axis": {"piece": (2, 0, 3, 2, 3)},
    "rank above": {"piece": (33, *[0] * 33, *[1] * 33)},
    "no bytes": {"nbytes": 0},
    "bytes below": {"nbytes": -5},
    "too many bytes": {"nbytes": 1 << 53},
    "far too many bytes": {"nbytes": 1 << 64},
    "digest": {"digest": D[:-1] + "x"},
    "short digest": {"digest": D[:-1]},
    "another digest": {"digest": digest.of(b"", "sha256")},
    "no place": {"places": ()},
    "a place twice": {"places": HERE + HERE},
    "two places": {"places": (*HERE, Place(3, 8, 4))},
    "a place of no epoch": {"places": (Place(0, 7, 4),)},
}


@pytest.mark.parametrize("kind", SOUND)
def test_records_judged_at_once_are_judged_as_each_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = SOUND[kind]
    assert valid._are_sound(records)
    lists = [records, records[::-1], [*records[:2], records[1], *records[2:]], records[1:3] + records[:1]]
    for changes in WRONG.values():
        for at in (0, 2, 4):
            one = msgspec.structs.replace(records[at], **changes)
            lists.append([*records[:at], one, *records[at + 1 :]])
        lists.append([msgspec.structs.replace(record, **changes) for record in records])
    manifests = [msgspec.structs.replace(some_group(), shards=tuple(shards)) for shards in lists]
    found = [_outcome(manifest) for manifest in manifests]
    monkeypatch.setattr(valid, "_are_sound", lambda shards: False)
    assert found == [_outcome(manifest) for manifest in manifests]
    assert found[0] is None and sum(outcome is not None for outcome in found) > len(WRONG)


def test_starts_of_records_are_those_of_their_pieces() -> None:
    shape = (4, 5, 6)
    for ints in ((), (7, 9), (3, 1, 2, 3, 2, 5, 6), (3, 0, 0, 0, 4, 5, 6)):
        assert start_in(ints, shape) == start_of(piece_of(ints), shape)
    assert start_in((1, 3, 4), (9,)) == start_of(piece_of((1, 3, 4)), (9,)) == 3


@pytest.mark.parametrize("value", [True, 1.0, "1"])
def test_parts_of_a_root_that_only_look_equal_are_judged_anew(value: Any) -> None:
    root = some_root()
    assert root.root is not None
    layouts = ({"axis": 1, "rule": "rows"}, *root.root.layouts[1:])
    good = named(msgspec.structs.replace(root, root=msgspec.structs.replace(root.root, layouts=layouts)))
    data = encode_manifest(good)
    assert decode_manifest(data, FILE)[0] == good  # and is remembered
    body, _, _ = data.partition(b"\n")
    other = body.replace(b'{"axis":1,', b'{"axis":%b,' % json.dumps(value).encode())
    assert other != body
    assert code_of(seal(other)) == "corrupt-manifest"
    assert decode_manifest(data, FILE)[0] == good


def test_a_layout_changed_where_it_lies_is_judged_anew() -> None:
    root = some_root()
    assert root.root is not None
    layouts = ({"axis": 1, "rule": "rows"}, *root.root.layouts[1:])
    good = named(msgspec.structs.replace(root, root=msgspec.structs.replace(root.root, layouts=layouts)))
    data = encode_manifest(good)
    layouts[0]["axis"] = 2
    with pytest.raises(Refused, match="layout digest of the prefix"):
        encode_manifest(good)
    layouts[0]["axis"] = 1
    assert encode_manifest(good) == data
