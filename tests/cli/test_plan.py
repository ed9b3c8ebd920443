"""alpha-mpi plan: what a resume would read, for each owner."""

import pathlib
import shutil

import pytest
from golden import generate

GOLDEN = pathlib.Path(generate.__file__).parent / "v1"
BYTES = 40 * 30 * 4 + 3 * 8 + len('{"rate":{"$float":"0x1.0000000000000p-1"}}')


@pytest.mark.parametrize("owners", [1, 2, 3, 7, 40, 64])
def test_every_word_is_read_once(store, answer, owners):
    code, found = answer("plan", store, "--owners", owners)
    assert code == 0 and len(found["per_owner"]) == owners
    assert found["bytes"] == BYTES and found["refused"] == {}
    rows = [row["bytes"] for row in found["per_owner"]]
    assert sum(1 for n in rows if n) == min(owners, 40)
    assert found["packs"] == 1 and found["manifests"] == 1


def test_by_default_as_saved(store, answer):
    assert answer("plan", store, "u10")[1]["owners"] == 1


def test_a_tree_on_its_own_owners_reads_its_own_packs(tmp_path, answer):
    source = shutil.copytree(GOLDEN, tmp_path / "golden")
    code, found = answer("plan", source, "e000001-000001")
    assert code == 0
    assert [row["files"] for row in found["per_owner"]] == [
        [f"data/e000001-000002/000/00000{k}.pack"] for k in range(3)
    ]
    code, found = answer("plan", source, "e000001-000001", "--owners", 2)
    assert code == 1 and {"rng", "note", "ragged"} <= set(found["refused"])


def test_lines_for_people(store, command):
    lines = command("plan", store, "--owners", "2")[1].splitlines()
    assert lines[0].startswith("e000002-000001, saved by 1, on 2 owners: ")
    assert [line.split()[0] for line in lines[1:]] == ["owner", "0", "1"]
    assert command("plan", store, "--owners", "0")[0] == 2
