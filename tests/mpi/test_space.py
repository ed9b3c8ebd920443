"""No space: owner 0 finds out before anything is written, and every owner raises the same."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import alpha_mpi as am
from alpha_mpi.store import space


@pytest.mark.mpi
@pytest.mark.parametrize("hierarchy", [am.Star(), am.Tree(2)], ids=["star", "tree"])
def test_no_space_on_all_owners_alike(
    comm: Any,
    mpi_tmp_path: pathlib.Path,
    everyone: Callable[[Any], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    hierarchy: Any,
) -> None:
    w = np.full((10, 1000), 0.0)
    state = am.State()
    state.partition("w", w, shape=(10 * comm.size, 1000), layout=am.rows())
    # One of ten thousand words each, all of which owner 0 must count.
    needed = w.nbytes * comm.size
    keep = am.Keep(last=1, best=1)
    with am.Checkpointer(
        mpi_tmp_path / "s", state, comm, hierarchy=hierarchy, deadline=60, keep=keep
    ) as ckpt:
        ckpt.resume()
        monkeypatch.setattr(space, "available", lambda directory: needed if comm.rank == 0 else 1 << 60)
        w += 1
        with pytest.raises(am.CommitFailed) as caught:
            ckpt.save(1)
        assert caught.value.code == "no-space" and caught.value.retryable
        assert f"{needed} bytes left" in str(caught.value)
        assert len(set(everyone(str(caught.value)))) == 1
        assert os.listdir(mpi_tmp_path / "s" / "data") == []
        comm.Barrier()  # before anybody saves again
        monkeypatch.undo()
        for update in range(1, 6):
            w += 1
            # Owner 0's score counts: of the others nobody asks.
            ckpt.save(update, score=abs(update - 2.0) + (100.0 * update if comm.rank else 0.0))
        comm.Barrier()
        kept = sorted(p.name for p in (mpi_tmp_path / "s" / "data").iterdir())
        assert kept == ["e000001-000003", "e000001-000006"]  # saves of update 2 and update 5
        everyone(None)
