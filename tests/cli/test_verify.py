"""alpha-mpi verify: damage is found wherever it is, and nothing else is damage."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
from golden import generate

from alpha_mpi.cli import progress
from alpha_mpi.testing import launch


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


def together(store, *words, ranks=3):
    """Verify on several ranks; return (exit code, the answer)."""
    job = [
        *launch.mpiexec(ranks),
        sys.executable,
        "-m",
        "alpha_mpi.cli",
        "verify",
        str(store),
        *words,
        "--json",
    ]
    told = subprocess.run(job, capture_output=True, text=True, env=launch.environment(), timeout=120)
    return told.returncode, json.loads(told.stdout[told.stdout.index("{") : told.stdout.rindex("}") + 1])


def test_on_many_ranks_the_report_is_the_same(tmp_path, answer):
    golden = pathlib.Path(generate.__file__).parent / "v1"
    store = shutil.copytree(golden, tmp_path / "golden")
    assert together(store, "--all") == answer("verify", store, "--all")
    for role in (0, 2):
        pack = next((store / "data" / "e000001-000002").rglob(f"00000{role}.pack"))
        data = bytearray(pack.read_bytes())
        data[128] ^= 1
        pack.write_bytes(data)
    alone, many = answer("verify", store, "--all"), together(store, "--all")
    assert alone[0] == 1 and many[0] != 0
    assert alone[1] == many[1]
    roles = [
        p["role"] for g in many[1]["generations"] for p in g["problems"] if g["name"].startswith("e000001")
    ]
    assert roles == [0, 2]


def test_on_many_ranks_a_refusal_ends_all_of_them(tmp_path):
    code, found = together(tmp_path, ranks=2)
    assert code != 0 and found["error"]["code"] == "not-a-store"


def test_a_generation_that_retention_removed_meanwhile_is_no_damage(store, answer, monkeypatch):
    from alpha_mpi.cli import verify as module

    real = module.judge

    def judge(opened, epoch, number, told):
        if (epoch, number) == (1, 1):
            shutil.rmtree(store / "data" / "e000001-000001")
            (store / "published" / "e000001-000001.json").unlink()
        return real(opened, epoch, number, told)

    monkeypatch.setattr(module, "judge", judge)
    code, found = answer("verify", store, "--all")
    assert code == 0 and len(found["generations"]) == 2


class _Terminal:
    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_is_shown_on_a_terminal_after_a_second(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.Progress("verify x") as shown:
        shown(1, 4)
        assert terminal.text == ""  # nothing yet
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.Progress("verify x") as shown:
        shown(1, 4)
    assert "verify x  25 % (1 B of 4 B)" in terminal.text and terminal.text.endswith("\r")
    terminal.text, terminal.isatty = "", lambda: False
    with progress.Progress("verify x") as shown:
        shown(1, 4)
    assert terminal.text == ""
