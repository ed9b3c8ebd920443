"""The examples stay short enough to be copied, and compile to what the README says."""

import pathlib
import re

import pytest

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


@pytest.mark.parametrize("number", range(2))
def test_the_readme_compiles(number):
    compile(blocks(ROOT / "README.md")[number], "README.md", "exec")


def test_the_readme_names_what_exists():
    import alpha_mpi

    for name in set(re.findall(r"\bam\.(\w+)", (ROOT / "README.md").read_text())):
        assert hasattr(alpha_mpi, name), name
