"""Pages: every command line of ours that README and docs show runs, and every command has one."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from alpha_mpi.cli import alpha_mpi
from alpha_mpi.testing import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/commands.md", "docs/howto-existing-code.md")


def lines():
    """Every line of a block that starts a command of ours."""
    for page in PAGES:
        blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
        for line in "".join(blocks).splitlines():
            words = line.split("   #")[0].strip()
            if re.match(r"(mpiexec -n \d+ |srun .*|eval .*)?(\.venv/bin/)?alpha-mpi ", words) or (
                words.startswith("eval ") and "alpha-mpi" in words
            ):
                yield pytest.param(words, id=words)


@pytest.fixture
def there(store, tmp_path, monkeypatch):
    """A folder with the stores that the pages speak of."""
    for name in ("demo-run/ckpt", "run/ckpt", "other/ckpt"):
        shutil.copytree(store, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", list(lines()))
def test_every_line_runs(there, command, line):
    words = shlex.split(line)
    if line.startswith("eval "):
        script = f'alpha-mpi() {{ {shlex.quote(sys.executable)} -m alpha_mpi.cli "$@"; }}\n{line}'
        # The shell calls it by its name: what click looks at is the variable and the program's name.
        told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT)
        assert told.returncode == 0 and "Error" not in told.stderr, told.stderr
        return
    if words[0] == "mpiexec":
        program = [sys.executable, "-m", "alpha_mpi.cli", *words[4:]]
        extra = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        job = [*launch.mpiexec(int(words[2])), *program]
        told = subprocess.run(job, capture_output=True, text=True, env=launch.environment(extra), timeout=240)
        assert told.returncode == 0, told.stdout + told.stderr
        assert told.stdout.count("e000002-000001") == 1
        return
    code, out, err = command(*words[1:])
    assert code == (1 if words[1] == "diff" else 0), out + err
    assert out and not err


def test_no_page_is_forgotten():
    """hdf5.md is run by test_h5.py."""
    pages = set()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S)
        if any("alpha-mpi " in line for line in "".join(blocks).splitlines()):
            pages.add(str(page.relative_to(ROOT)))
    assert pages == {*PAGES, "docs/hdf5.md"}


def test_every_command_has_a_line():
    shown = {re.search(r"alpha-mpi ([a-z0-9]+)", p.values[0]).group(1) for p in lines() if "eval" not in p.id}
    text = (ROOT / "docs/commands.md").read_text() + (ROOT / "docs/hdf5.md").read_text()
    for name in alpha_mpi().commands:
        assert name in shown or f"alpha-mpi {name} " in text, name


def test_completion_knows_the_commands():
    extra = {"_ALPHA_MPI_COMPLETE": "bash_complete", "COMP_WORDS": "alpha-mpi p", "COMP_CWORD": "1"}
    told = subprocess.run(
        [sys.executable, "-m", "alpha_mpi.cli"],
        capture_output=True,
        text=True,
        env={**os.environ, **extra},
        cwd=ROOT,
    )
    assert {"plain,pin", "plain,plan", "plain,probe", "plain,prune"} <= set(told.stdout.splitlines())


def test_completion_knows_the_generations(store):
    def completed(*words):
        extra = {"_ALPHA_MPI_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["alpha-mpi", *words])}
        extra["COMP_CWORD"] = str(len(words))
        told = subprocess.run(
            [sys.executable, "-m", "alpha_mpi.cli"],
            capture_output=True,
            text=True,
            env={**os.environ, **extra},
            cwd=ROOT,
        )
        assert not told.stderr
        return {line.removeprefix("plain,") for line in told.stdout.split()}

    assert completed("show", str(store), "e000001") == {"e000001-000001", "e000001-000002"}
    assert completed("diff", str(store), "u10", "u") == {"u10", "u20", "u30"}
    assert completed("rm", str(store), "u10", "u2") == {"u20"}
    assert completed("show", str(store / "missing"), "u") == set()


def test_every_command_answers_help(command):
    for name in alpha_mpi().commands:
        code, out, _ = command(name, "--help")
        assert code == 0 and "Exit codes:" in " ".join(out.split()), name
