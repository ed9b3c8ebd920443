"""The rules of durable files, judged on a trace: in which order system calls must stand.

A *commit* is everything that happened to one file until it had its final name. A *dependent step*
is the first call that is only allowed once the commit is durable: it names the file, or says to
somebody that it is there. Calls of different processes are compared by time: what ended before
another began happened before it.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from alpha_mpi.store import names
from shim import Call

WRITES = ("write", "pwrite", "writev", "pwritev")
TAKES = ("renameat2", "renameat", "linkat")
NOREPLACE = 1


@dataclasses.dataclass
class Commit:
    """One file's way to its name. `file` is the final name below the store."""

    file: str
    take: Call
    create: Call | None = None
    writes: list[Call] = dataclasses.field(default_factory=list)
    syncs: list[Call] = dataclasses.field(default_factory=list)
    closes: list[Call] = dataclasses.field(default_factory=list)
    unlinks: list[Call] = dataclasses.field(default_factory=list)

    @property
    def directory(self) -> str:
        """Where both names lie."""
        return os.path.dirname(self.take.other)

    @property
    def kind(self) -> str:
        """What file it is."""
        if self.file == names.STORE_FILE:
            return "store"
        folder, name = self.file.split("/")[0], os.path.basename(self.file)
        if folder == names.EPOCHS:
            return "record"
        if folder == names.PUBLISHED:
            return {"entry": "entry", "removed": "mark", "pinned": "mark"}[_published(name)[2]]
        parsed = names.parse_data(name)
        assert folder == names.DATA and parsed is not None, self.file
        return parsed[1]


def commits(calls: Sequence[Call], store: pathlib.Path) -> list[Commit]:
    """Return every file that got a name in the store, the probe's scratch files aside."""
    found: dict[str, Commit] = {}
    for call in calls:
        if call.op in TAKES and call.result == 0 and not _scratch(call.other):
            found[call.path] = Commit(os.path.relpath(call.other, store), call)
    for call in calls:
        commit = found.get(call.path)
        if commit is None:
            continue
        if call.op == "openat" and call.extra & os.O_CREAT:
            commit.create = call
        elif call.op in WRITES:
            commit.writes.append(call)
        elif call.op in ("fdatasync", "fsync"):
            commit.syncs.append(call)
        elif call.op == "close":
            commit.closes.append(call)
        elif call.op == "unlinkat":
            commit.unlinks.append(call)
    return list(found.values())


def violations(
    calls: Sequence[Call], store: pathlib.Path, parents: Mapping[int, int], top: pathlib.Path
) -> list[str]:
    """Return every rule that a trace breaks.

    `parents` are the roles' parents, on a star empty; `top` is the directory above all that was
    made. The trace holds notes "ack N", one per role, after each save N had returned.
    """
    return [
        *_only_names(calls),
        *_only_temporaries(calls),
        *_nothing_unseen(calls, store),
        *_stages(calls, store),
        *_directories(calls, store, parents, top),
        *_dependents(calls, store, parents),
        *_removals(calls, store),
    ]


# ---- who may do what ----


def _only_names(calls: Iterable[Call]) -> Iterator[str]:
    """Names are given by the extension alone, from a temporary name, never replacing."""
    for call in calls:
        if call.op not in TAKES:
            continue
        if call.op == "renameat" or (call.op == "renameat2" and call.extra != NOREPLACE):
            yield f"{call.other}: a rename that may replace"
        if not call.caller.startswith("_durable"):
            yield f"{call.other}: named by {call.caller}"
        if os.path.dirname(call.path) != os.path.dirname(call.other):
            yield f"{call.other}: from another directory, {call.path}"
        if names.parse_temporary(os.path.basename(call.path)) != os.path.basename(call.other):
            yield f"{call.other}: from {call.path}, no temporary name of it"


def _only_temporaries(calls: Iterable[Call]) -> Iterator[str]:
    """No file is opened for writing, or written, but under a temporary name."""
    for call in calls:
        writing = call.op in (*WRITES, "ftruncate", "fallocate")
        if call.op == "openat":
            writing = bool(call.extra & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        if writing and call.result >= 0 and names.parse_temporary(os.path.basename(call.path)) is None:
            yield f"{call.path}: {call.op} under a final name"


def _nothing_unseen(calls: Sequence[Call], store: pathlib.Path) -> Iterator[str]:
    """Every file that is there now got its name in the trace, and its bytes."""
    seen = {commit.file: commit for commit in commits(calls, store)}
    for path in sorted(store.rglob("*")):
        if path.is_dir():
            continue
        commit = seen.get(str(path.relative_to(store)))
        if commit is None:
            yield f"{path}: its name came from nowhere"
        elif sum(call.result for call in commit.writes) != path.stat().st_size:
            yield f"{path}: its bytes came from nowhere"


# ---- the four stages of one file ----


def _stages(calls: Sequence[Call], store: pathlib.Path) -> Iterator[str]:
    for commit in commits(calls, store):
        create, take = commit.create, commit.take
        if create is None or create.result < 0:
            yield f"{commit.file}: never created"
            continue
        wanted = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        if create.extra & wanted != wanted:
            yield f"{commit.file}: created with flags {create.extra:o}"
        everything = [create, *commit.writes, *commit.syncs, *commit.closes, take]
        if len({call.pid for call in everything}) != 1:
            yield f"{commit.file}: more than one process"
        if not commit.writes or any(call.result <= 0 for call in commit.writes):
            yield f"{commit.file}: not written"
        if any(call.begin < create.end for call in commit.writes):
            yield f"{commit.file}: written before it was created"
        synced = [c for c in commit.syncs if c.result == 0 and all(w.end <= c.begin for w in commit.writes)]
        if not synced:
            yield f"{commit.file}: not synced after its last byte"
            continue
        closed = [c for c in commit.closes if c.result == 0 and c.begin >= synced[0].end]
        if len(commit.closes) != 1 or not closed:
            yield f"{commit.file}: not closed after its sync"
            continue
        if take.begin < closed[0].end:
            yield f"{commit.file}: named before it was closed"
        if take.op == "linkat" and not any(c.result == 0 and c.begin >= take.end for c in commit.unlinks):
            yield f"{commit.file}: keeps its temporary name"


# ---- directories ----


def _directories(
    calls: Sequence[Call], store: pathlib.Path, parents: Mapping[int, int], top: pathlib.Path
) -> Iterator[str]:
    """Every directory that was made, or found by a role that writes there, is in a synced one."""
    syncs = _syncs(calls)
    for commit in commits(calls, store):
        limit = _limit(commit, calls, store, parents)
        inside = commit.file.startswith(names.DATA + "/")
        path = pathlib.Path(commit.directory)
        while path != top:
            made = [
                c
                for c in calls
                if c.op == "mkdirat" and c.path == str(path) and (c.result == 0 or c.errno == errno.EEXIST)
            ]
            if inside and path not in (store, store / names.DATA) and path.is_relative_to(store):
                # Whoever finds it may be faster than whoever made it: each syncs for itself.
                made = [c for c in made if c.pid == commit.take.pid and c.begin <= commit.take.begin]
            else:
                made = [c for c in made if c.result == 0][:1]
            if not made:
                yield f"{commit.file}: nobody made {path}"
            for call in made[-1:]:
                if not any(
                    s.pid == call.pid and s.begin >= call.end and s.end <= limit
                    for s in syncs[str(path.parent)]
                ):
                    yield f"{commit.file}: the name of {path} is not synced in time"
            path = path.parent


# ---- what may follow only once a file is durable ----


def _dependents(calls: Sequence[Call], store: pathlib.Path, parents: Mapping[int, int]) -> Iterator[str]:
    syncs = _syncs(calls)
    for commit in commits(calls, store):
        limit = _limit(commit, calls, store, parents)
        if not any(
            s.pid == commit.take.pid and s.begin >= commit.take.end and s.end <= limit
            for s in syncs[commit.directory]
        ):
            yield f"{commit.file}: its directory is not synced in time"


def _limit(commit: Commit, calls: Sequence[Call], store: pathlib.Path, parents: Mapping[int, int]) -> float:
    """Return when the first dependent step began."""
    return min((call.begin for call in _after(commit, calls, store, parents)), default=float("inf"))


def _after(
    commit: Commit, calls: Sequence[Call], store: pathlib.Path, parents: Mapping[int, int]
) -> Iterator[Call]:
    kind, name = commit.kind, os.path.basename(commit.file)
    if kind in ("pack", "manifest"):
        attempt = commit.file.split("/")[1]
        role = _role(name)
        if role in parents and parents[role] != 0:
            folder = os.path.dirname(commit.file)
            yield from _created(calls, store, f"{folder}/{names.manifest(parents[role])}")
        else:
            # The root names it, or names who names it: no byte of it before.
            yield from _created(calls, store, f"{names.PUBLISHED}/{attempt}.json")
        if role not in parents:
            yield from _named(calls, store, f"{names.PUBLISHED}/{attempt}.json")
    elif kind == "store":
        yield from (c for c in calls if c.op == "openat" and c.extra & os.O_CREAT and _is_file_of(c, store))
    elif kind == "record":
        epoch = names.parse_claim(name)
        assert epoch is not None
        prefix = str(store / names.DATA / f"e{epoch:06d}-")
        yield from (c for c in calls if c.op == "mkdirat" and c.path.startswith(prefix))
        older = str(store / names.DATA)
        yield from (
            c
            for c in calls
            if c.op == "unlinkat" and c.path.startswith(older) and c.begin >= commit.take.begin
        )
    elif kind == "entry":
        epoch, _, _ = _published(name)
        record = f"{names.EPOCHS}/{names.claim(epoch + 1)}"
        if _is_seal(commit, calls, store):
            yield from _created(calls, store, record)
        else:
            yield from (c for c in calls if c.op == "note" and c.path == f"ack {name[:-5]}")
    elif kind == "mark":
        epoch, number, _ = _published(name)
        data = str(store / names.DATA / f"e{epoch:06d}-{number:06d}")
        yield from (
            c for c in calls if c.op == "unlinkat" and c.path.startswith(data) and not c.path.endswith(".tmp")
        )


def _removals(calls: Sequence[Call], store: pathlib.Path) -> Iterator[str]:
    """A root goes before its mark, and durably; data go only after a mark."""
    syncs = _syncs(calls)
    taken = {c.other: c for c in calls if c.op in TAKES and c.result == 0}
    for call in calls:
        if call.op != "unlinkat" or call.result < 0:
            continue
        name = os.path.basename(call.path)
        parsed = names.parse_published(name)
        if call.path.startswith(str(store / names.PUBLISHED)) and parsed is not None:
            mark = str(store / names.PUBLISHED / names.removed(parsed[0], parsed[1]))
            entry = str(store / names.PUBLISHED / names.entry(parsed[0], parsed[1]))
            if parsed[2] == "entry" and not (mark in taken and taken[mark].end <= call.begin):
                yield f"{name}: a root went without a mark"
            gone = [c for c in calls if c.op == "unlinkat" and c.path == entry and c.result == 0]
            if parsed[2] == "removed" and not any(
                gone and s.begin >= gone[0].end and s.end <= call.begin for s in syncs[os.path.dirname(mark)]
            ):
                yield f"{name}: a mark went before its root was gone durably"
        elif call.path.startswith(str(store / names.DATA)) and names.parse_data(name) is not None:
            attempt = pathlib.Path(call.path).relative_to(store).parts[1]
            mark = str(store / names.PUBLISHED / f"{attempt}.removed")
            if not (mark in taken and taken[mark].end <= call.begin):
                yield f"{call.path}: data of a generation went without a mark"


# ---- reading a trace ----


def _scratch(path: str) -> bool:
    return re.search(r"/\.probe\.[0-9a-f]+\.tmp(/|$)", path) is not None


def _syncs(calls: Iterable[Call]) -> dict[str, list[Call]]:
    found = collections.defaultdict(list)
    for call in calls:
        if call.op == "fsync" and call.result == 0:
            found[call.path].append(call)
    return found


def _created(calls: Iterable[Call], store: pathlib.Path, file: str) -> Iterator[Call]:
    """Yield the creation of the temporary file of a final name."""
    folder, name = os.path.split(str(store / file))
    for call in calls:
        there, called = os.path.split(call.path)
        if call.op == "openat" and call.extra & os.O_CREAT and there == folder:
            yield from [call] if names.parse_temporary(called) == name else []


def _named(calls: Iterable[Call], store: pathlib.Path, file: str) -> Iterator[Call]:
    return (c for c in calls if c.op in TAKES and c.other == str(store / file))


def _is_file_of(call: Call, store: pathlib.Path) -> bool:
    folder = os.path.dirname(call.path)
    return folder != str(store) and folder.startswith(str(store)) and not _scratch(call.path)


def _is_seal(commit: Commit, calls: Sequence[Call], store: pathlib.Path) -> bool:
    """Whether an entry is a claim: then the same process writes the same bytes as a record."""
    epoch, _, _ = _published(os.path.basename(commit.file))
    record = f"{names.EPOCHS}/{names.claim(epoch + 1)}"
    size = sum(call.result for call in commit.writes)
    return any(
        other.file == record
        and other.take.pid == commit.take.pid
        and sum(call.result for call in other.writes) == size
        for other in commits(calls, store)
    )


def _role(name: str) -> int:
    parsed = names.parse_data(name)
    assert parsed is not None
    return parsed[0]


def _published(name: str) -> tuple[int, int, str]:
    parsed = names.parse_published(name)
    assert parsed is not None, name
    return parsed
