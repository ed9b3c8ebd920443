"""No command ever crashes, whatever lies where a store should be; each failure is one line."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from alpha_mpi.format.claim import StoreFile, encode_store_file

#: Every command that is given a store, and what follows the store; as a rule nothing is changed.
COMMANDS = {
    "cp": ("latest", "elsewhere", "--dry-run"),
    "diff": ("u10", "latest"),
    "doctor": (),
    "ls": ("--removed",),
    "pin": ("latest", "--dry-run"),
    "plan": ("--owners", "2"),
    "prune": ("--keep", "1", "--offline", "--dry-run"),
    "rm": ("u10", "--dry-run"),
    "show": (),
    "show-map": ("--map", "weights"),
    "show-tree": ("--tree",),
    "unpin": ("latest", "--dry-run"),
    "verify": ("--all",),
    "why": (),
}


@pytest.fixture
def on(command):
    """Run one of COMMANDS on a store."""

    def run(name, path, *more):
        return command(name.partition("-")[0], path, *COMMANDS[name], *more)

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_there_and_no_store(tmp_path, on, name):
    for path in (tmp_path / "missing", tmp_path):
        code, out, err = on(name, path)
        assert code == 1
        if name != "doctor":
            assert out == "" and len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_usage(tmp_path, command, on, name):
    if name != "doctor":
        assert command(name.partition("-")[0])[0] == 2
    assert on(name, tmp_path, "--nonsense")[0] == 2
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        code, out, err = on(name, path)
        assert code == 1 and str(tmp_path / "file") in out + err and len(err.splitlines()) <= 1


def test_wrong_usage_is_one_line_and_json_where_asked(store, command):
    for words in (("ls",), ("ls", store, "--nonsense"), ("nothing",), ("show", store, "newest"), ("--x",)):
        code, out, err = command(*words)
        assert (code, out) == (2, "") and len(err.splitlines()) == 1 and "--help" in err
        code, out, again = command(*words, "--json")
        assert (code, json.loads(out)["error"]["code"]) == (2, "usage") and len(again.splitlines()) == 1


def test_the_first_rank_alone_speaks(store):
    for words in (("ls", store, "--nonsense"), ("verify", store, "newest"), ("ls", "--help"), ("--version",)):
        said = []
        for rank in range(2):
            program = [sys.executable, "-m", "alpha_mpi.cli", *map(str, words)]
            told = subprocess.run(
                program, capture_output=True, text=True, env={**os.environ, "PMI_RANK": str(rank)}
            )
            said.append((told.returncode, told.stdout + told.stderr))
        # The code is the first rank's too: a launcher may end all ranks at the first code that is not 0.
        assert said[0][0] == (0 if words[-1] in ("--help", "--version") else 2) and said[0][1], said
        assert said[1] == (0, ""), said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_in_json(tmp_path, on, name):
    code, out, _ = on(name, tmp_path / "missing", "--json")
    found = json.loads(out)
    assert code == 1
    assert found["wrong"] if name == "doctor" else found["error"]["code"] == "no-store"


@pytest.mark.parametrize("name", COMMANDS)
def test_any_file_replaced_by_anything(store, on, name):
    first = on(name, store)[0]
    for folder, _, files in list(os.walk(store)):
        for file in files:
            path = os.path.join(folder, file)
            with open(path, "rb") as handle:
                good = handle.read()
            for bad in (b"", b"\0" * 200, b"{}\n", good[:-1], b"[" * 5000, good.replace(b"1", b"2")):
                with open(path, "wb") as handle:
                    handle.write(bad)
                assert on(name, store)[0] in (0, 1), (path, bad[:20])
            os.unlink(path)
            for make in (os.mkdir, os.mkfifo, lambda p: os.symlink("/dev/zero", p)):
                make(path)
                assert on(name, store)[0] in (0, 1), path
                os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
            assert on(name, store)[0] in (0, 1), path
            with open(path, "wb") as handle:
                handle.write(good)
    assert on(name, store)[0] == first


def _foreign(store):
    (store / "notes.txt").write_text("mine")
    (store / "published" / "e000001-000001.pinned").write_text("mine")
    (store / "published" / "e1-1.json").mkdir()
    (store / "data" / "photos").mkdir()
    os.mkfifo(store / "epochs" / "pipe")


def _unfinished(store):
    attempt = shutil.copytree(store / "data" / "e000002-000001", store / "data" / "e000002-000009")
    pack = next(attempt.rglob("*.pack"))
    pack.rename(pack.with_name(f".{pack.name}.{'0' * 16}.tmp"))


def _claimed_only(store):
    (store / "published" / "e000002-000001.json").unlink()


def _half_deleted(store):
    shutil.rmtree(store / "data" / "e000001-000001")
    (store / "published" / "e000001-000002.json").unlink()


def _no_data(store):
    shutil.rmtree(store / "data")


def _no_record(store):
    (store / "epochs" / "e000002.json").unlink()


def _no_seal(store):
    (store / "published" / "e000001-000003.json").unlink()


def _damaged_newest(store):
    (store / "published" / "e000002-000001.json").write_bytes(b"{}")


def _another_store(store):
    other = json.loads((store / "store.json").read_bytes().split(b"\n")[0])
    value = StoreFile(id="0" * 32, digest=other["digest"])
    (store / "store.json").write_bytes(encode_store_file(value))


def _locked(store):
    for path in store.rglob("*"):
        path.chmod(0)


HARMS = [
    _foreign,
    _unfinished,
    _claimed_only,
    _half_deleted,
    _no_data,
    _no_record,
    _no_seal,
    _damaged_newest,
    _another_store,
    _locked,
]
#: Commands that change something, for real.
CHANGES = {
    "cp": ("latest", "ELSEWHERE"),
    "h5": ("u10", "-o", "ELSEWHERE"),
    "pin": ("latest",),
    "prune": ("--keep", "1", "--abandoned", "--offline"),
    "rm": ("u10", "u20", "--offline"),
    "unpin": ("u10",),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", [*COMMANDS, *(f"{name}!" for name in CHANGES)])
def test_stores_that_somebody_harmed(store, command, tmp_path, name, harm):
    harm(store)
    strangers = {p for p in store.rglob("*") if p.name in ("notes.txt", "photos", "pipe")}
    words = CHANGES[name[:-1]] if name.endswith("!") else COMMANDS[name]
    words = [str(tmp_path / "copy") if w in ("ELSEWHERE", "elsewhere") else w for w in words]
    code, out, err = command(name.rstrip("!").partition("-")[0], store, *words)
    assert code in (0, 1)
    assert code == 0 or out or err
    assert len(err.splitlines()) <= 1
    assert all(os.path.lexists(p) for p in strangers)


def test_debug_shows_where(tmp_path):
    words = [sys.executable, "-m", "alpha_mpi.cli", "ls", str(tmp_path), "--debug"]
    told = subprocess.run(words, capture_output=True, text=True)
    assert told.returncode == 1
    assert "Traceback" in told.stderr and told.stderr.splitlines()[-1].startswith("alpha-mpi: ")


def test_commands_load_neither_mpi_nor_hdf5(store):
    program = (
        "import sys\n"
        "from alpha_mpi.cli import alpha_mpi\n"
        "for name in ('ls', 'show', 'verify', 'why', 'plan'):\n"
        "    try:\n"
        f"        alpha_mpi().main([name, {str(store)!r}])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        "assert not {'mpi4py', 'mpi4py.MPI', 'h5py', 'cupy'} & set(sys.modules), sys.modules\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
