"""Gate: every file becomes visible by the four stages, in order, and in no other way.

Three saves are traced, in two epochs, with retention: so every kind of file appears. The judge
(stages.py) is itself judged: a trace with one call taken away or moved must be found.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator

import pytest
from gates import crash, stages
from gates.crash import step

import shim
from shim import Call

ROOT = pathlib.Path(__file__).parents[2]
#: Who is whose parent in a tree of 4 with fan-out 2: role 1 has one child, role 2.
TREE = {1: 0, 2: 1, 3: 0}


@dataclasses.dataclass
class Traced:
    top: pathlib.Path
    store: pathlib.Path
    calls: list[Call]
    parents: dict[int, int]

    def violations(self, calls: list[Call] | None = None) -> list[str]:
        return stages.violations(calls or self.calls, self.store, self.parents, self.top)


def save(name: str, update: int) -> list[dict]:
    return [step("save", update=update), step("say", text=f"ack {name}")]


def trace(folder: pathlib.Path, fan_out: int, ranks: int, fail: str | None = None) -> Traced:
    top = folder / "top"
    top.mkdir()
    store = top / "new" / "run" / "ckpt"
    environment = shim.env(top, trace=folder / "trace", fail=fail)
    opened = [step("open", store=str(store), keep=1), step("resume")]
    first = [*save("e000001-000001", 1), *save("e000001-000002", 2)]
    second = save("e000002-000001", 3)
    plan = [*opened, *first, step("close"), *opened, *second, step("close")]
    for lines in crash.run(ranks, fan_out, plan, environment=environment).on_all():
        assert not any("error" in line or line["warnings"] for line in lines), lines
    calls = shim.read_trace(folder / "trace")
    return Traced(top, store, calls, TREE if fan_out else {})


@pytest.fixture(scope="module", params=["tree", "star", "tree by link"])
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("trace")
    fail = "renameat2:0:EINVAL" if request.param == "tree by link" else None
    fan_out, ranks = (0, 3) if request.param == "star" else (2, 4)
    yield trace(folder, fan_out, ranks, fail)
    shutil.rmtree(folder)


def test_every_file_goes_through_the_four_stages(traced: Traced) -> None:
    found = stages.commits(traced.calls, traced.store)
    writers = 4 if traced.parents else 1
    expected = {"store": 1, "record": 2, "entry": 4, "mark": 2, "pack": 3 * writers}
    if traced.parents:
        expected["manifest"] = 3 * len(traced.parents)
    assert collections.Counter(commit.kind for commit in found) == expected
    assert traced.violations() == []
    left = {str(p.relative_to(traced.store)) for p in traced.store.rglob("*") if p.is_file()}
    assert left <= {commit.file for commit in found}
    assert crash.judge(traced.store) == crash.Judged("e000002-000001", 3, 2, [])


def test_the_way_of_naming_is_the_expected_one(traced: Traced, request: pytest.FixtureRequest) -> None:
    by_link = "by link" in request.node.callspec.params["traced"]
    found = stages.commits(traced.calls, traced.store)
    assert {commit.take.op for commit in found} == {"linkat" if by_link else "renameat2"}
    assert any(call.note == "injected" for call in traced.calls) == by_link


Change = Callable[[list[Call]], list[Call]]


def without(op: str, path: str, rank: int | None = None, following: str | None = None) -> Change:
    """Take away one call, as if a line of the program were missing: the first, or the first after
    a file got its name."""

    def change(calls: list[Call]) -> list[Call]:
        begin = 0.0
        if following is not None:
            begin = next(c.end for c in calls if c.op in stages.TAKES and c.other.endswith(following))
        hits = [
            c
            for c in calls
            if c.op == op and re.search(path, c.path) and rank in (None, c.rank) and c.begin >= begin
        ]
        assert hits, f"no {op} on {path}"
        return [c for c in calls if c is not hits[0]]

    return change


def after(op: str, path: str, other_op: str, other: str) -> Change:
    """Move the calls of one kind behind the first of another."""

    def change(calls: list[Call]) -> list[Call]:
        hits = [c for c in calls if c.op == op and re.search(path, c.path)]
        mark = next(c for c in calls if c.op == other_op and re.search(other, c.path + " " + c.other))
        assert hits
        moved = [dataclasses.replace(c, begin=mark.end + 1e-9, end=mark.end + 2e-9) for c in hits]
        return [*(c for c in calls if c not in hits), *moved]

    return change


def altered(op: str, where: str, **fields: object) -> Change:
    """Change what one call was."""

    def change(calls: list[Call]) -> list[Call]:
        hit = next(c for c in calls if c.op == op and re.search(where, c.path))
        return [dataclasses.replace(c, **fields) if c is hit else c for c in calls]

    return change


A = "data/e000001-000001"
FAULTS: dict[str, Change] = {
    "no data sync of a pack": without("fdatasync", r"\.000002\.pack"),
    "no data sync of a manifest": without("fdatasync", r"\.000003\.manifest"),
    "no data sync of a root": without("fdatasync", r"\.e000001-000002\.json"),
    "no data sync of a record": without("fdatasync", r"epochs/\.e000001"),
    "no data sync of a seal": without("fdatasync", r"published/\.e000001-000003"),
    "no data sync of a mark": without("fdatasync", r"\.removed\."),
    "no data sync of store.json": without("fdatasync", r"\.store\.json"),
    "data sync after the rename": after("fdatasync", r"\.000001\.pack", "renameat2", r"000001\.pack$"),
    "written after its sync": after("pwritev", r"\.000001\.manifest", "fdatasync", r"\.000001\.manifest"),
    "not closed": without("close", r"\.000001\.pack"),
    "no directory sync of a leaf": without("fsync", f"{A}/000$", rank=3),
    "no directory sync of an inner role": without("fsync", f"{A}/000$", rank=1),
    "no directory sync of the root's pack": without("fsync", f"{A}/000$", rank=0),
    "a leaf's directory sync too late": after(
        "fsync", f"{A}/000$", "openat", r"published/\.e000001-000001\.json"
    ),
    "no sync above a directory that was made": without("fsync", "data$", rank=3),
    "no sync above a directory that was found": without("fsync", f"{A}$", rank=2),
    "no sync above the store": without("fsync", "new/run$"),
    "no sync above what is above the store": without("fsync", "top$"),
    "no sync of published before success": without("fsync", "published$"),
    "no sync of a mark": without("fsync", "published$", following="-000001.removed"),
    "success before the sync of published": altered("note", "ack e000001-000002", begin=0.0, end=0.0),
    "no sync of a seal before its record": without("fsync", "published$", following="/e000001-000003.json"),
    "no sync of a record": without("fsync", "epochs$"),
    "a rename that may replace": altered("renameat2", "published", extra=0),
    "a rename by somebody else": altered("renameat2", "data", caller="python3"),
    "opened for writing under its final name": altered("openat", r"epochs$", path="/x/pack", extra=1),
    "a file nobody named": without("renameat2", r"\.e000002-000001\.json"),
    "a mark that goes before its root": after("unlinkat", r"-000002\.json$", "unlinkat", r"-000002\.removed"),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return trace(tmp_path_factory.mktemp("control"), 2, 4)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_judge_finds_a_missing_step(tree: Traced, fault: str) -> None:
    assert tree.violations() == []
    assert tree.violations(FAULTS[fault](tree.calls)) != []


# ---- nothing else in the sources gives names ----

OF_OS = {"rename", "renames", "replace", "link", "symlink", "truncate", "ftruncate", "write", "pwrite"}


def python_files() -> Iterator[pathlib.Path]:
    # testing starts programs; interop writes files of other formats, where the user asks for them.
    for path in sorted((ROOT / "alpha_mpi").rglob("*.py")):
        if path.relative_to(ROOT / "alpha_mpi").parts[0] not in ("testing", "interop"):
            yield path


#: Plays with a store of its own: commits in steps to be killed between them, damages and writes files.
PLAYGROUND = ROOT / "alpha_mpi" / "qualification"


def test_no_python_code_renames_links_or_writes_files() -> None:
    for path in python_files():
        if PLAYGROUND in path.parents:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("os", name) for name in OF_OS}, where
                assert node.value.id != "shutil", where
                assert node.attr not in ("O_WRONLY", "O_RDWR", "O_CREAT", "write_bytes", "write_text"), where
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                given = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "mode")]
                modes = [a.value if isinstance(a, ast.Constant) else "w" for a in given]
                assert all(mode in ("r", "rb") for mode in modes), where


def test_the_c_code_names_files_in_one_place_each() -> None:
    found = collections.Counter()
    for path in (ROOT / "native").glob("*.[ch]"):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        text = re.sub(r"#ifdef AM_NO_RENAMEAT2.*?#endif", "", text, flags=re.DOTALL)
        found.update(re.findall(r"\b(renameat2|renameat|rename|linkat|link|symlinkat|syscall)\s*\(", text))
    assert found == {"renameat2": 1, "linkat": 1}
