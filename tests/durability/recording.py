"""Recording: what real ranks asked of the file system, in one order.

An *operation* is a system call that succeeded, with the bytes that it wrote; a *note* is what the
program said in between (``ack NAME``, ``epoch N``). Calls of different processes have stamps of one
clock: a sync covers what had ended before it began, and nothing is on a disk before it began.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from durability.scenarios import LATER, LATER_ACK, LATER_EPOCH, ROWS, Scenario
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
    """Operations in the order in which they began, and the files that there were in the end.

    `updates` is the update of each generation, by its name.
    """

    ops: tuple[Op, ...]
    final: Mapping[str, bytes]
    store: str
    updates: Mapping[str, int]


class _Recorder:
    """Launches jobs, one after the other, on one new store, and puts their calls into one order."""

    def __init__(self, scenario: Scenario, folder: pathlib.Path) -> None:
        self.scenario, self.top, self.store = scenario, folder / "top", "new/run/ckpt"
        self.trace, self.kept = folder / "trace", folder / "bytes"
        self.top.mkdir()

    def run(self, steps: Sequence[Mapping[str, Any]], **inject: Any) -> crash.Launched:
        at = {"store": str(self.top / self.store)}
        plan = [{**s, "with": {**s["with"], **at}} if s["do"] == "open" else s for s in steps]
        fail = "renameat2:0:EINVAL" if self.scenario.by_link else None
        environment = shim.env(self.top, trace=self.trace, bytes=self.kept, fail=fail, **inject)
        return crash.run(self.scenario.ranks, self.scenario.fan_out, plan, environment=environment, rows=ROWS)

    def recording(self, updates: Mapping[str, int], notes: Mapping[str, str]) -> Recording:
        calls = [operation(call, self.top, self.kept) for call in shim.read_trace(self.trace)]
        ops = sorted((op for op in calls if op is not None), key=lambda op: op.begin)
        told = [
            dataclasses.replace(op, path=notes.get(op.path, op.path)) if op.what == "note" else op
            for op in ops
        ]
        files = [path for path in sorted(self.top.rglob("*")) if path.is_file()]
        final = {str(path.relative_to(self.top)): path.read_bytes() for path in files}
        return Recording(tuple(told), final, self.store, updates)


def record(scenario: Scenario, folder: pathlib.Path) -> Recording:
    """Run the jobs of a scenario, on a store that is new, under the recording shim.

    Fails where a step fails, or does not although its note is ``fails``.
    """
    recorder = _Recorder(scenario, folder)
    for lines in recorder.run(scenario.steps).on_all():
        assert all(("error" in line) == (line["note"] == "fails") for line in lines), lines
    return recorder.recording(scenario.updates, {})


def record_killed(scenario: Scenario, folder: pathlib.Path, number: int) -> Recording:
    """Kill the jobs before the `number`-th sync of a directory; then another job resumes and saves.

    It finds names that the first has made and not synced. For one owner: where the launcher ends others,
    nobody knows what they were just doing.
    """
    assert scenario.ranks == 1
    recorder = _Recorder(scenario, folder)
    assert recorder.run(scenario.steps, kill=number, kill_ops="fsync").status != 0
    assert [call.op for call in shim.read_trace(recorder.trace) if call.note == "killed"] == ["fsync"]
    lines = [line for (line,) in recorder.run(LATER).on_all()]
    assert not any("error" in line for line in lines), lines
    (epoch,) = (line["epoch"] for line in lines if line["step"] == "resume")
    (saved,) = (line for line in lines if line["step"] == "save")
    notes = {LATER_EPOCH: f"epoch {epoch}", LATER_ACK: f"ack {saved['name']}"}
    return recorder.recording({**scenario.updates, saved["name"]: saved["update"]}, notes)


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
