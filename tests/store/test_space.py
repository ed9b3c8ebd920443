"""Space: what is left is asked before a save, and a save that does not fit is refused early."""

import os

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.errors import CommitFailed
from alpha_mpi.store import space
from alpha_mpi.store.durable import Directory


def test_free_space_without_a_quota(tmp_path):
    room = os.statvfs(tmp_path)
    with Directory.open(tmp_path) as directory:
        assert 0 < space.available(directory) <= room.f_blocks * room.f_frsize


def test_a_quota_counts_where_it_leaves_less(tmp_path, monkeypatch):
    asked = []

    def quota(fd, kind, who):
        asked.append((kind, who))
        return None if kind == 0 else 1234

    monkeypatch.setattr(space, "quota", quota)
    with Directory.open(tmp_path) as directory:
        assert space.available(directory) == 1234
        with pytest.raises(CommitFailed) as caught:
            space.demand(directory, 1235)
        space.demand(directory, 1234)
    assert asked[:2] == [(0, os.geteuid()), (1, os.getegid())]
    error = caught.value
    assert error.code == "no-space" and error.retryable
    assert "1235 bytes" in str(error) and "1234 bytes left" in str(error)


def test_every_file_system_of_a_store_is_asked(tmp_path, monkeypatch):
    state, w = am.State(), np.zeros(1000)
    state.replicate("w", w)
    full = {"data"}
    monkeypatch.setattr(
        space, "available", lambda directory: 999 if os.path.basename(directory.path) in full else 1 << 40
    )
    with am.Checkpointer(tmp_path / "ckpt", state) as ckpt:
        ckpt.resume()
        with pytest.raises(CommitFailed) as caught:
            ckpt.save(1)
        assert (caught.value.code, caught.value.file) == ("no-space", str(tmp_path / "ckpt" / "data"))
        full = {"published"}
        ckpt.save(1)  # on the same disk: asked once
        real, roots = os.fstat, os.stat(tmp_path / "ckpt" / "published").st_ino

        def fstat(fd):
            found = real(fd)
            return os.stat_result((*found[:2], -1, *found[3:])) if found.st_ino == roots else found

        monkeypatch.setattr(os, "fstat", fstat)  # a disk of their own for the roots
        w += 1
        with pytest.raises(CommitFailed) as caught:
            ckpt.save(2)
        assert caught.value.file == str(tmp_path / "ckpt" / "published")
        full = set()
        ckpt.save(2)


def test_no_quota_is_no_answer(tmp_path):
    with Directory.open(tmp_path) as directory:
        found = space.quota(directory.fd, 0, os.geteuid())
        assert found is None or found >= 0
        assert space.quota(-1, 0, 0) is None


def _files(path):
    return sorted(str(p) for p in path.rglob("*"))


def test_a_save_that_does_not_fit_writes_nothing_and_the_next_one_may(tmp_path, monkeypatch):
    w = np.arange(1000, dtype=np.float64)
    state = am.State()
    state.replicate("w", w)
    state.document("notes", lambda: "x" * 5000, lambda value: None)
    with am.Checkpointer(tmp_path / "s", state, visibility=0.0) as ckpt:
        ckpt.resume()
        before = _files(tmp_path)
        monkeypatch.setattr(space, "available", lambda directory: 12_999)
        with pytest.raises(CommitFailed) as caught:
            ckpt.save(1)
        assert caught.value.code == "no-space" and _files(tmp_path) == before
        assert int(caught.value.expected.split()[0]) >= 13_000
        monkeypatch.undo()
        assert ckpt.save(1).moment.update == 1
        used = sum(os.path.getsize(f) for f in set(_files(tmp_path)) - set(before) if os.path.isfile(f))
        assert int(caught.value.expected.split()[0]) >= used


def test_the_question_can_be_turned_off(tmp_path, monkeypatch):
    state = am.State()
    state.replicate("w", np.ones(10))
    monkeypatch.setattr(space, "available", lambda directory: 0)
    with am.Checkpointer(tmp_path / "s", state, visibility=0.0, check_space=False) as ckpt:
        ckpt.resume()
        ckpt.save(1)


def test_a_score_that_is_no_number_is_refused(tmp_path):
    state = am.State()
    state.replicate("w", np.ones(10))
    with am.Checkpointer(tmp_path / "s", state, visibility=0.0, keep=am.Keep(best=1)) as ckpt:
        ckpt.resume()
        for wrong in ("low", float("nan"), float("inf"), [1, 2]):
            with pytest.raises(am.Refused) as caught:
                ckpt.save(1, score=wrong)
            assert caught.value.code == "argument"
        ckpt.save(1, score=np.float32(0.5))
