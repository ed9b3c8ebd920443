"""Gate: the benchmark runs and restores what it saved; how fast is not judged here."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_quick_benchmark(tmp_path):
    words = [
        sys.executable,
        str(ROOT / "benchmarks" / "save_restore.py"),
        "--quick",
        "--repeats",
        "1",
        "--ranks",
        "2",
    ]
    words += ["--root", str(tmp_path), "--out", str(tmp_path / "out.json")]
    told = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert told.returncode == 0, told.stdout + told.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == 2 * 3 * 2  # workloads, tools, save and restore
    assert all(row["wall"] > 0 for row in rows)
