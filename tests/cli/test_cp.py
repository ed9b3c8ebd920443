"""alpha-mpi cp: the same words as a new generation of another store, or nothing new there."""

import contextlib
import pathlib
import shutil

import numpy as np
import oracle
import pytest
from golden import generate
from store.small_store import Killed, killed_at

import alpha_mpi as am
from alpha_mpi import copying
from alpha_mpi.errors import CommitFailed
from alpha_mpi.restore import choose
from alpha_mpi.restore.verify import verify
from alpha_mpi.store import space
from alpha_mpi.store.store import Store

GOLDEN = pathlib.Path(generate.__file__).parent / "v1"


def code_of(answer, *words):
    code, found = answer(*words)
    assert code == 1
    return found["error"]["code"]


def test_a_copy_is_resumed_and_says_the_same(store, tmp_path, answer, job):
    new = tmp_path / "deep" / "new"
    code, found = answer("cp", store, "u20", new)
    assert code == 0 and found["published"] == "e000001-000001"
    assert answer("verify", new, "--all")[0] == 0
    assert answer("diff", store, "u20", "latest", "--in", new)[0] == 0
    rows = answer("ls", new)[1]["generations"]
    assert [(row["update"], row["cursor"], row["state"]) for row in rows] == [(20, 60, "newest")]
    job(new, (25,))  # a job takes it up
    assert [row["update"] for row in answer("ls", new)[1]["generations"]] == [20, 25]


@pytest.mark.parametrize("name", ["e000001-000001", "e000002-000001"])
@pytest.mark.parametrize("algorithm", [None, "sha256", "blake3"])
def test_a_reader_written_from_the_format_alone_reads_the_same(tmp_path, answer, name, algorithm):
    """A tree of three roles, and a star with a shard that lies in an older attempt."""
    source, new = shutil.copytree(GOLDEN, tmp_path / "golden"), tmp_path / "new"
    if algorithm is not None:
        Store.create_or_open(new, algorithm).close()
    code, found = answer("cp", source, name, new)
    assert code == 0, found
    a, b = (
        oracle.read_generation(source, name),
        oracle.read_generation(new, found["published"]),
    )
    assert list(a.arrays) == list(b.arrays)
    for region, array in a.arrays.items():
        assert array.dtype == b.arrays[region].dtype and np.array_equal(array, b.arrays[region]), region
    for field in ("update", "cursor", "owners", "formats", "learner", "contract"):
        assert getattr(a, field) == getattr(b, field), field
    assert str(a.documents) == str(b.documents) and a.per_owner_documents == b.per_owner_documents
    assert answer("verify", new)[0] == 0
    shown = answer("show", new)[1]
    assert shown["score"] == (0.25 if name == "e000002-000001" else None)
    assert shown["root"].startswith(algorithm or "xxh3-128")


def test_into_a_used_store(store, tmp_path, answer, job):
    new = tmp_path / "new"
    assert answer("cp", store, "u10", new)[0] == 0
    assert code_of(answer, "cp", store, "u20", new) == "open-epoch"
    code, found = answer("cp", store, "u20", new, "--offline")
    assert code == 0 and found["published"] == "e000002-000001"
    assert code_of(answer, "cp", store, "u20", new, "--offline") == "stale-update"
    assert code_of(answer, "cp", store, "u20", store, "--offline") == "same-store"
    assert [row["update"] for row in answer("ls", new)[1]["generations"]] == [10, 20]
    root = [answer("show", new, word)[1] for word in ("u10", "u20")]
    assert root[1]["continues"] == root[0]["root"]


def test_another_line_is_refused(store, tmp_path, answer):
    other = tmp_path / "other"
    state = am.State()
    state.replicate("x", np.ones(3))
    with am.Checkpointer(other, state, visibility=0.0) as ckpt:
        ckpt.resume()
        ckpt.save(1)
    assert code_of(answer, "cp", store, "u20", other, "--offline") == "schema-differs"


def test_damage_is_found_before_the_destination_exists(store, tmp_path, answer):
    pack = next((store / "data" / "e000001-000001").rglob("*.pack"))
    pack.write_bytes(pack.read_bytes()[:-1] + b"x")
    answer("cp", store, "u10", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_no_space_is_said_before_anything_is_taken(store, tmp_path, answer, monkeypatch):
    new = tmp_path / "new"
    Store.create_or_open(new).close()
    monkeypatch.setattr(space, "available", lambda directory: 5000)
    assert code_of(answer, "cp", store, "u10", new) == CommitFailed("", code="no-space").code
    assert list((new / "epochs").iterdir()) == [] and list((new / "data").iterdir()) == []


@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere_the_destination_has_the_old_or_the_new(tmp_path, monkeypatch, after):
    with Store.open(GOLDEN) as source:
        chosen = [choose.survey(source).candidate(source, p) for p in choose.survey(source).lineage]
        second, first = chosen
        base = tmp_path / "base"
        with Store.create_or_open(base, probe=False) as store:
            copying.copy(source, first, store, False)
        for k in range(1, 80):
            path = shutil.copytree(base, tmp_path / str(k))
            done = False
            with (
                Store.open(path, write=True) as store,
                killed_at(monkeypatch, k, after) as count,
                contextlib.suppress(Killed),
            ):
                copying.copy(source, second, store, True)
                done = True
            with Store.open(path, write=True) as store:
                seen = choose.survey(store)
                assert seen.damage is None and seen.newest is not None
                update = seen.newest.manifest.prefix.moment.update
                assert update == 2 if done else update in (1, 2)
                assert all(verify(store, *p).whole for p in seen.lineage)
                if update == 1:
                    copying.copy(source, second, store, True)
                    assert choose.survey(store).newest.manifest.prefix.moment.update == 2
            if not count.dead:
                return
    raise AssertionError("still killed after 80 operations")


def test_lines_for_people(store, tmp_path, command):
    new = tmp_path / "new"
    assert command("cp", store, "u10", new, "--dry-run")[1].startswith("would copy e000001-000001 to ")
    out = command("cp", store, "u10", new)[1]
    assert out == f"copied e000001-000001 to {new} as e000001-000001, 4.75 KiB\n"
