"""Pages: every relative link leads to a file and a heading that exist."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


def load():
    spec = importlib.util.spec_from_file_location("check_links", ROOT / "tools" / "check_links.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_link_leads_somewhere():
    assert load().broken() == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "README.md").write_text(
        "# A page\n[a](#a-page) [b](other.md) [c](x.md#the-part) [d](#nowhere)\n```\n[e](in-code.md)\n```\n"
    )
    (tmp_path / "x.md").write_text("## The part\n")
    assert load().broken(tmp_path) == [
        "README.md: no such file: other.md",
        "README.md: no such heading: #nowhere",
    ]


def functions(file):
    return set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)) if file.is_file() else set()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_every_test_that_a_page_names_exists(page):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", page.read_text())
    assert [f"{file}::{name}" for file, name in named if name not in functions(ROOT / file)] == []
