"""Gate: the demonstration does what it says, on a tree, on fewer ranks than `make demo` uses."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.timeout(500)
def test_killed_inside_a_save_and_resumed_bit_for_bit(tmp_path):
    demo = [sys.executable, str(ROOT / "examples" / "digits" / "demo.py")]
    told = subprocess.run(
        [*demo, "--ranks", "3", "--dir", str(tmp_path / "run")], capture_output=True, text=True, timeout=480
    )
    assert told.returncode == 0, told.stdout + told.stderr
    lines = told.stdout.splitlines()
    assert sum(line.endswith("   bit for bit equal") for line in lines) == 5
    assert not any("DIFFERENT" in line for line in lines)
    assert "   resumed after update 75" in lines
    assert "   3 resumed on 2: equal to the run on 3, bit for bit" in lines
    assert any("(attempt e000001-000004)" in line and "killed" in line for line in lines)
    assert (tmp_path / "run" / "ckpt" / "store.json").is_file()
