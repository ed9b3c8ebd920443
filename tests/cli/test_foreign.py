"""No command ever crashes, whatever lies where a store should be; each failure is one line."""

import os
import subprocess
import sys

import pytest

COMMANDS = ["ls", "show", "verify", "why"]


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_there_and_no_store(tmp_path, command, name):
    for path in (tmp_path / "missing", tmp_path):
        code, out, err = command(name, path)
        assert (code, out) == (1, "")
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_usage(tmp_path, command, name):
    assert command(name)[0] == 2
    assert command(name, tmp_path, "--nonsense")[0] == 2
    (tmp_path / "file").write_text("x")
    assert command(name, tmp_path / "file")[0] == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_in_json(tmp_path, answer, name):
    code, found = answer(name, tmp_path / "missing")
    assert code == 1
    assert found["error"]["code"] == "no-store"


@pytest.mark.parametrize("name", COMMANDS)
def test_any_file_replaced_by_anything(store, command, name):
    for folder, _, files in list(os.walk(store)):
        for file in files:
            path = os.path.join(folder, file)
            with open(path, "rb") as handle:
                good = handle.read()
            for bad in (b"", b"\0" * 200, b"{}\n", good[:-1], b"[" * 5000, good.replace(b"1", b"2")):
                with open(path, "wb") as handle:
                    handle.write(bad)
                assert command(name, store)[0] in (0, 1), (path, bad[:20])
            os.unlink(path)
            for make in (os.mkdir, os.mkfifo, lambda p: os.symlink("/dev/zero", p)):
                make(path)
                assert command(name, store)[0] in (0, 1), path
                os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
            assert command(name, store)[0] in (0, 1), path
            with open(path, "wb") as handle:
                handle.write(good)
    assert command(name, store)[0] == 0


def test_debug_shows_where(tmp_path):
    words = [sys.executable, "-m", "alpha_mpi.cli", "ls", str(tmp_path), "--debug"]
    told = subprocess.run(words, capture_output=True, text=True)
    assert told.returncode == 1
    assert "Traceback" in told.stderr and told.stderr.splitlines()[-1].startswith("alpha-mpi: ")


def test_commands_load_neither_mpi_nor_hdf5(store):
    program = (
        "import sys\n"
        "from alpha_mpi.cli import alpha_mpi\n"
        "for name in ('ls', 'show', 'verify'):\n"
        "    try:\n"
        f"        alpha_mpi().main([name, {str(store)!r}])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        "assert not {'mpi4py', 'mpi4py.MPI', 'h5py', 'cupy'} & set(sys.modules), sys.modules\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
