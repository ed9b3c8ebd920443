"""Rights: new files respect the umask, and a store that everybody may write to is warned about."""

from __future__ import annotations

import json
import os
import pathlib
import stat
import warnings
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import alpha_mpi as am
from alpha_mpi.cli import alpha_mpi
from alpha_mpi.store.exposure import ExposedStoreWarning


def open_(path: pathlib.Path, **options: Any) -> am.Checkpointer:
    state = am.State()
    state.replicate("w", np.ones(3))
    return am.Checkpointer(path, state, visibility=0.0, **options)


def save(path: pathlib.Path) -> None:
    with open_(path) as ckpt:
        ckpt.save(ckpt.resume().update + 1, unchanged_ok=True)


def command(*words: object) -> tuple[str, Any]:
    result = CliRunner().invoke(alpha_mpi(), [*map(str, words), "--json"])
    lines = CliRunner().invoke(alpha_mpi(), [*map(str, words)]).stdout
    return lines, json.loads(result.stdout)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_new_files_respect_the_umask(tmp_path: pathlib.Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        save(tmp_path / "a" / "s")
        save(tmp_path / "a" / "s")  # with a seal
        result = CliRunner().invoke(alpha_mpi(), ["pin", str(tmp_path / "a" / "s")])
        assert result.exit_code == 0
    finally:
        os.umask(old)
    made = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    assert {p.suffix for p in made if p.is_file()} == {".json", ".pack", ".pinned"}
    for path in made:
        expected = (0o777 if path.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize("part", ["", "epochs", "published", "data"])
def test_a_store_that_everybody_may_write_is_warned_about(tmp_path: pathlib.Path, part: str) -> None:
    store = tmp_path / "s"
    save(store)
    mode = 0o1777 if part == "" else 0o757
    (store / part).chmod(mode)
    with pytest.warns(ExposedStoreWarning, match=f"{mode:04o}") as told:
        open_(store).close()
    assert [one.filename for one in told] == [__file__] and str(store / part) in str(told[0].message)
    assert "docs/security.md" in str(told[0].message)
    lines, data = command("ls", store)
    assert str(store / part) in data["exposed"] and "warning: everybody may write" in lines
    _, data = command("doctor", store)
    [row] = [row for row in data["checks"] if row["what"] == "access"]
    assert str(store / part) in row["found"]
    lines, data = command("probe", store / part)
    assert "everybody may write" in data["warnings"][-1] and "warning: everybody" in lines
    # An error, where the user's filter says so, leaves nothing open.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(am.CheckpointError, match="everybody may write"):
            open_(store)


def test_the_group_may_write(tmp_path: pathlib.Path) -> None:
    store = tmp_path / "s"
    save(store)
    store.chmod(0o775)
    (store / "published").chmod(0o2770)
    save(store)
    assert command("ls", store)[1]["exposed"] is None
    assert not any("everybody" in warning for warning in command("probe", store)[1]["warnings"])
