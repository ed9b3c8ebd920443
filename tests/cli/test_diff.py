"""alpha-mpi diff: the words that differ, and no others, whatever the placements."""

import shutil

import numpy as np
import pytest
from restore.build_store import build, values_of

from alpha_mpi import comparing
from alpha_mpi.model import layout
from alpha_mpi.protocol.hierarchy import Star, Tree

REGIONS = [
    ("w", "array", "float32", (37, 5)),
    ("cube", "array", "int64", (6, 4, 3)),
    ("scale", "array", "bfloat16", (11,)),
    ("mask", "array", "bool", (9,)),
    ("none", "array", "float64", (0, 2)),
    ("one", "array", "complex64", ()),
    ("doc", "document", "json", ()),
]


def rules(kind):
    per = {
        "rows": [layout.rows(), layout.grid([2, 2, 1]), layout.shares(), layout.rows()],
        "shares": [layout.shares(), layout.rows(1), layout.replicated(), layout.shares()],
    }[kind]
    return [*per, layout.rows(), layout.replicated(), layout.replicated()]


def made(path, values, kind="rows", owners=4, **options):
    build(path, REGIONS, rules(kind), values, owners=owners, **options)
    return path


@pytest.fixture
def values():
    return values_of(REGIONS, 4)


def test_the_same_words_on_another_placement_are_the_same(tmp_path, values, answer):
    a = made(tmp_path / "a", values)
    b = made(tmp_path / "b", values, "shares", owners=3, hierarchy=Star())
    code, found = answer("diff", a, "latest", "latest", "--in", b)
    assert code == 0 and found["same"]
    assert answer("diff", a, "latest", "latest")[0] == 0


@pytest.mark.parametrize("hierarchy", [Star(), Tree(2)])
def test_every_word_that_differs_is_counted(tmp_path, values, answer, monkeypatch, hierarchy):
    monkeypatch.setattr(comparing, "SLICE", 32)
    a = made(tmp_path / "a", values)
    other = [v.copy() if isinstance(v, np.ndarray) else dict(v) for v in values]
    other[0][36, 4] += 2
    other[0][20, 1] += 7
    other[1][5, 0, 2] -= 3
    other[6]["value"] = 0.25
    b = made(tmp_path / "b", other, "shares", owners=3, hierarchy=hierarchy)
    code, found = answer("diff", a, "latest", "latest", "--in", b)
    assert code == 1 and not found["same"]
    rows = {row["region"]: row for row in found["regions"]}
    assert (rows["w"]["differing"], rows["w"]["first"], rows["w"]["largest"]) == (2, [20, 1], 7.0)
    assert (rows["cube"]["differing"], rows["cube"]["first"]) == (1, [5, 0, 2])
    assert rows["doc"]["path"] == "$.value" and rows["doc"]["values"] == ["0.5", "0.25"]
    assert all(rows[name]["same"] for name in ("scale", "mask", "none", "one"))


def test_bits_decide(tmp_path, values, answer):
    other = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    values[0][0, 0], other[0][0, 0] = 0.0, -0.0
    values[0][0, 1] = other[0][0, 1] = np.nan
    a, b = made(tmp_path / "a", values), made(tmp_path / "b", other, "shares")
    code, found = answer("diff", a, "latest", "latest", "--in", b)
    [row] = [row for row in found["regions"] if not row["same"]]
    assert code == 1 and (row["differing"], row["first"]) == (1, [0, 0])
    assert row["bits"] == ["0x00000000", "0x80000000"]


def test_other_schemas(tmp_path, answer):
    def one(path, regions, rule):
        build(path, regions, [rule] * len(regions), values_of(regions, 2), owners=2)
        return path

    a = one(tmp_path / "a", [("x", "array", "float32", (4,)), ("y", "array", "int8", (4,))], layout.rows())
    b = one(tmp_path / "b", [("x", "array", "float64", (4,)), ("z", "array", "int8", (4,))], layout.rows())
    code, found = answer("diff", a, "latest", "latest", "--in", b)
    assert code == 1
    assert {row["region"]: row["why"] for row in found["regions"]} == {
        "x": "format float32 and float64",
        "y": "only in the first generation",
        "z": "only in the second generation",
    }


def test_per_owner_words(tmp_path, answer):
    regions = [("rng", "per-owner", "uint64", (3,)), ("note", "per-owner-document", "json", ())]
    rule = [layout.per_owner()] * 2

    def one(path, owners, change=None):
        values = values_of(regions, owners)
        if change is not None:
            values[0][change][1] += 1
            values[1][change] = {"owner": -1}
        build(path, regions, rule, values, owners=owners)
        return path

    a, b = one(tmp_path / "a", 3), one(tmp_path / "b", 3, change=2)
    rows = answer("diff", a, "latest", "latest", "--in", b)[1]["regions"]
    assert rows[0]["first"] == [2, 1] and rows[0]["differing"] == 1
    assert rows[1]["path"] == "$[2].owner"
    c = one(tmp_path / "c", 2)
    rows = answer("diff", a, "latest", "latest", "--in", c)[1]["regions"]
    assert rows[0]["why"] == "of 3 and of 2 owners"


def test_damage_is_refused_and_not_a_difference(store, tmp_path, answer):
    other = shutil.copytree(store, tmp_path / "other")
    pack = next((other / "data" / "e000002-000001").rglob("*.pack"))
    data = bytearray(pack.read_bytes())
    data[128] ^= 1
    pack.write_bytes(data)
    code, found = answer("diff", store, "u10", "latest", "--in", other)
    assert code == 1 and found["error"]["code"] == "corrupt-shard"


def test_lines_for_people(store, command):
    code, out, _ = command("diff", store, "u10", "u20")
    assert code == 1
    lines = out.splitlines()
    assert lines[0] == "e000001-000001 (update 10) and e000001-000002 (update 20): different"
    assert lines[1] == (
        "first: region 'weights', index (0, 0): 10.0 and 30.0, bits 0x41200000 and 0x41f00000"
    )
    assert lines[3].split() == ["weights", "1,200", "1,200", "20"]
    assert command("diff", store, "u10", "u10")[1].endswith(": the same\n")


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0, 3), (1, 1, 100)])
@pytest.mark.parametrize("words", [1, 2, 6, 1000])
def test_slices_cut_in_order_and_once(shape, words):
    array = np.arange(int(np.prod(shape))).reshape(shape)
    parts = [array[(*key, ...)].reshape(-1) for key in comparing.slices(shape, words)]
    assert all(0 < len(part) <= words for part in parts)
    assert np.concatenate([np.zeros(0, int), *parts]).tolist() == list(range(array.size))
