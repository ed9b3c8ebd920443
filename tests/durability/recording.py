"""Recording: what real ranks asked of the file system, in one order.

An *operation* is a system call that succeeded, with the bytes that it wrote; a *note* is what the
program said in between (``ack NAME``, ``epoch N``). Calls of different processes have stamps of one
clock: a sync covers what had ended before it began, and nothing is on a disk before it began.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from durability.scenarios import ROWS, Scenario
from gates import crash

import shim
from shim import Call

_O_CREAT, _O_TRUNC, _AT_REMOVEDIR = 0o100, 0o1000, 0x200
_PLAIN = {
    "mkdirat": "mkdir",
    "renameat2": "rename",
    "renameat": "rename",
    "linkat": "link",
    "fdatasync": "sync",
    "fsync": "sync",
}


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation. `what`: create, write, sync, mkdir, link, rename, unlink, rmdir, or note.

    Paths are relative to the directory that all was recorded in; of a note, `path` is its text.
    """

    begin: float
    end: float
    what: str
    path: str
    other: str = ""
    offset: int = 0
    data: bytes = b""


@dataclasses.dataclass(frozen=True)
class Recording:
    """Operations in the order in which they began, and the files that there were in the end."""

    ops: tuple[Op, ...]
    final: Mapping[str, bytes]
    store: str
    ranks: int


def record(scenario: Scenario, folder: pathlib.Path) -> Recording:
    """Run the jobs of a scenario, on a store that is new, under the recording shim.

    Fails where a step fails, or does not although its note is ``fails``.
    """
    top, store, ranks = folder / "top", "new/run/ckpt", scenario.ranks
    top.mkdir()
    at = {"store": str(top / store)}
    plan = [{**s, "with": {**s["with"], **at}} if s["do"] == "open" else s for s in scenario.steps]
    trace, kept = folder / "trace", folder / "bytes"
    fail = "renameat2:0:EINVAL" if scenario.by_link else None
    environment = shim.env(top, trace=trace, bytes=kept, fail=fail)
    launched = crash.run(ranks, scenario.fan_out, plan, environment=environment, rows=ROWS)
    for lines in launched.on_all():
        assert all(("error" in line) == (line["note"] == "fails") for line in lines), lines
    calls = [operation(call, top, kept) for call in shim.read_trace(trace)]
    ops = tuple(sorted((op for op in calls if op is not None), key=lambda op: op.begin))
    final = {str(p.relative_to(top)): p.read_bytes() for p in sorted(top.rglob("*")) if p.is_file()}
    return Recording(ops, final, store, ranks)


def operation(call: Call, top: pathlib.Path, kept: pathlib.Path) -> Op | None:
    """Return the operation that a call was; None for one that changed nothing and made nothing durable."""
    if call.op == "note":
        return Op(call.begin, call.begin, "note", call.path)
    if call.result < 0 or call.op == "close":
        return None
    assert call.note in ("-", "delayed"), f"a call that was not what it seems: {call}"
    path, other = _below(call.path, top), ""
    offset, data = 0, b""
    if call.op == "openat":
        assert not call.extra & _O_TRUNC, f"{call.path}: not in the model"
        what = "create" if call.extra & _O_CREAT else ""
    elif call.op == "unlinkat":
        what = "rmdir" if call.extra & _AT_REMOVEDIR else "unlink"
    elif call.op in ("write", "pwrite", "writev", "pwritev"):
        what = "write" if call.result else ""
        offset, data = shim.written(call, kept) if what else (0, b"")
        assert len(data) == call.result
    else:
        assert call.op in _PLAIN, f"{call.op} {call.path}: not in the model"
        what = _PLAIN[call.op]
        other = _below(call.other, top) if what in ("rename", "link") else ""
    return Op(call.begin, call.end, what, path, other, offset, data) if what else None


def _below(path: str, top: pathlib.Path) -> str:
    return str(pathlib.PurePath(path).relative_to(top)) if path != str(top) else ""
