"""Numbers in a forged root, every digest right: nothing is allocated or counted up to them."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np
import pytest
from damage import kit

import alpha_mpi as am
from alpha_mpi import digest
from alpha_mpi.canonical import canonical
from alpha_mpi.format.envelope import seal

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def state() -> am.State:
    state = am.State()
    state.per_owner("rng", np.arange(5, dtype=np.uint64))
    state.partition("w", np.zeros(40), shape=(40,), layout=am.shares())
    return state


def test_four_billion_owners(tmp_path: pathlib.Path, state: am.State) -> None:
    path = tmp_path / "ckpt"
    with am.Checkpointer(path, state) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    file = path / "published" / "e000001-000001.json"
    value = json.loads(file.read_bytes().split(b"\n")[0])
    root = value["root"]
    root["owners"] = 2**32 - 1
    rules = [root["layouts"], root["owners"], root["hierarchy"]]
    value["prefix"]["layout"] = digest.combine("layout", rules)
    file.write_bytes(seal(canonical(value)))
    before = kit.digests(path)
    for command, more, code in [
        ("verify", (), "incomplete-cover"),
        ("h5", ("-o", tmp_path / "h.h5"), "incomplete-cover"),
        ("cp", ("latest", tmp_path / "copy"), "incomplete-cover"),
        ("plan", (), "argument"),
    ]:
        got, said = kit.run(command, path, *more)
        assert got == 1 and code in said, said
    for command in ("ls", "show", "why"):
        kit.run(command, path)
    with am.Checkpointer(path, state, visibility=0.0) as ckpt, pytest.raises(am.Refused) as caught:
        ckpt.resume()
    assert caught.value.code == "per-owner-state"
    assert kit.digests(path) == before


def test_files_of_sixty_four_gibibytes(tmp_path: pathlib.Path) -> None:
    """A size is asked before any memory is taken for it."""
    path = tmp_path / "ckpt"
    kit.make(path)
    for file in kit.FILES:
        good = (path / file).read_bytes()
        os.truncate(path / file, 1 << 36)
        code, said = kit.run("verify", path, "--all")
        assert code == 1, said
        assert file == "store.json" or pathlib.PurePath(file).name in said, said
        assert f"{1 << 36} bytes" in said, said
        (path / file).write_bytes(good)
    assert kit.run("verify", path, "--all")[0] == 0
