"""examples/heat: killed on one grid of ranks, resumed on others, with exactly the same field."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.testing import launch, resume_equivalence

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEAT = ROOT / "examples" / "heat" / "heat.py"


def plate(shape, updates):
    """The field as one process computes it: written from the equation, not from the example."""
    u = np.zeros((shape[0] + 2, shape[1] + 2))
    u[0] = 1.0
    for t in range(1, updates + 1):
        c = u[1:-1, 1:-1]
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u[1:-1, 1:-1] = c + 0.2 * (around - 4 * c)
        u[3 * t % shape[0] + 1, 7 * t % shape[1] + 1] += 0.5
    return u[1:-1, 1:-1]


def finish(ranks, words):
    done = subprocess.run(
        [*launch.mpiexec(ranks), *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=launch.environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_killed_on_one_grid_and_resumed_on_others(tmp_path):
    shape, store = (23, 31), tmp_path / "ckpt"
    words = [sys.executable, str(HEAT), "--shape", "23", "31", "--every", "5"]
    job = launch.start(4, [*words, "--store", str(store), "--updates", "1000000000"])
    try:
        deadline = time.monotonic() + 100
        while not (store / "published" / "e000001-000003.json").exists():
            assert job.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        job.kill()
    with am.open(store) as reader:
        update = reader.latest().moment.update
    assert update >= 15 and update % 5 == 0
    expected = plate(shape, update + 7)
    for ranks, grid in ((2, "2 x 1"), (6, "3 x 2")):
        copy, out = shutil.copytree(store, tmp_path / f"on-{ranks}"), tmp_path / f"{ranks}.npy"
        told = finish(ranks, [*words, "--store", str(copy), "--updates", str(update + 7), "--out", str(out)])
        assert told == f"starting after update {update} on {grid} ranks\n"
        found = np.load(out)
        assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()
    with am.open(tmp_path / "on-6") as reader:
        generation = reader.latest()
        assert generation.moment.update == update + 5
        assert generation["temperature"][:].tobytes() == plate(shape, update + 5).tobytes()


@pytest.mark.slow
def test_resume_equivalence_of_the_example():
    words = [
        "python",
        str(HEAT),
        "--store",
        "{store}",
        "--updates",
        "{updates}",
        "--every",
        "1",
        "--keep",
        "9",
    ]
    assert resume_equivalence([*words, "--shape", "17", "12"], owners=(4, 6, 1), across=True).same


def test_what_the_readme_says_runs(tmp_path, monkeypatch):
    page = (HEAT.parent / "README.md").read_text()
    [block] = re.findall(r"^```\n(mpiexec.*?)^```$", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        mpiexec, dash, ranks, python, program, *rest = shlex.split(line)
        assert (mpiexec, dash, python) == ("mpiexec", "-n", "python")
        finish(int(ranks), [sys.executable, str(ROOT / program), *rest])
    assert np.load("plate.npy").tobytes() == plate((96, 128), 200).tobytes()
    [declared] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert declared in HEAT.read_text().replace("    state.", "state.")


def test_the_example_is_short_and_few_lines_are_ours():
    lines = [line for line in HEAT.read_text().splitlines() if not line.lstrip().startswith("#")]
    ours = [line for line in lines if re.search(r"alpha_mpi\b|\bam\.|\bckpt\b|\bstate\b|\bmoment\b", line)]
    ours = [line for line in ours if '"""' not in line and "options" not in line]
    assert len(lines) <= 110
    assert 0 < len(ours) <= 12, ours
