"""alpha-mpi verify: damage is found wherever it is, and nothing else is damage."""

import pytest


def files_of_newest(store):
    """Every file that the newest generation names, its root included."""
    data = sorted(p for p in (store / "data" / "e000002-000001").rglob("*") if p.is_file())
    return [store / "published" / "e000002-000001.json", *data]


def test_whole(store, answer):
    code, found = answer("verify", store)
    assert code == 0 and found["whole"]
    [told] = found["generations"]
    assert told["name"] == "e000002-000001" and told["problems"] == []
    assert told["shards"] == 3 and told["bytes"] > 40 * 30 * 4


def test_all_of_them(store, answer):
    code, found = answer("verify", store, "--all")
    assert code == 0
    assert [g["name"] for g in found["generations"]] == ["e000001-000001", "e000001-000002", "e000002-000001"]


def test_one_flipped_bit_in_any_part_of_any_file(store, answer):
    for file in files_of_newest(store):
        good = file.read_bytes()
        for at in sorted({0, 7, len(good) // 3, len(good) // 2, len(good) - 1}):
            file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            code, found = answer("verify", store, "e000002-000001")
            [told] = found["generations"]
            assert code == 1 and told["problems"], f"{file.name}, byte {at}"
            assert any(p["file"] and p["file"].endswith(file.name) for p in told["problems"])
        file.write_bytes(good)
    assert answer("verify", store)[0] == 0


@pytest.mark.parametrize("harm", ["truncate", "empty", "remove", "directory", "longer"])
def test_a_file_that_is_not_what_it_was(store, answer, harm):
    for file in files_of_newest(store):
        good = file.read_bytes()
        if harm == "truncate":
            file.write_bytes(good[: len(good) // 2])
        elif harm == "empty":
            file.write_bytes(b"")
        elif harm == "longer":
            file.write_bytes(good + b"\0")
        else:
            file.unlink()
        if harm == "directory":
            file.mkdir()
        code, found = answer("verify", store, "e000002-000001")
        assert code == 1, file.name
        assert found["generations"][0]["problems"]
        if harm == "directory":
            file.rmdir()
        file.write_bytes(good)
    assert answer("verify", store)[0] == 0


def test_damage_elsewhere_does_not_matter(store, answer):
    pack = next((store / "data" / "e000001-000001").rglob("*.pack"))
    pack.write_bytes(b"")
    assert answer("verify", store)[0] == 0
    code, found = answer("verify", store, "--all")
    assert code == 1
    assert [g["whole"] for g in found["generations"]] == [False, True, True]


def test_lines_for_people(store, command):
    code, out, _ = command("verify", store)
    assert code == 0 and out.startswith("e000002-000001 (update 30): whole; read 1 role, ")
    next((store / "data" / "e000002-000001").rglob("*.pack")).write_bytes(b"")
    code, out, _ = command("verify", store)
    assert code == 1
    assert "damaged, 1 problem" in out and "000000.pack" in out
