"""What is said of files that stay: once, and where the user's own line is."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.model.capture import Attempt
from alpha_mpi.store import names
from alpha_mpi.store.durable import Directory
from alpha_mpi.tidying import LeftoverWarning


def test_files_that_cannot_be_removed_are_told_of_where_the_user_saves(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, state = np.zeros(3), am.State()
    state.replicate("w", words)
    real = Directory.unlink

    def refuses(directory: Directory, name: str, missing_ok: bool = True) -> None:
        if name.endswith(".pack"):
            raise PermissionError(1, "not permitted", name)
        real(directory, name, missing_ok)

    with am.Checkpointer(tmp_path / "s", state, comm=None, keep=1) as ckpt:
        ckpt.resume()
        ckpt.save(1)
        words += 1
        monkeypatch.setattr(Directory, "unlink", refuses)
        with pytest.warns(LeftoverWarning, match="stay for now: .*not permitted") as told:
            published = ckpt.save(2)
        assert [warning.filename for warning in told] == [__file__]
        monkeypatch.undo()
        words += 1
        assert ckpt.save(3).moment.update == 3 and published.moment.update == 2
    with am.open(tmp_path / "s") as opened:
        assert len(list(opened)) == 1


def test_leftovers_that_stay_at_a_resume_are_told_of_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, state = np.zeros(3), am.State()
    state.replicate("w", words)
    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    left = tmp_path / "s" / names.DATA / names.attempt(Attempt(1, 9)) / names.group(0)
    left.mkdir(parents=True)
    (left / names.pack(0)).write_bytes(b"cut short")
    real = Directory.unlink

    def refuses(directory: Directory, name: str, missing_ok: bool = True) -> None:
        if name == names.pack(0):
            raise PermissionError(1, "not permitted", name)
        real(directory, name, missing_ok)

    monkeypatch.setattr(Directory, "unlink", refuses)
    with am.Checkpointer(tmp_path / "s", state, comm=None) as ckpt:
        with pytest.warns(LeftoverWarning, match="not permitted") as told:
            ckpt.resume()
        assert [warning.filename for warning in told] == [__file__]
