"""alpha-mpi h5 and import: files made by the command line, and what they refuse."""

import errno
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from fill import same_bits

import alpha_mpi as am
from alpha_mpi.interop.hdf5 import open_view
from alpha_mpi.store import space
from alpha_mpi.testing import launch


def test_a_view_lies_in_the_store_by_default(store, answer, command, monkeypatch):
    code, found = answer("h5", store)
    assert code == 0 and found["kind"] == "view" and found["verified"]
    assert pathlib.Path(found["path"]) == store.resolve() / "e000002-000001.h5"
    assert found["environment"] == {"HDF5_EXTFILE_PREFIX": "${ORIGIN}"}
    assert found["bytes"] == os.path.getsize(found["path"]) < 100_000
    monkeypatch.chdir(store)
    with h5py.File("e000002-000001.h5") as file, am.open(store) as reader:
        assert same_bits(file["weights"][...], reader.latest()["weights"][...])
        assert file.attrs["alpha_mpi.update"] == 30
        assert file["schedule"].asstr()[()] == '{"rate":{"$float":"0x1.0000000000000p-1"}}'
    code, _, err = command("h5", store)
    assert code == 1 and "[file-exists]" in err
    assert answer("h5", store, "--replace")[0] == 0
    assert answer("ls", store)[1]["strangers"] == []
    assert answer("verify", store, "--all")[0] == 0


def test_lines_for_people(store, command):
    code, out, _ = command("h5", store, "u10")
    assert code == 0
    first, last = out.splitlines()
    assert first.startswith("e000001-000001: view ") and "3 datasets" in first and "verified" in first
    assert last == "from another folder than the file's: export HDF5_EXTFILE_PREFIX='${ORIGIN}'"


def test_damage_is_found_before_a_view_is_made(store, command, answer):
    with am.open(store) as reader:
        attempt = reader.latest()._generation.candidate.attempt
    (pack,) = (store / "data" / f"e{attempt.epoch:06d}-{attempt.save:06d}").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[200] ^= 1
    pack.write_bytes(data)
    for more in ((), ("--copy", "-o", store.parent / "copy.h5")):
        code, out, err = command("h5", store, *more)
        assert code == 1 and out == "" and "corrupt-shard" in err
    assert [p.name for p in store.parent.iterdir()] == ["ckpt"]
    assert not list(store.glob("*.h5"))
    code, found = answer("h5", store, "--no-verify")
    assert code == 0 and not found["verified"]
    with h5py.File(found["path"]) as file:
        assert not file.attrs["alpha_mpi.verified"]


@pytest.mark.parametrize("words", [("--copy",), ("--compress",), ("--copy", "--no-verify", "-o", "x.h5")])
def test_wrong_usage(store, command, words):
    assert command("h5", store, *words)[0] == 2


def test_out_and_in_again(store, answer, tmp_path):
    for n, more in enumerate((("--copy",), ("--copy", "--compress"), ())):
        target = tmp_path / f"{n}.h5"
        code, found = answer("h5", store, "u20", "-o", target, *more)
        assert code == 0 and found["path"] == str(target.resolve())
        code, found = answer("import", target, tmp_path / f"again{n}")
        assert code == 0 and (found["update"], found["cursor"]) == (20, 60)
        with am.open(store) as a, am.open(tmp_path / f"again{n}") as b:
            one, other = a["u20"], b.latest()
            assert list(one) == list(other) and dict(one.documents) == dict(other.documents)
            assert all(same_bits(np.asarray(one[name]), np.asarray(other[name])) for name in one)
            assert one.learner == other.learner and one.contract == other.contract
        code, found = answer("import", target, tmp_path / f"again{n}")
        assert code == 1 and found["error"]["code"] == "stale-update"
        assert "above update 20" in found["error"]["message"]
        assert answer("import", target, tmp_path / f"again{n}", "--update", "21")[0] == 0


def test_a_file_that_hdf5_cannot_read_to_its_end(store, command, tmp_path):
    target = tmp_path / "f.h5"
    assert command("h5", store, "--copy", "-o", target)[0] == 0
    good = target.read_bytes()
    assert b"GCOL" in good  # where HDF5 keeps texts
    for bad in (good.replace(b"GCOL", b"????"), good[:-1], good[:100], b""):
        target.write_bytes(bad)
        code, _, err = command("import", target, tmp_path / "again")
        assert code == 1 and len(err.splitlines()) == 1 and "[not-hdf5]" in err, err
        if len(bad) < len(good):
            with pytest.raises(am.Refused) as caught:
                open_view(target)
            assert caught.value.code == "not-hdf5"
    assert not (tmp_path / "again").exists()


def test_an_imported_generation_is_resumed(store, answer, job, tmp_path):
    answer("h5", store, "-o", tmp_path / "f.h5", "--copy")
    answer("import", tmp_path / "f.h5", tmp_path / "again")
    job(tmp_path / "again", (40,))
    code, found = answer("show", tmp_path / "again")
    assert code == 0 and found["update"] == 40
    with am.open(tmp_path / "again") as reader:
        assert reader.latest()["weights"][0, 0] == 100


def test_a_file_of_numbers(command, answer, tmp_path):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = np.arange(4)
    code, out, _ = command("import", tmp_path / "f.h5", tmp_path / "ckpt", "--update", 7, "--learner", "mine")
    assert code == 0 and out.startswith("e000001-000001: update 7, cursor 7, published in ")
    assert answer("show", tmp_path / "ckpt")[1]["learner"]["label"] == "mine"
    code, _, err = command(
        "import", tmp_path / "f.h5", tmp_path / "ckpt", "--update", 7, "--learner", "other"
    )
    assert code == 1 and "other-learner" in err
    (tmp_path / "no.h5").write_text("no")
    for words in (
        ("no.h5", "not-hdf5"),
        ("missing.h5", "missing.h5"),
        (".", "Is a directory"),
        ("no.h5/x", "Not a dir"),
    ):
        code, _, err = command("import", tmp_path / words[0], tmp_path / "ckpt")
        assert code == 1 and words[1] in err and len(err.splitlines()) == 1, err


def test_a_copy_that_does_not_fit_is_refused_before_it_is_begun(store, command, tmp_path, monkeypatch):
    target = tmp_path / "copies" / "f.h5"
    code, _, err = command("h5", store, "--copy", "-o", target)
    assert code == 1 and str(target.parent) in err and "No such file" in err
    target.parent.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(space, "available", lambda directory: 1000)
        code, _, err = command("h5", store, "--copy", "-o", target)
    assert code == 1 and "no-space" in err and "4824 bytes" in err and "1000 bytes left" in err
    assert list(target.parent.iterdir()) == []

    def pwrite(fd, data, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)  # somebody else took the room
    code, _, err = command("h5", store, "--copy", "-o", target)
    assert (code, err) == (1, f"alpha-mpi: {target}: No space left on device\n")
    assert list(target.parent.iterdir()) == []


def test_what_the_page_shows(store, command, tmp_path, monkeypatch):
    """Every command and the program of docs/hdf5.md."""
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "hdf5.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views").mkdir()
    with h5py.File("results.h5", "w") as file:
        file["x"] = np.arange(4)
    lines = re.findall(r"^(?:mpiexec -n 8 )?alpha-mpi (.*)$", page, re.MULTILINE)
    assert len(lines) == 7
    for n, line in enumerate(lines):
        words = [
            {"STORE": "ckpt", "NEW_STORE": f"new{n}", "u120": "u20"}.get(w, w)
            for w in shlex.split(line, True)
        ]
        if "--compress" in words:
            words.append("--replace")
        code, _, err = command(*words)
        assert code == 0, (line, err)
    shutil.copy(store / "e000002-000001.h5", store / "e000001-000003.h5")
    [program] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(program, {})


def test_many_ranks_write_a_copy_and_import_it(store, tmp_path):
    def run(*words):
        program = [sys.executable, "-m", "alpha_mpi.cli", *map(str, words)]
        return subprocess.run(
            [*launch.mpiexec(3), *program],
            env=launch.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    done = run("h5", store, "--copy", "-o", tmp_path / "f.h5", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["kind"] == "copy", done
    done = run("h5", store, "-o", tmp_path / "v.h5", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["kind"] == "view", done
    for n in ("f", "v"):
        done = run("import", tmp_path / f"{n}.h5", tmp_path / n)
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done
        with am.open(store) as a, am.open(tmp_path / n) as b:
            assert b.latest().owners == 3
            assert same_bits(a.latest()["weights"][...], b.latest()["weights"][...])
    done = run("h5", store, "--copy", "-o", tmp_path / "f.h5")
    assert done.returncode != 0 and "[file-exists]" in done.stderr


@pytest.mark.parametrize("damage", ["emptied", "removed", "a folder"])
def test_whatever_is_damaged_it_says_so_in_one_line(store, command, tmp_path, damage):
    files = sorted(p for p in store.rglob("*") if p.is_file())
    assert len(files) >= 8
    for n, file in enumerate(files):
        data = file.read_bytes()
        file.unlink()
        if damage == "emptied":
            file.touch()
        elif damage == "a folder":
            file.mkdir()
        for more in ((), ("--copy",), ("--no-verify",)):
            target = tmp_path / f"{n}{''.join(more)}.h5"
            code, _, err = command("h5", store, "-o", target, *more)
            assert code == (0 if target.exists() else 1), (file, more, err)
            assert code == 0 or len(err.splitlines()) == 1
        if damage == "a folder":
            file.rmdir()
        file.write_bytes(data)
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]
