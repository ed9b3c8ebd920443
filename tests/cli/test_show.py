"""alpha-mpi show: what one generation says of itself."""

import json
import pathlib
import shutil

import pytest
from golden import generate

import alpha_mpi as am
from alpha_mpi.cli import picture
from alpha_mpi.model.pieces import Box, Interval


@pytest.mark.parametrize("word", [(), ("latest",), ("e000002-000001",), ("u30",), ("30",)])
def test_every_way_to_name_the_newest(store, answer, word):
    code, found = answer("show", store, *word)
    assert code == 0
    assert (found["name"], found["update"], found["cursor"], found["state"]) == (
        "e000002-000001",
        30,
        90,
        "newest",
    )


def test_what_the_root_says(store, answer):
    code, found = answer("show", store, "u20")
    assert code == 0
    assert found["name"] == "e000001-000002" and found["epoch"] == 1 and found["owners"] == 1
    assert found["learner"]["label"] == "cli-test"
    regions = {region["name"]: region for region in found["regions"]}
    assert regions["weights"]["shape"] == [40, 30]
    assert regions["weights"]["bytes"] == 40 * 30 * 4
    assert regions["weights"]["layout"] == {"rule": "rows", "axis": 0}
    assert regions["schedule"]["bytes"] is None


def test_each_generation_continues_the_one_before(store, answer):
    found = [answer("show", store, word)[1] for word in ("u10", "u20", "u30")]
    assert found[0]["continues"] is None
    assert [g["continues"] for g in found[1:]] == [g["root"] for g in found[:2]]


def test_lines_for_people(store, command):
    code, out, _ = command("show", store)
    assert code == 0
    assert "update 30, cursor 90, epoch 2" in out
    assert "cli-test, inputs none, rate 0.25" in out
    assert "rows(axis=0)" in out and "40x30" in out


@pytest.mark.parametrize("word", ["u11", "e000001-000009", "e000009-000001", "e000001-000003"])
def test_what_is_no_generation_is_refused_in_one_line(store, command, word):
    code, out, err = command("show", store, word)
    assert code == 1 and out == ""
    assert len(err.splitlines()) == 1 and err.startswith("alpha-mpi: ")


@pytest.mark.parametrize("word", ["newest", "e1-1", "u-3", "e000001", "u3x", "../e000001-000001"])
def test_what_names_nothing_is_wrong_usage(store, command, word):
    assert command("show", store, word)[0] == 2


def test_an_update_is_found_beside_an_unreadable_root(store, answer):
    (store / "published" / "e000002-000001.json").write_bytes(b"")
    assert answer("show", store, "u20")[1]["name"] == "e000001-000002"
    code, found = answer("show", store)
    assert code == 1 and found["error"]["file"].endswith("e000002-000001.json")


GOLDEN = pathlib.Path(generate.__file__).parent / "v1"


def test_documents_and_score(tmp_path, job, answer, command):
    store = tmp_path / "ckpt"
    job(store, (1,), scores={1: 0.5})
    code, found = answer("show", store)
    assert code == 0 and found["documents"] == {"schedule": {"rate": 0.5}} and found["score"] == 0.5
    out = command("show", store)[1]
    assert 'schedule: {"rate": 0.5}' in out and "score" in out
    next((store / "data").rglob("*.pack")).unlink()
    code, found = answer("show", store)
    assert code == 1 and "missing-pack" in found["damaged"]


def test_numbers_json_has_no_form_for_become_texts(tmp_path, command):
    state = am.State()
    value = {"low": float("-inf"), "all": [1, float("nan")]}
    state.document("odd", lambda: value, lambda value: None)
    with am.Checkpointer(tmp_path / "s", state, visibility=0.0) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    out = command("show", tmp_path / "s", "--json")[1]
    found = json.loads(out, parse_constant=pytest.fail)
    assert found["documents"]["odd"] == {"low": "-inf", "all": [1, "nan"]}


def test_the_tree(tmp_path, command, answer):
    store = shutil.copytree(GOLDEN, tmp_path / "golden")
    lines = command("show", store, "e000001-000001", "--tree")[1].splitlines()
    assert lines[0].startswith("role 0, 2 roles below: 11 shards, ")
    assert lines[1].startswith("├─ role 1: ") and lines[2].startswith("└─ role 2: ")
    next((store / "data").rglob("000002.manifest.json")).write_bytes(b"{}")
    code, found = answer("show", store, "e000001-000001", "--tree")
    assert code == 1 and found["damaged"] == [2]


def test_the_map(tmp_path, command, answer):
    store = shutil.copytree(GOLDEN, tmp_path / "golden")
    lines = command("show", store, "e000001-000001", "--map", "weights")[1].splitlines()
    assert lines[1:5] == ["000000", "000000", "111111", "222222"]
    found = answer("show", store, "e000001-000001", "--map", "weights")[1]
    assert [(s["owner"], s["piece"], s["words"]) for s in found["shards"]] == [
        (0, "[0:2, 0:6]", 12),
        (1, "[2:3, 0:6]", 6),
        (2, "[3:4, 0:6]", 6),
    ]
    for region in answer("show", store)[1]["regions"]:
        assert command("show", store, "--map", region["name"])[0] == 0
    assert answer("show", store, "--map", "nothing")[1]["error"]["code"] == "no-region"


def test_a_map_of_any_pieces():
    assert picture.region_map((6,), [(0, Interval(0, 4)), (1, Interval(4, 5))]) == ["00001."]
    assert picture.region_map((2, 3), [(0, Interval(0, 4)), (11, Interval(4, 6))]) == ["000", "0bb"]
    assert picture.region_map((), [(3, Interval(0, 1))]) == ["3"]
    assert picture.region_map(
        (2, 2, 2), [(0, Box((0, 0, 0), (2, 2, 1))), (1, Box((0, 0, 1), (2, 2, 2)))]
    ) == [
        "00",
        "00",
    ]
    drawn = picture.region_map(
        (1000, 1000), [(0, Box((0, 0), (500, 1000))), (1, Box((500, 0), (1000, 1000)))]
    )
    assert drawn == ["0" * 64] * 12 + ["1" * 64] * 12
    assert picture.region_map((0, 3), []) == []


def test_a_deep_tree():
    rows = [(0, "a"), (1, "b"), (2, "c"), (2, "d"), (1, "e"), (2, "f")]
    assert picture.tree(rows) == ["a", "├─ b", "│  ├─ c", "│  └─ d", "└─ e", "   └─ f"]
