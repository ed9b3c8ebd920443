"""docs/refusals.md lists every error code of the package, and no other."""

from __future__ import annotations

import ast
import pathlib
import re

from alpha_mpi import errors

ROOT = pathlib.Path(__file__).parent.parent
#: Codes that never reach a user, or are made from parts.
INTERNAL = {
    "asks",
    "borrows",
    "busy",
    "changed",
    "elsewhere",
    "error",
    "one-sided",
    "refused",
    "commit-failed",
    "peer-failed",
}
CODE = re.compile(r"[a-z]+(-[a-z]+)*\Z")


def codes() -> set[str]:
    found = {cls.default_code for cls in errors.KINDS.values()}
    for file in (ROOT / "alpha_mpi").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            for keyword in node.keywords:
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                    found.add(str(keyword.value.value))
    return {code for code in found if CODE.match(code)}


def listed() -> set[str]:
    page = (ROOT / "docs" / "refusals.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    return {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}


def proofs() -> dict[str, list[str]]:
    """The page's last table: the test that provokes each code."""
    page = (ROOT / "docs" / "refusals.md").read_text().partition("\n## Proved by\n")[2]
    found: dict[str, list[str]] = {}
    for codes_, test in re.findall(r"^\| (`.*`) \| `([^`]+)` \|$", page, re.MULTILINE):
        for code in re.findall(r"`([a-z-]+)`", codes_):
            found.setdefault(code, []).append(test)
    return found


def test_every_code_has_a_test_that_exists() -> None:
    found = proofs()
    assert set(found) == listed()
    for code, tests in found.items():
        assert len(tests) == 1, code
        file, _, name = tests[0].partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions and name.startswith("test_"), tests[0]


def test_every_code_is_on_the_page() -> None:
    assert codes() - listed() - INTERNAL == set()


def test_every_code_on_the_page_stands_in_the_package() -> None:
    text = "\n".join(p.read_text() for p in (ROOT / "alpha_mpi").rglob("*.py"))
    assert {code for code in listed() if f'"{code}"' not in text} == set()
