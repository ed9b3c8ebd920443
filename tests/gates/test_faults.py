"""Gate: what a disk may answer, on one role: one error on every rank, and everything goes on.

Each case arms the shim on some roles, saves (or resumes), disarms it, and does the same again, in
the same processes. All cases of one hierarchy run in one launch, on one store.
"""

from __future__ import annotations

import dataclasses
import errno
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from gates import crash
from gates.crash import step

import shim


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is injected on which roles, and what every rank must say of it.

    `code` None: the save succeeds in spite of it. `role`, `stage`, `file`: what the error must
    name; of `roles` any if `role` is None. `during`: the step that the fault hits.
    """

    name: str
    roles: tuple[int, ...]
    inject: dict[str, Any]
    code: str | None = None
    stage: str | None = None
    number: int | None = None
    file: str = ""
    kind: str = "commit-failed"
    during: str = "save"
    warns: bool = False

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def on_file(what: str, role: int, file: str) -> list[Fault]:
    """Return every way in which committing one file may fail on a role."""
    ends = f"/{file}" if file.startswith("e0") else file
    part = f".{file}"

    def fault(name: str, rule: str, code: str, stage: str, number: int) -> Fault:
        inject = {"fail": f"{rule}:{part}"}
        return Fault(f"{name}, {what}", (role,), inject, code, stage, number, ends)

    return [
        fault("no space to write", "pwritev:1:ENOSPC", "no-space", "write", errno.ENOSPC),
        fault("over quota when created", "openat:1:EDQUOT", "no-space", "create", errno.EDQUOT),
        fault("data sync fails", "fdatasync:1:EIO", "io-error", "sync-data", errno.EIO),
        fault("close fails", "close:1:EIO", "io-error", "close", errno.EIO),
        fault("rename fails", "renameat2:1:EIO", "io-error", "rename", errno.EIO),
    ]


def on_directories(what: str, role: int) -> list[Fault]:
    """Return how making the attempt's directories may fail on a role."""

    def fault(name: str, rule: str, code: str, stage: str, number: int, file: str) -> Fault:
        return Fault(f"{name}, {what}", (role,), {"fail": rule}, code, stage, number, file)

    eio, sync = errno.EIO, "sync-directory"
    return [
        fault("read-only", "mkdirat:1:EROFS:/data/", "read-only", "make-directory", errno.EROFS, "/data/e"),
        fault("no space for a directory", "mkdirat:1:ENOSPC:/000", "no-space", "make-directory", 28, "/000"),
        fault(
            "a directory cannot be opened", "openat:1:EMFILE:/000", "io-error", "make-directory", 24, "/000"
        ),
        fault("data/ cannot be synced", "fsync:1:EIO:/data", "io-error", sync, eio, "/data"),
        fault("the attempt cannot be synced", "fsync:2:EIO:/data/e", "io-error", sync, eio, "/000"),
    ]


def harmless(what: str, roles: tuple[int, ...]) -> list[Fault]:
    """Return what a save must get over."""
    interrupted = ("openat", "pwritev", "fdatasync", "fsync", "mkdirat", "renameat2", "close")
    return [
        Fault(
            f"interrupted calls, {what}",
            roles,
            {"fail": ";".join(f"{op}:1:EINTR:/data/" for op in interrupted)},
        ),
        Fault(f"no such flag, {what}", roles, {"fail": "renameat2:0:EINVAL"}),
        Fault(f"no such call, {what}", roles, {"fail": "renameat2:0:ENOSYS"}),
        Fault(f"the answer to a rename lost, {what}", roles, {"fail": "renameat2:0:+EIO"}),
        Fault(f"a rename that arrives twice, {what}", roles, {"fail": "renameat2:0:+EEXIST"}),
        Fault(
            f"a link that arrives twice, {what}",
            roles,
            {"fail": "renameat2:0:EINVAL;linkat:0:+EEXIST"},
        ),
        Fault(f"short writes, {what}", roles, {"short": 300}),
        Fault(f"a directory that exists but cannot be seen yet, {what}", roles, {"mkdir_lies": 0.7}),
    ]


DOUBT = Fault(
    "the root cannot be synced",
    (0,),
    {"fail": "fsync:0:EIO:/published"},
    "in-doubt",
    "sync-directory",
    errno.EIO,
    "published/e",
    kind="in-doubt",
)
AT_ROOT = [
    *on_file("root", 0, "e0"),
    Fault(
        "neither rename nor link, root",
        (0,),
        {"fail": "renameat2:0:EINVAL:/published;linkat:0:EACCES:/published"},
        "no-permission",
        "rename",
        errno.EACCES,
        "/e0",
    ),
    Fault(
        "old files cannot be removed",
        (0,),
        {"fail": "unlinkat:0:EIO:/data/"},
        warns=True,
    ),
    Fault("a mark cannot be written", (0,), {"fail": "fdatasync:1:EIO:.removed"}, warns=True),
    Fault("marks cannot be synced", (0,), {"fail": "fsync:2:EIO:/published"}, warns=True),
    DOUBT,
]
CLAIMS = [
    Fault(f"{name}, {where}", (0,), {"fail": f"{rule}:/{where}"}, code, stage, number, where, during="resume")
    for where in ("published", "epochs")
    for name, rule, code, stage, number in [
        ("no space for a claim", "pwritev:1:ENOSPC", "no-space", "write", errno.ENOSPC),
        ("a claim cannot be synced", "fdatasync:1:EIO", "io-error", "sync-data", errno.EIO),
        ("a claim cannot be named", "renameat2:1:EIO", "io-error", "rename", errno.EIO),
        ("the name of a claim cannot be synced", "fsync:0:EIO", "io-error", "sync-directory", errno.EIO),
    ]
]
TREE = [
    *on_file("pack of the root", 0, "000000.pack"),
    *on_file("pack of an inner role", 1, "000001.pack"),
    *on_file("pack of a leaf", 4, "000004.pack"),
    *on_file("manifest of an inner role", 3, "000003.manifest.json"),
    *on_directories("leaf", 2),
    Fault(
        "a directory that never appears",
        (3,),
        {"mkdir_lies": 60},
        "io-error",
        "make-directory",
        errno.ENOENT,
        "/data/e",
    ),
    # What goes wrong while a failed attempt is cleared away must not keep it from ending.
    Fault(
        "no space, and nothing can be closed or removed properly",
        (1,),
        {"fail": "pwritev:2:ENOSPC:000001.pack;close:0:EIO:/data/;unlinkat:0:EIO:/data/"},
        "no-space",
        "write",
        errno.ENOSPC,
        "000001.pack",
    ),
    Fault("writes that move nothing", (2,), {"short": 0}, "io-error", "write", errno.EIO, "000002.pack"),
    *harmless("everywhere", (0, 1, 2, 3, 4)),
    *harmless("inner role", (1,)),
    *AT_ROOT,
    *CLAIMS,
]
STAR = [
    *on_file("pack of a star", 0, "000000.pack"),
    *on_directories("star", 0),
    Fault(
        "writes that move nothing, star", (0,), {"short": 0}, "io-error", "write", errno.EIO, "000000.pack"
    ),
    *harmless("star", (0,)),
    *AT_ROOT,
    *CLAIMS,
]
#: R12, and R13 with its 3 MB: more words than in the others.
LARGE = [
    Fault("no space after 700 KB", (1,), {"room": 700_000}, "no-space", "write", errno.ENOSPC, "000001.pack"),
    Fault(
        "no space at the data sync",
        (3,),
        {"fail": "fdatasync:1:ENOSPC"},
        "no-space",
        "sync-data",
        28,
        "000003",
    ),
    Fault("short writes of a large region", (0, 1, 2, 3, 4), {"short": 4095}),
]
#: A store that is made: each of its files and directories.
OPENING = [
    Fault(name, (0,), {"fail": rule}, code, stage, number, file, kind, during="open")
    for name, rule, code, stage, number, file, kind in [
        ("read-only", "mkdirat:1:EROFS:.probe", "read-only", None, None, "", "refused"),
        ("no permission", "openat:1:EACCES:.probe", "no-permission", None, None, "", "refused"),
        (
            "no space for the directory",
            "mkdirat:1:ENOSPC",
            "no-space",
            "make-directory",
            28,
            "",
            "commit-failed",
        ),
        ("above it no sync", "fsync:1:EIO", "io-error", "sync-directory", errno.EIO, "", "commit-failed"),
        (
            *("neither rename nor link", "renameat2:0:EINVAL;linkat:0:EPERM", "unsupported-file-system"),
            *(None, None, "", "refused"),
        ),
        (
            "store.json not synced",
            "fdatasync:1:EIO:.store",
            "io-error",
            "sync-data",
            5,
            "store.json",
            "commit-failed",
        ),
        (
            "no space for a part",
            "mkdirat:1:ENOSPC:/data",
            "no-space",
            "make-directory",
            28,
            "/data",
            "commit-failed",
        ),
        (
            "a part not synced",
            "fsync:5:EIO:/ckpt",
            "io-error",
            "sync-directory",
            errno.EIO,
            "",
            "commit-failed",
        ),
    ]
]


def plan_of(faults: list[Fault], store: str) -> list[dict[str, Any]]:
    """Return the steps of one launch: each fault, what stands there then, and the same without it."""
    plan, update = [step("open", store=store, keep=2), step("resume"), step("save", update=1)], 2
    for fault in faults:
        note = fault.name
        look = step("look", note, store=store)
        plan += [look, step("arm", roles=list(fault.roles), **fault.inject)]
        plan += [step(fault.during, note, **({"update": update} if fault.during == "save" else {}))]
        plan += [step("disarm"), look]
        if fault.code is not None:
            plan.append(step("save", note, update=update))
        if fault.during == "resume" or fault.kind == "in-doubt":
            # Without an epoch nothing can be saved; a new look at the store takes the next one.
            plan += [step("resume", note), step("save", update=update + 1), look]
        update += 2
    return [*plan, step("close"), step("open", store=store), step("resume", "end"), step("close")]


def opening_plan(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the steps of one launch: each fault hits a store of its own."""
    plan = []
    for i, fault in enumerate(OPENING):
        note, store = fault.name, str(folder / f"store{i}" / "ckpt")
        plan += [step("arm", roles=list(fault.roles), **fault.inject), step("open", note, store=store)]
        plan += [step("disarm"), step("open", note, store=store), step("resume", note)]
        plan += [step("save", note, update=1), step("close")]
    return plan


class Run:
    """One launch: what every rank said, by the note of its steps."""

    def __init__(
        self, folder: pathlib.Path, plan: list[dict[str, Any]], fan_out: int, ranks: int, rows: int
    ) -> None:
        self.folder = folder
        launched = crash.run(ranks, fan_out, plan, environment=shim.env(folder), rows=rows)
        self.steps = launched.on_all()

    def of(self, fault: Fault, do: str) -> list[list[dict[str, Any]]]:
        return [one for one in self.steps if one[0]["note"] == fault.name and one[0]["step"] == do]


def same(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the one error that every rank raised."""
    assert all("error" in rank for rank in ranks), ranks
    assert all(rank["error"] == ranks[0]["error"] and rank["text"] == ranks[0]["text"] for rank in ranks), (
        ranks
    )
    return ranks[0]["error"]


def well(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what every rank said alike of a step that succeeded."""
    assert not any("error" in rank for rank in ranks), ranks
    assert not any(rank.get("different") for rank in ranks), ranks
    return ranks[0]


def check(run: Run, fault: Fault) -> None:
    tried = run.of(fault, fault.during)[0]
    before, after, *later = (one[0] for one in run.of(fault, "look"))
    if fault.code is None:
        saved = well(tried)
        assert after["newest"] == saved["name"] != before["newest"]
        assert bool(tried[0]["warnings"]) == fault.warns and not any(r["warnings"] for r in tried[1:])
        return
    error = same(tried)
    assert (error["kind"], error["code"], error["errno"]) == (fault.kind, fault.code, fault.number)
    assert error["role"] in fault.roles and error["stage"] == fault.stage and fault.file in error["file"]
    if fault.kind == "commit-failed" and fault.during == "save":
        # The previous generation stays, and the partial files are gone without anybody's help.
        assert after == before
        assert error["retryable"] is True
        assert well(run.of(fault, "save")[1])["name"] != before["newest"]
        return
    assert same(run.of(fault, "save")[-1])["code"] == "not-resumed"
    resumed = well(run.of(fault, "resume")[-1])
    assert later[0]["newest"] != after["newest"]
    if fault.kind == "in-doubt":
        # The root is there for everybody to see: the next look takes it.
        assert error["visible"] is True and error["retryable"] is False
        assert after["newest"] != before["newest"]
        assert resumed["update"] == run.of(fault, "save")[0][0].get("update", resumed["update"])
    else:
        assert after["newest"] == before["newest"]


def fixture(faults: list[Fault], fan_out: int, ranks: int, rows: int = 33) -> Any:
    @pytest.fixture(scope="module")
    def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
        folder = tmp_path_factory.mktemp("faults")
        yield Run(folder, plan_of(faults, str(folder / "ckpt")), fan_out, ranks, rows)

    return run


tree = fixture(TREE, 2, 5)
star = fixture(STAR, 0, 3)
large = fixture(LARGE, 2, 5, rows=60_000)


@pytest.fixture(scope="module")
def opening(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("opening")
    return Run(folder, opening_plan(folder), 0, 3, 33)


@pytest.mark.parametrize("fault", OPENING, ids=str)
def test_while_a_store_is_made(opening: Run, fault: Fault) -> None:
    failed, opened = opening.of(fault, "open")
    error = same(failed)
    assert (error["kind"], error["code"], error["errno"]) == (fault.kind, fault.code, fault.number)
    assert (error["role"], error["stage"]) == (0, fault.stage) and fault.file in error["file"]
    # What it left is no obstacle.
    well(opened)
    assert well(opening.of(fault, "resume")[0])["update"] == 0
    well(opening.of(fault, "save")[0])
    store = opening.folder / f"store{OPENING.index(fault)}" / "ckpt"
    assert crash.judge(store) == crash.Judged("e000001-000001", 1, 1, [])


@pytest.mark.parametrize("fault", TREE, ids=str)
def test_on_a_tree(tree: Run, fault: Fault) -> None:
    check(tree, fault)


@pytest.mark.parametrize("fault", STAR, ids=str)
def test_on_a_star(star: Run, fault: Fault) -> None:
    check(star, fault)


@pytest.mark.parametrize("fault", LARGE, ids=str)
def test_with_many_words(large: Run, fault: Fault) -> None:
    check(large, fault)


@pytest.mark.parametrize("name", ["tree", "star", "large"])
def test_the_store_is_whole_in_the_end(name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    store = run.folder / "ckpt"
    found = crash.judge(store)
    assert found.problems == []
    ended = next(one for one in run.steps if one[0]["note"] == "end")
    assert well(ended)["update"] == found.update
    assert crash.leftovers(store, found.epoch) == []
