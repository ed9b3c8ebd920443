"""docs/testing.md: what it shows is run."""

import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.testing import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL | re.MULTILINE
)


def run_block(tmp_path, text):
    (tmp_path / "test_page.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "alpha_mpi.testing.plugin", "-p", "no:cacheprovider"]
    env = launch.environment({"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)})
    words += ["--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path / "test_page.py")]
    return subprocess.run(words, capture_output=True, text=True, env=env, cwd=ROOT)


@pytest.mark.slow
def test_the_first_block_passes_as_it_stands(tmp_path):
    told = run_block(tmp_path, BLOCKS[0])
    assert told.returncode == 0 and "1 passed" in told.stdout, told.stdout + told.stderr


@pytest.mark.parametrize("owners", [1, 3])
def test_the_stream_block_draws_the_same_on_every_owner(owners):
    parts, ones = [], []
    for rank in range(owners):
        comm = types.SimpleNamespace(size=owners, rank=rank)
        names = {"am": am, "state": am.State(), "rows": am.rows(), "batch": 8, "comm": comm, "cursor": 40}
        exec(BLOCKS[1], names)
        parts.append(names["x"])
        ones.append(names["one"].tolist())
        assert len(names["state"]) == 1
    whole = am.stream(7, "noise").each(range(40, 48), lambda g: g.standard_normal(64))
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert all(one == ones[0] for one in ones)


def test_the_page_shows_what_a_report_says():
    page = (ROOT / "docs" / "testing.md").read_text()
    source = (ROOT / "alpha_mpi" / "testing" / "equivalence.py").read_text()
    for words in ("interrupted after update", "DIFFERENT after update", "stores and logs: "):
        assert words in page and words in source
