"""alpha-mpi show: what one generation says of itself."""

import pytest


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
