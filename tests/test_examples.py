"""The examples stay short enough to be copied, and compile to what the README says."""

import pathlib
import re
import types

import numpy as np
import pytest

import alpha_mpi as am

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAIN = ROOT / "examples" / "digits" / "train.py"


def lines_without_comments(path):
    return [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]


def test_the_example_is_short():
    assert len(lines_without_comments(TRAIN)) <= 150


def test_few_lines_of_the_example_are_ours():
    ours = [
        line
        for line in lines_without_comments(TRAIN)
        if re.search(r"alpha_mpi|\bam\.|\bckpt\b|\bstate\b", line)
    ]
    assert 0 < len(ours) <= 25, ours


def blocks(path):
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(4))
def test_the_readme_compiles(number):
    compile(blocks(ROOT / "README.md")[number], "README.md", "exec")


def test_what_the_readme_shows_runs_and_resumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = blocks(ROOT / "README.md")[0]
    seen = []
    for last in (20, 35):
        w, m, schedule = np.ones((65, 128), np.float32), np.zeros((65, 128), np.float32), {"rate": 0.5}
        names = {
            "comm": None,
            "last": last,
            "model": types.SimpleNamespace(w=w),
            "opt": types.SimpleNamespace(m=m, b1=1.0),
            "sched": types.SimpleNamespace(as_dict=schedule.copy, load_dict=schedule.update),
            "generator": np.random.default_rng(1),
        }

        def train(update, cursor, w=w, names=names):
            w += names["generator"].standard_normal()
            return cursor + 4

        names["train"] = train
        exec(program, names)
        seen.append((names["moment"].update, names["cursor"], float(w[0, 0])))
    straight = np.float32(1) + np.zeros(1, np.float32)
    generator = np.random.default_rng(1)
    for _ in range(35):
        straight += generator.standard_normal()
    assert [s[:2] for s in seen] == [(0, 80), (20, 140)]
    assert seen[1][2] == straight[0]


def test_what_the_readme_looks_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    w, state = np.arange(40.0).reshape(20, 2), am.State()
    state.partition("weights", w, shape=w.shape, layout=am.rows())
    state.document("schedule", lambda: {"rate": 0.5}, lambda value: None)
    with am.Checkpointer("run/ckpt", state) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    names = {"am": am, "u": np.ones(3)}
    [program] = [block for block in blocks(ROOT / "README.md") if "am.open" in block]
    exec(program, names)
    assert names["first"].tolist() == w[:10].tolist() and names["rate"] == {"rate": 0.5}
    assert names["fields"]["u"].tolist() == [1, 1, 1] and names["fields"]["meta"] == {"dt": 0.1}


def test_the_readme_names_what_exists():
    import alpha_mpi

    for name in set(re.findall(r"\bam\.(\w+)", (ROOT / "README.md").read_text())):
        assert hasattr(alpha_mpi, name), name
