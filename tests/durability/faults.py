"""Faults that the sweep must find: recordings in which one operation is missing, or too early.

Each is what the same run would have asked of the file system if one line of the library were missing
or stood elsewhere. The library has no switches for them. `HARMLESS` are changes that lose nothing:
who finds a fault there finds one everywhere.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from durability.recording import Op

Ops = Sequence[Op]
Change = Callable[[Ops], list[Op]]

ROOT = "e000001-000002"
ATTEMPT = f"data/{ROOT}"
_TAKES = ("rename", "link")


def without(what: str, path: str) -> Change:
    """Take every such operation away."""

    def change(ops: Ops) -> list[Op]:
        left = [op for op in ops if not (op.what == what and re.search(path, op.path))]
        assert len(left) < len(ops), f"no {what} of {path}"
        return left

    return change


def without_between(path: str, begin: Callable[[Op], bool], end: Callable[[Op], bool]) -> Change:
    """Take the syncs of `path` away that lie between two operations."""

    def change(ops: Ops) -> list[Op]:
        first = next(op for op in ops if begin(op))
        last = next(op for op in ops if op.begin > first.begin and end(op))
        left = [
            op
            for op in ops
            if not (
                op.what == "sync"
                and re.search(path, op.path)
                and first.begin < op.begin
                and op.end <= last.begin
            )
        ]
        assert len(left) < len(ops), f"no sync of {path} there"
        return left

    return change


def named(file: str) -> Callable[[Op], bool]:
    """Tell the operation that gives a file its final name."""
    return lambda op: op.what in _TAKES and op.other.endswith(file)


def noted(text: str) -> Callable[[Op], bool]:
    """Tell when something was reported."""
    return lambda op: op.what == "note" and op.path == text


def did(what: str, path: str) -> Callable[[Op], bool]:
    """Tell an operation by its kind and path."""
    return lambda op: op.what == what and re.search(path, op.path) is not None


def sync_after_name(file: str) -> Change:
    """The file has its final name a moment before its data are synced."""

    def change(ops: Ops) -> list[Op]:
        take = next(op for op in ops if named(file)(op))
        sync = next(op for op in ops if op.what == "sync" and op.path == take.path)
        late = dataclasses.replace(sync, path=take.other, begin=take.end + 1e-7, end=take.end + 2e-7)
        return sorted((late if op is sync else op for op in ops), key=lambda op: op.begin)

    return change


def _of_root(ops: Ops) -> list[Op]:
    """Return all operations that publish the root, and the sync of its directory."""
    take = next(op for op in ops if named(f"published/{ROOT}.json")(op))
    own = [op for op in ops if op.path == take.path]
    sync = next(
        op for op in ops if op.what == "sync" and op.path.endswith("/published") and op.begin > take.end
    )
    return sorted({*own, sync}, key=lambda op: op.begin)


def root_first(ops: Ops) -> list[Op]:
    """Publish the root before anything that it names is written."""
    own = _of_root(ops)
    before = next(op for op in ops if did("mkdir", f"{ATTEMPT}$")(op)).begin
    moved = [
        dataclasses.replace(op, begin=before - 1e-6 + 1e-7 * i, end=before - 1e-6 + 1e-7 * i + 5e-8)
        for i, op in enumerate(own)
    ]
    return sorted([*(op for op in ops if op not in own), *moved], key=lambda op: op.begin)


def root_in_place(ops: Ops) -> list[Op]:
    """Write the root under its final name."""
    take = next(op for op in ops if named(f"published/{ROOT}.json")(op))
    return [
        dataclasses.replace(op, path=take.other) if op.path == take.path else op
        for op in ops
        if not (op.path == take.path and op.what in (*_TAKES, "unlink"))
    ]


def _published(begin: Callable[[Op], bool], end: Callable[[Op], bool]) -> Change:
    return without_between("published$", begin, end)


FAULTS: dict[str, Change] = {
    "no sync at all": without("sync", ""),
    "no data sync of packs": without("sync", r"\.pack\."),
    "no data sync of manifests": without("sync", r"\.manifest\.json\."),
    "no data sync of roots": without("sync", r"published/\.e\d+-\d+\.json\."),
    "no data sync of a mark": without("sync", r"\.removed\."),
    "no data sync of a record": without("sync", r"epochs/\.e000001"),
    "no data sync of a seal": without("sync", r"published/\.e000001-000003"),
    "no data sync of store.json": without("sync", r"\.store\.json"),
    "root named before its data sync": sync_after_name(f"published/{ROOT}.json"),
    "root written in place": root_in_place,
    "root published first": root_first,
    "success before the root's name is synced": _published(
        named("published/e000001-000001.json"), noted("ack e000001-000001")
    ),
    "no sync of the directory of packs": without("sync", r"data/e\d+-\d+/000$"),
    "no sync above the directory of packs": without("sync", r"data/e\d+-\d+$"),
    "no sync above a generation's directory": without("sync", "ckpt/data$"),
    "no sync above published": without("sync", "ckpt$"),
    "no sync above the store": without("sync", "^new/run$"),
    "no sync above what is above the store": without("sync", "^$"),
    "data go before their mark is synced": _published(
        named("e000001-000001.removed"), did("unlink", r"data/e000001-000001/.*pack$")
    ),
    "a mark goes before its root is gone": _published(
        did("unlink", r"published/e000001-\d+\.json$"), did("unlink", r"published/e000001-\d+\.removed$")
    ),
    "a record before its seal is synced": _published(
        named("published/e000001-000003.json"), did("create", r"epochs/\.e000002")
    ),
    "an epoch before its record is synced": without_between(
        "epochs$", named("epochs/e000001.json"), noted("epoch 1")
    ),
}

#: On a star packs are named by the root alone.
ON_A_TREE = {"no data sync of manifests"}

#: A directory sync is missing: no fault where the file system makes names durable by itself.
NAMES_ALONE = [
    "success before the root's name is synced",
    "no sync of the directory of packs",
    "no sync above the directory of packs",
    "no sync above a generation's directory",
    "no sync above published",
    "no sync above the store",
    "no sync above what is above the store",
    "data go before their mark is synced",
    "a mark goes before its root is gone",
    "a record before its seal is synced",
    "an epoch before its record is synced",
]

HARMLESS: dict[str, Change] = {
    "a pack named before its data sync, both before its directory's": sync_after_name(
        f"{ATTEMPT}/000/000000.pack"
    ),
}
