"""alpha-mpi ls: what lies in a store."""

import shutil

NAMES = ["e000001-000001", "e000001-000002", "e000002-000001"]


def test_generations_oldest_first(store, answer):
    code, found = answer("ls", store)
    assert code == 0
    rows = found["generations"]
    assert [row["name"] for row in rows] == NAMES
    assert [(row["update"], row["cursor"]) for row in rows] == [(10, 30), (20, 60), (30, 90)]
    assert [row["state"] for row in rows] == ["lineage", "lineage", "newest"]
    assert found["epoch"] == 2 and found["damaged"] == {} and found["unfinished"] == []
    for row in rows:
        files = [p for p in (store / "data" / row["attempt"]).rglob("*") if p.is_file()]
        assert row["files"] == len(files)
        assert row["bytes"] == sum(p.stat().st_size for p in files)


def test_lines_for_people(store, command):
    code, out, _ = command("ls", store)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["store", "generation", *NAMES]
    assert out.splitlines()[-1].endswith("newest")


def test_strangers_and_unfinished_attempts_are_named_and_no_error(store, answer):
    (store / "notes.txt").write_text("mine")
    (store / "published" / "readme").write_text("mine")
    shutil.copytree(store / "data" / "e000002-000001", store / "data" / "e000002-000009")
    code, found = answer("ls", store)
    assert code == 0
    assert found["unfinished"] == ["e000002-000009"]
    assert set(found["strangers"]) == {"notes.txt", "published/readme"}


def test_a_damaged_root_is_listed_and_makes_the_exit_code_1(store, answer):
    root = store / "published" / "e000001-000001.json"
    root.write_bytes(root.read_bytes().replace(b'"update":10', b'"update":11'))
    code, found = answer("ls", store)
    assert code == 1
    assert list(found["damaged"]) == [NAMES[0]]
    assert [row["state"] for row in found["generations"]] == ["damaged", "lineage", "newest"]


def test_a_damaged_newest_root_does_not_hide_the_others(store, answer):
    (store / "published" / "e000002-000001.json").write_bytes(b"")
    code, found = answer("ls", store)
    assert code == 1
    assert [row["state"] for row in found["generations"]] == ["lineage", "lineage", "damaged"]


def test_a_generation_without_its_data_still_has_a_row(store, answer):
    shutil.rmtree(store / "data" / "e000001-000002")
    code, found = answer("ls", store)
    assert code == 0
    assert found["generations"][1]["bytes"] == 0


def test_a_store_without_a_generation(tmp_path, job, answer):
    job(tmp_path / "new", ())
    code, found = answer("ls", tmp_path / "new")
    assert code == 0
    assert found["generations"] == [] and found["epoch"] == 1
