"""A small store with a file of every kind, and ways to look at all of it at once."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import stat
from typing import Any

import numpy as np
from restore.build_store import Built, build, values_of

import alpha_mpi as am
from alpha_mpi.model.layout import replicated, rows
from alpha_mpi.protocol.hierarchy import Tree

REGIONS = [
    ("w", "array", "float32", (20, 3)),
    ("scale", "array", "float64", (3,)),
    ("schedule", "document", "json", ()),
]
RULES = [rows(), replicated(), replicated()]
LEARNER = am.Learner("test")

#: The generation of three roles, pinned; one before the newest; the newest.
TREE, BEFORE, NEWEST = "e000001-000001", "e000002-000002", "e000002-000003"
#: One file of each kind, and the generation that cannot be restored without it (None: no epoch can
#: be taken at all; "": nothing is restored from it).
FILES: dict[str, str | None] = {
    "store.json": None,
    "epochs/e000001.json": None,
    "epochs/e000002.json": None,
    "published/e000001-000001.json": TREE,
    "published/e000001-000001.pinned": "",
    "published/e000001-000002.json": "",  # the seal of epoch 1
    "published/e000002-000001.json": "",  # removed, its name stays taken
    "published/e000002-000001.removed": "",
    "published/e000002-000002.json": BEFORE,
    "published/e000002-000003.json": NEWEST,
    "data/e000001-000001/000/000000.pack": TREE,
    "data/e000001-000001/000/000001.manifest.json": TREE,
    "data/e000001-000001/000/000001.pack": TREE,
    "data/e000001-000001/000/000002.manifest.json": TREE,
    "data/e000001-000001/000/000002.pack": TREE,
    "data/e000002-000002/000/000000.pack": BEFORE,
    "data/e000002-000003/000/000000.pack": NEWEST,
}
#: What of it no claim, root or mark names.
DATA = [name for name in FILES if name.startswith("data/")]


class Job:
    """One owner's program on a store: arrays of sevens that a resume fills."""

    def __init__(self, path: pathlib.Path, learner: am.Learner = LEARNER, **options: Any) -> None:
        self.w = np.full((20, 3), 7, np.float32)
        self.scale = np.full(3, 7, np.float64)
        self.schedule: dict[str, Any] = {"at": "start"}
        state = am.State()
        state.partition("w", self.w, shape=self.w.shape, layout=am.rows())
        state.replicate("scale", self.scale)
        state.document("schedule", lambda: self.schedule, self._set)
        more = {"visibility": 0.0, "learner": learner, **options}
        self.checkpointer = am.Checkpointer(path, state, **more)

    def _set(self, value: Any) -> None:
        self.schedule = value

    @property
    def words(self) -> bytes:
        """Everything the job holds, as bytes."""
        return self.w.tobytes() + self.scale.tobytes() + repr(self.schedule).encode()


def make(path: pathlib.Path) -> Built:
    """Write the store: a generation of three roles file by file, three more by the library."""
    values = values_of(REGIONS, 3)
    built = build(path, REGIONS, RULES, values, owners=3, hierarchy=Tree(1), update=10)
    job = Job(path, keep=2)
    with job.checkpointer as ckpt:
        ckpt.resume()
        pin(path, TREE)
        for update in (20, 30, 40):
            job.w += update
            ckpt.save(update)
    found = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert found == set(FILES), found ^ set(FILES)
    return built


def pin(path: pathlib.Path, name: str) -> None:
    """Pin a generation."""
    assert run("pin", path, name)[0] == 0


def copy(made: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """Return a fresh copy of a store."""
    return pathlib.Path(shutil.copytree(made, to))


def digests(path: pathlib.Path) -> dict[str, str]:
    """Return what every name below a store is, with the digest of each regular file."""
    found = {}
    for name in sorted(path.rglob("*")):
        mode = name.lstat().st_mode
        what = stat.filemode(mode)
        if stat.S_ISREG(mode):
            what += hashlib.sha256(name.read_bytes()).hexdigest()
        elif stat.S_ISLNK(mode):
            what += os.readlink(name)
        found[str(name.relative_to(path))] = what
    return found


def run(*words: object) -> tuple[int, str]:
    """Run a command; return (exit code, all it said). A crash fails the test."""
    from click.testing import CliRunner

    from alpha_mpi.cli import alpha_mpi

    result = CliRunner().invoke(alpha_mpi(), [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    said = result.output + result.stderr
    assert "internal error" not in said, said
    assert result.exit_code in (0, 1), said
    return result.exit_code, said


def refused(path: pathlib.Path, generation: str | None = None, **options: Any) -> am.CheckpointError:
    """Resume what must be refused: no file of the store and no word of the job changes for it."""
    before = digests(path)
    try:
        job = Job(path, **options)
    except am.CheckpointError as error:
        assert digests(path) == before
        return error
    words = job.words
    with job.checkpointer as ckpt:
        try:
            ckpt.resume(generation=generation)
        except am.CheckpointError as error:
            told = error
        else:
            raise AssertionError("it was restored")
    assert job.words == words, "a word of the destination changed"
    assert digests(path) == before
    return told


def names_file(error: am.CheckpointError, file: str) -> bool:
    """Whether an error says which file below the store it is about."""
    return error.file is not None and error.file.endswith(file) and file in str(error)
