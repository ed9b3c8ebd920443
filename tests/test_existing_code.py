"""docs/howto-existing-code.md: its lines, put into a program, make it resume exactly."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from alpha_mpi.testing import launch, resume_equivalence

HERE = pathlib.Path(__file__).resolve().parent
PAGE = (HERE.parent / "docs" / "howto-existing-code.md").read_text()
IMPORTS, TIMESTEPS, CALL, SAVE, TEST = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
[COMMANDS] = re.findall(r"^```\n(mpiexec.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The program with the page's lines in it, as heat-p2p.py in the current folder."""
    text = (HERE / "existing_code.py").read_text()
    (tmp_path / "without.py").write_text(text)
    call = re.search(r"^    iterate\(.*\n", text, re.MULTILINE)[0]
    for mark, lines in (("# imports\n", IMPORTS), ("        # a step\n", SAVE)):
        assert text.count(mark) == 1
        text = text.replace(mark, lines)
    text = re.sub(r"timesteps = .*  # timesteps\n", lambda found: TIMESTEPS, text)
    text = text.replace("    ckpt, done = None, 0\n    # the call\n" + call, CALL + "    " + call)
    assert "# the call" not in text and "# timesteps" not in text
    monkeypatch.chdir(tmp_path)
    pathlib.Path("heat-p2p.py").write_text(text)
    return [sys.executable, "heat-p2p.py"]


def finish(words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=launch.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_and_resumed_on_the_same_and_on_another_number(program):
    job = launch.start(4, [*program, "ckpt", "1000000000"])
    try:
        deadline = time.monotonic() + 100
        while not pathlib.Path("ckpt/published/e000001-000003.json").exists():
            assert job.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        job.kill()
    shutil.copytree("ckpt", "killed")
    newest = max(int(p.name[8:14]) for p in pathlib.Path("killed/published").glob("*.json")) * 10
    finish([*launch.mpiexec(2), sys.executable, "without.py", "straight", str(newest + 13)])
    expected = np.load("straight.npy")
    for ranks in (4, 5):
        shutil.copytree("killed", f"on{ranks}")
        finish([*launch.mpiexec(ranks), *program, f"on{ranks}", str(newest + 13)])
        assert np.load(f"on{ranks}.npy").tobytes() == expected.tobytes()


def test_the_commands_run(program):
    for line in COMMANDS.splitlines():
        words = shlex.split(line.partition("   #")[0])
        if words[0] == "mpiexec":
            assert words[1] == "-n" and words[3] == "python"
            finish([*launch.mpiexec(int(words[2])), sys.executable, *words[4:]])
        else:
            assert words[0] == "alpha-mpi"
            assert "     240  " in finish([sys.executable, "-m", "alpha_mpi.cli", *words[1:]])
    finish([*launch.mpiexec(1), sys.executable, "without.py", "straight", "240"])
    assert np.load("ckpt.npy").tobytes() == np.load("straight.npy").tobytes()


@pytest.mark.slow
def test_the_test_passes(program, tmp_path):
    def check(training, **options):
        resume_equivalence(training, **options).check()

    names = {}
    exec(TEST, names)
    names["test_heat_resumes_exactly"](check)


def test_the_lines_are_counted():
    added = IMPORTS + CALL + SAVE
    changed = TIMESTEPS + "\n" * 3  # the call, the parameters, the loop: told in words
    counted = re.search(r"\*\*(\d+) lines: (\d+) added, (\d+) changed", PAGE)
    assert [int(n) for n in counted.groups()] == [
        added.count("\n") + changed.count("\n"),
        added.count("\n"),
        changed.count("\n"),
    ]
    assert int(counted[1]) <= 25
